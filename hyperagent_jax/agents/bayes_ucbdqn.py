"""Bayes-UCBDQN (Tiapkin et al., 2022): an ensemble on the Bayesian bootstrap that acts on a quantile of members.

Inferred: neither code nor text of the deep version was found. From what others say of it, every member weighs
every transition by Exp(1), and a quantile over members takes the place of Ensemble+'s maximum in acting and in the
target. Its artificial transitions, which depend on the environment, are left out.
"""

import dataclasses

import jax.numpy as jnp

from hyperagent_jax import types
from hyperagent_jax.agents import base
from hyperagent_jax.agents import bootdqn
from hyperagent_jax.networks import epistemic


@dataclasses.dataclass(frozen=True)
class Config(bootdqn.Config):
    """Settings of ensembles and of the quantile; needs optimistic=True, as the preset has it.

    Attributes:
        quantile: the quantile over members, interpolated linearly, that is acted on and bootstrapped from.
    """

    quantile: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0, "quantile", high=1)
        if not self.optimistic:
            raise ValueError("bayes_ucbdqn acts on a quantile of all members: use optimistic=True, or bootdqn")


def with_quantile_values(network: epistemic.EpistemicNetwork, quantile: float) -> epistemic.EpistemicNetwork:
    """Gives an ensemble the values of a quantile over its members, whatever the index.

    Args:
        network: an ensemble: coefficients are the members' values.
        quantile: the quantile; 1 is the maximum.
    """

    def value(params: types.Params, belief: types.Array, index: types.Array) -> types.Array:
        del params, index
        return jnp.quantile(belief[:, :-1], quantile, axis=-1)

    return network._replace(value=value)


def make_agent(config: Config, spec: types.EnvironmentSpec) -> base.Agent:
    """Makes the agent for an environment."""
    return bootdqn.make_agent(config, spec, lambda network: with_quantile_values(network, config.quantile))
