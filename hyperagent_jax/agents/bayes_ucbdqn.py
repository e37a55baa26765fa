"""Bayes-UCBDQN (Tiapkin et al., 2022): an ensemble on the Bayesian bootstrap that acts on a quantile of its
members.

Inferred: neither code nor text of the deep version was available. According to other papers, every member weights
every transition by Exp(1), and a quantile over members replaces the maximum of Ensemble+ in acting and in the
target. The artificial transitions, which depend on the environment, are omitted.
"""

import dataclasses

import jax.numpy as jnp

from hyperagent_jax import types
from hyperagent_jax.agents import base
from hyperagent_jax.agents import bootdqn
from hyperagent_jax.networks import epistemic


@dataclasses.dataclass(frozen=True)
class Config(bootdqn.Config):
    """Settings of ensembles and of the quantile; needs optimistic=True, as in the preset.

    Attributes:
        quantile: quantile over the members, interpolated linearly, to act on and bootstrap from.
    """

    quantile: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0, "quantile", high=1)
        if not self.optimistic:
            raise ValueError("bayes_ucbdqn acts on a quantile of all members: use optimistic=True, or bootdqn")


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
    return bootdqn.make_agent(config, spec, lambda network: with_quantile_values(network, config.quantile))
