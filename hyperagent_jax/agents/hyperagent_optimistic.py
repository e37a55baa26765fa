"""Explores by R-max values with HyperAgent's uncertainty, and exploits by Double DQN on the same data.

Two networks learn from one replay. The exploring one is `hyperagent_rmax`'s: optimistic where its uncertainty is
still close to the prior's. The exploiting one is Double DQN's, so what it has learned is unaffected by optimism,
prior and uncertainty. The index of an episode decides which of them acts; evaluations follow the exploiting one.
Where exploration never ends, as on images, this costs a share of the episodes instead of all of them. As long as
nothing worth exploiting has been found, all episodes explore.

Three things keep exploration from stopping too early or too late where outcomes are random:
- The perturbation by the TD error (`residual`) leaves an action uncertain as long as the mean of its outcomes is.
- sigma makes uncertainty fall with the number of visits, as sigma / sqrt(n).
- An action passes for known below a threshold that falls while the exploring network expects hardly more than the
  exploiting one, and rises again to `known_below` when it expects more. So one visit is enough as long as there is
  something new within reach; when all has been tried, the actions with the fewest visits and the noisiest outcomes
  become unknown again. No unlucky outcome can close an action for good, and an environment without noise does not
  pay for that.
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
        exploit_above: the exploiting network acts only where one of its values, positive or negative, is at least
            this fraction of unknown_value; elsewhere there is nothing to exploit yet, and the exploring one acts.
        least_optimism: how much more than the exploiting network the exploring one should expect in the sampled
            states, on average and as a fraction of unknown_value. If it expects less, the threshold `known_below`
            is lowered (and unknown_above with it); if more, it is raised again, up to known_below. 0 for a fixed
            threshold.
    """

    exploit_share: float = 0.25
    exploit_above: float = 0.05
    least_optimism: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0, "exploit_share", "exploit_above", "least_optimism", high=1)
        if self.loss != "exact":
            raise ValueError(f"hyperagent_optimistic has no indices to sample: use loss=exact, not {self.loss}")
        if self.head_regularization or self.prior_regularization or self.gradient_penalty:
            raise ValueError("hyperagent_optimistic has two networks: leave regularisation and penalty at 0")
        num_coordinates = self.exploit_share * self.index_dim
        if abs(num_coordinates - round(num_coordinates)) > 1e-6:  # 0.14 * 50 is 7.000000000000001
            raise ValueError(
                f"exploit_share must be a multiple of 1 / index_dim = {1 / self.index_dim:g}, "
                f"got {self.exploit_share}"
            )


class PairBelief(NamedTuple):
    """The beliefs of the two networks: coefficients [num_actions, M + 1], and Q-values [num_actions, 1]."""

    explore: types.Array
    exploit: types.Array


def with_threshold(network: epistemic.EpistemicNetwork, config: Config) -> epistemic.EpistemicNetwork:
    """Makes a network's values those of R-max with a threshold that is one of its parameters.

    Args:
        network: a network that is linear in its index.
        config: the agent's settings.
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

    return network._replace(value=value, init=init, posterior=posterior)


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


def make_loss(
    explore: epistemic.EpistemicNetwork, exploit: epistemic.EpistemicNetwork, config: Config
) -> losses.Loss:
    """Makes the loss of a pair: the sum of the two, and a gradient that moves the threshold.

    Args:
        explore: the network that explores, from `with_threshold`.
        exploit: the network that exploits.
        config: the agent's settings.
    """
    explore_loss = hyperagent.make_loss(config, explore)
    exploit_loss = losses.make_td_loss(exploit, double_q=config.double_q)
    unit = abs(config.unknown_value) or 1.0

    def draw(key: types.PRNGKey, batch_size: int) -> Any:
        return (
            explore_loss.draw(types.fold_in_tag(key, "explore"), batch_size),
            exploit_loss.draw(types.fold_in_tag(key, "exploit"), batch_size),
        )

    def optimism(params: types.Params, observation: Any, prior: types.Belief) -> types.Array:
        def best(network: epistemic.EpistemicNetwork, own: types.Params, prior: types.Belief) -> types.Array:
            belief = network.posterior(own, observation, prior)
            return jnp.max(network.value(own, belief, jnp.zeros(network.index.dim)))

        expected = best(explore, params["explore"], prior)
        return expected - best(exploit, params["exploit"], exploit.prior((), observation))

    def move_threshold(params: types.Params, observation: Any, prior: types.Belief) -> types.Array:
        """Zero, with a gradient that descent follows downwards where there is too little optimism."""
        frozen = jax.lax.stop_gradient(params)
        share = jnp.clip(optimism(frozen, observation, prior) / unit, -1.0, 1.0)
        is_above = frozen["explore"][_THRESHOLD] > 0
        slope = jnp.where(is_above, 1.0, config.least_optimism - share)
        return slope * (params["explore"][_THRESHOLD] - frozen["explore"][_THRESHOLD])

    def apply(
        params: types.Params,
        target_params: types.Params,
        transition: types.Transition,
        prior_tm1: types.Belief,
        prior_t: types.Belief,
        noise: Any,
    ) -> types.Array:
        no_prior_tm1 = exploit.prior((), transition.o_tm1)
        no_prior_t = exploit.prior((), transition.o_t)
        exploring, exploiting = (
            loss.apply(params[name], target_params[name], transition, *priors, own)
            for name, loss, priors, own in (
                ("explore", explore_loss, (prior_tm1, prior_t), noise[0]),
                ("exploit", exploit_loss, (no_prior_tm1, no_prior_t), noise[1]),
            )
        )
        if not config.least_optimism:
            return exploring + exploiting
        return exploring + exploiting + move_threshold(params, transition.o_tm1, prior_tm1)

    return losses.Loss(draw, apply, is_semi_gradient=True, perturbation=explore_loss.perturbation)


def make_agent(config: Config, spec: types.EnvironmentSpec) -> base.Agent:
    """Builds the agent for an environment."""
    explore = with_threshold(hyperagent.make_network(config, spec), config)
    torso, observation = base.make_torso(config.hidden_sizes, spec, config.torso, config.conv_dtype)
    exploit = epistemic.make_plain_network(torso, spec.num_actions, observation)
    pair = make_pair(
        explore,
        exploit,
        exploit_share=config.exploit_share,
        exploit_above=config.exploit_above * abs(config.unknown_value),
    )
    return base.make_agent(
        config,
        spec,
        pair,
        make_loss(explore, exploit, config),
        indices.make(config.perturbation_distribution, config.index_dim),
        action_index=config.action_index,
        resample_probability=config.resample_probability,
        evaluation_index=indices.zero(config.index_dim),
    )
