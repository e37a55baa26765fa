"""Bootstrapped DQN (Osband et al., 2016): an ensemble of networks, each trained on a random half of the data.

Ensemble+ and its optimistic variant are the same algorithm with other settings (see presets.py).
"""

from collections.abc import Callable
import dataclasses

from hyperagent_jax import checks
from hyperagent_jax import indices
from hyperagent_jax import losses
from hyperagent_jax import types
from hyperagent_jax.agents import base
from hyperagent_jax.networks import epistemic
from hyperagent_jax.networks import priors

MASKS = ("bernoulli_mask", "exponential_mask")


@dataclasses.dataclass(frozen=True)
class Config(base.Config):
    """Settings of ensembles.

    Attributes:
        index_dim: number of members M.
        prior_scale: factor of every member's fixed prior; 0 for none.
        resample_probability: probability per step that the acting member is resampled within an episode; has no
            effect when optimistic.
        optimistic: whether to act on, and bootstrap from, the best member for each action instead of one member.
        mask_distribution: distribution of the members' weights of a transition: "bernoulli_mask" or
            "exponential_mask".
    """

    index_dim: int = 4
    prior_scale: float = 0.0
    resample_probability: float = 0.01
    optimistic: bool = False
    mask_distribution: str = "bernoulli_mask"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(1, "index_dim")
        self.require(0, "prior_scale")
        self.require(0, "resample_probability", high=1)
        checks.one_of("mask_distribution", self.mask_distribution, MASKS)


def make_agent(
    config: Config,
    spec: types.EnvironmentSpec,
    adapt: Callable[[epistemic.EpistemicNetwork], epistemic.EpistemicNetwork] = lambda network: network,
    *,
    acts_on_member: bool = False,
) -> base.Agent:
    """Builds an ensemble agent for an environment.

    Args:
        config: the agent's settings.
        spec: the environment's spec.
        adapt: modifies the ensemble that `config` describes.
        acts_on_member: whether to act on one member of the unmodified ensemble per episode, even if optimistic.
    """
    masks = indices.make(config.mask_distribution, config.index_dim)
    torso, observation = base.make_torso(config.hidden_sizes, spec, config.torso, config.conv_dtype)
    network = epistemic.make_ensemble_network(
        torso,
        spec.num_actions,
        config.index_dim,
        observation,
        prior=priors.ensemble_prior(config.prior_scale) if config.prior_scale else priors.no_prior(),
        num_states=spec.num_states,
    )
    adapted = adapt(network)
    loss = losses.make_td_loss(
        adapted,
        kind="enumerated",
        perturbation=masks,
        target_index="all" if config.optimistic else "dependent",
        double_q=config.double_q,
        is_masked=True,
    )
    return base.make_agent(
        config,
        spec,
        network if acts_on_member else adapted,
        loss,
        masks,
        action_index="all" if config.optimistic and not acts_on_member else "episode",
        resample_probability=config.resample_probability,
    )
