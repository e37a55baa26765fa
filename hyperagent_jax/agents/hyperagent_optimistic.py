"""Explores by R-max values with HyperAgent's uncertainty, and exploits by Double DQN on the same data.

Two networks learn from one replay. The exploring one is `hyperagent_rmax`'s: optimistic where its uncertainty is
still close to the prior's. The exploiting one is Double DQN's, so what it has learned is unaffected by optimism,
prior and uncertainty. The index of an episode decides which of them acts; evaluations follow the exploiting one.
Where exploration never ends, as on images, this costs a share of the episodes instead of all of them. As long as
nothing worth exploiting has been found, all episodes explore.

Three things keep exploration from stopping too early or too late where outcomes are random:
- The perturbation by the TD error (`residual`) leaves an action uncertain as long as the mean of its outcomes is.
- sigma makes uncertainty fall with the number of visits, as sigma / sqrt(n).
- An action passes for known below a threshold that falls while next to no sampled state has an unknown action,
  and rises again to `known_below` when some do. So one visit is enough as long as there is something new to try;
  when all has been tried, the actions with the fewest visits and the noisiest outcomes become unknown again. No
  unlucky outcome can close an action for good, and an environment without noise does not pay for that.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hyperagent_jax import indices
from hyperagent_jax import losses
from hyperagent_jax import types
from hyperagent_jax.agents import base
from hyperagent_jax.agents import hyperagent
from hyperagent_jax.agents import hyperagent_rmax
from hyperagent_jax.networks import epistemic

# The parameter whose value, if negative, is the logarithm of the factor of both thresholds. Adam changes it by at
# most the learning rate per update, so at 1e-3 it takes 700 updates to halve them.
_THRESHOLD = "threshold"


@dataclasses.dataclass(frozen=True)
class Config(hyperagent_rmax.Config):
    """R-max's settings and those of the two networks.

    Attributes:
        exploit_share: share of the episodes that the exploiting network plays; a multiple of 1 / index_dim.
        exploit_above: it acts only where one of its values, positive or negative, is at least this fraction of
            unknown_value: elsewhere there is nothing to exploit yet, and the exploring network acts.
        unknown_share: share of the sampled states that should have an unknown action: below it, the threshold
            `known_below` is lowered (and unknown_above with it), above it, it is raised again up to known_below.
            0 for a fixed threshold.
    """

    exploit_share: float = 0.25
    exploit_above: float = 0.05
    unknown_share: float = 0.002

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0, "exploit_share", "exploit_above", "unknown_share", high=1)
        if self.loss != "exact":
            raise ValueError(f"hyperagent_optimistic has no indices to sample: use loss=exact, not {self.loss}")
        if self.head_regularization or self.prior_regularization or self.gradient_penalty:
            raise ValueError("hyperagent_optimistic has two networks: leave regularisation and penalty at 0")
        if not (self.exploit_share * self.index_dim).is_integer():
            raise ValueError(
                f"exploit_share must be a multiple of 1 / index_dim = {1 / self.index_dim:g}, "
                f"got {self.exploit_share}"
            )


class PairBelief(NamedTuple):
    """The beliefs of the two networks: coefficients [num_actions, M + 1], and Q-values [num_actions, 1]."""

    explore: types.Array
    exploit: types.Array


def with_threshold(
    network: epistemic.EpistemicNetwork, loss_of: Any, config: Config
) -> tuple[epistemic.EpistemicNetwork, losses.Loss]:
    """Makes a network's values those of R-max with a threshold that moves, and its loss one that moves it.

    Args:
        network: a network that is linear in its index.
        loss_of: maps the network with R-max values to its loss.
        config: the agent's settings.

    Returns:
        The network, with one parameter more, and its loss.
    """
    hyperagent_rmax.require_rmax(network, config)

    def weight(params: types.Params, belief: types.Array) -> types.Array:
        factor = jnp.exp(jnp.minimum(params[_THRESHOLD], 0.0))
        return hyperagent_rmax.unknown_weight(
            belief,
            prior_norm=config.prior_scale,
            known_below=config.known_below * factor,
            unknown_above=config.unknown_above * factor,
        )

    def value(params: types.Params, belief: types.Array, index: types.Array) -> types.Array:
        del index
        return hyperagent_rmax.rmax_values(belief, weight(params, belief), config.unknown_value)

    def init(key: types.PRNGKey) -> types.Variables:
        variables = network.init(key)
        return variables._replace(params={**variables.params, _THRESHOLD: jnp.zeros(())})

    def posterior(params: types.Params, observation: Any, prior: types.Belief) -> types.Belief:
        inner = {name: value for name, value in params.items() if name != _THRESHOLD}
        return network.posterior(inner, observation, prior)

    moving = network._replace(value=value, init=init, posterior=posterior)
    loss = loss_of(moving)
    if not config.unknown_share:
        return moving, loss

    def apply(
        params: types.Params,
        target_params: types.Params,
        transition: types.Transition,
        prior_tm1: types.Belief,
        *others: Any,
    ) -> types.Array:
        own = loss.apply(params, target_params, transition, prior_tm1, *others)
        frozen = jax.lax.stop_gradient(params)
        belief = posterior(frozen, transition.o_tm1, prior_tm1)
        has_unknown = jnp.max(weight(frozen, belief)) > 0.5
        slope = jnp.where(frozen[_THRESHOLD] > 0, 1.0, config.unknown_share - has_unknown)
        # Zero, with this slope as its gradient.
        return own + slope * (params[_THRESHOLD] - frozen[_THRESHOLD])

    return moving, loss._replace(apply=apply, apply_with_value=None)


def make_pair(
    explore: epistemic.EpistemicNetwork,
    exploit: epistemic.EpistemicNetwork,
    *,
    exploit_share: float,
    exploit_above: float = 0.0,
) -> epistemic.EpistemicNetwork:
    """Makes one network of two, whose index decides which of them acts.

    The second one acts at index zero, and if the largest coordinate of the index is one of the first
    `exploit_share` of them and something is at stake.

    Args:
        explore: the network that explores, linear in its index.
        exploit: a network without index.
        exploit_share: share of the indices at which `exploit` acts.
        exploit_above: something is at stake if one of its values is at least this far from zero.
    """
    num_coordinates = round(exploit_share * explore.index.dim)

    def init(key: types.PRNGKey) -> types.Variables:
        exploring = explore.init(types.fold_in_tag(key, "explore"))
        exploiting = exploit.init(types.fold_in_tag(key, "exploit"))
        return types.Variables({"explore": exploring.params, "exploit": exploiting.params}, exploring.prior)

    def posterior(params: types.Params, observation: Any, prior: types.Belief) -> PairBelief:
        return PairBelief(
            explore.posterior(params["explore"], observation, prior),
            exploit.posterior(params["exploit"], observation, exploit.prior((), observation)),
        )

    def value(params: types.Params, belief: PairBelief, index: types.Array) -> types.Array:
        values = exploit.value(params["exploit"], belief.exploit, jnp.zeros(0))
        is_chosen = (jnp.argmax(index) < num_coordinates) & (jnp.max(jnp.abs(values)) >= exploit_above)
        return jnp.where(
            is_chosen | ~jnp.any(index), values, explore.value(params["explore"], belief.explore, index)
        )

    def summary(belief: PairBelief) -> types.Array:
        return jnp.concatenate([belief.explore[..., :-1], belief.exploit], axis=-1)

    return epistemic.EpistemicNetwork(
        init, explore.prior, posterior, value, explore.index, False, explore.observation, summary=summary
    )


def add_losses(
    explore: losses.Loss, exploit: losses.Loss, exploit_network: epistemic.EpistemicNetwork
) -> losses.Loss:
    """Returns the loss of a pair: the sum of the two."""

    def draw(key: types.PRNGKey, batch_size: int) -> Any:
        return (
            explore.draw(types.fold_in_tag(key, "explore"), batch_size),
            exploit.draw(types.fold_in_tag(key, "exploit"), batch_size),
        )

    def apply(
        params: types.Params,
        target_params: types.Params,
        transition: types.Transition,
        prior_tm1: types.Belief,
        prior_t: types.Belief,
        noise: Any,
    ) -> types.Array:
        no_prior_tm1 = exploit_network.prior((), transition.o_tm1)
        no_prior_t = exploit_network.prior((), transition.o_t)
        exploring, exploiting = (
            loss.apply(params[name], target_params[name], transition, *priors, own)
            for name, loss, priors, own in (
                ("explore", explore, (prior_tm1, prior_t), noise[0]),
                ("exploit", exploit, (no_prior_tm1, no_prior_t), noise[1]),
            )
        )
        return exploring + exploiting

    return losses.Loss(draw, apply, is_semi_gradient=True, perturbation=explore.perturbation)


def make_agent(config: Config, spec: types.EnvironmentSpec) -> base.Agent:
    """Builds the agent for an environment."""
    explore, explore_loss = with_threshold(
        hyperagent.make_network(config, spec), lambda network: hyperagent.make_loss(config, network), config
    )
    torso, observation = base.make_torso(config.hidden_sizes, spec, config.torso, config.conv_dtype)
    exploit = epistemic.make_plain_network(torso, spec.num_actions, observation)
    exploit_loss = losses.make_td_loss(exploit, double_q=config.double_q)
    loss = add_losses(explore_loss, exploit_loss, exploit)
    return base.make_agent(
        config,
        spec,
        make_pair(
            explore,
            exploit,
            exploit_share=config.exploit_share,
            exploit_above=config.exploit_above * abs(config.unknown_value),
        ),
        loss,
        indices.make(config.perturbation_distribution, config.index_dim),
        action_index=config.action_index,
        resample_probability=config.resample_probability,
        evaluation_index=indices.zero(config.index_dim),
    )
