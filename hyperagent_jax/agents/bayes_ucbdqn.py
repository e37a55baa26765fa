"""Bayes-UCBDQN (Tiapkin et al., 2022): Bootstrapped DQN on the Bayesian bootstrap with an optimistic target.

Inferred: neither code nor text of the deep version was available. According to other papers it follows
Bootstrapped DQN and performs like it: every member weights every transition by Exp(1), and all members bootstrap
from a quantile over members. The artificial transitions, which depend on the environment, are omitted; they are
what makes a quantile optimistic where nothing was tried. Without them, acting on a quantile of few members is one
policy that never tries some actions, so by default an episode follows one member.
"""

import dataclasses

import jax.numpy as jnp

from hyperagent_jax import checks
from hyperagent_jax import types
from hyperagent_jax.agents import base
from hyperagent_jax.agents import bootdqn
from hyperagent_jax.networks import epistemic

ACTS_ON = ("quantile", "member")


@dataclasses.dataclass(frozen=True)
class Config(bootdqn.Config):
    """Settings of ensembles and of the quantile; needs optimistic=True, as in the preset.

    Attributes:
        quantile: quantile over the members, interpolated linearly, to bootstrap from.
        acts_on: whether to act on the "quantile", too, or on one "member" per episode.
    """

    quantile: float = 0.8
    acts_on: str = "quantile"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0, "quantile", high=1)
        checks.one_of("acts_on", self.acts_on, ACTS_ON)
        if not self.optimistic:
            raise ValueError("bayes_ucbdqn bootstraps from all members: use optimistic=True, or bootdqn")


def with_quantile_values(network: epistemic.EpistemicNetwork, quantile: float) -> epistemic.EpistemicNetwork:
    """Makes an ensemble's values a quantile over its members, independent of the index.

    Args:
        network: an ensemble, whose coefficients are the members' values.
        quantile: the quantile; 1 is the maximum.
    """

    def value(params: types.Params, belief: types.Array, index: types.Array) -> types.Array:
        del params, index
        return jnp.quantile(belief[:, :-1], quantile, axis=-1)

    return network._replace(value=value)


def make_agent(config: Config, spec: types.EnvironmentSpec) -> base.Agent:
    """Builds the agent for an environment."""
    return bootdqn.make_agent(
        config,
        spec,
        lambda network: with_quantile_values(network, config.quantile),
        acts_on_member=config.acts_on == "member",
    )
