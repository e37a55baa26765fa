"""PSRL: acts optimally in an MDP drawn from the Dirichlet posterior (Assumption 2)."""

import dataclasses

import jax
import jax.numpy as jnp

from hyperagent_jax import types
from hyperagent_jax.tabular import base
from hyperagent_jax.tabular import closed_form
from hyperagent_jax.tabular import solvers


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of PSRL.

    Attributes:
        beta: sum of the prior's parameters; each next state has beta / S of it.
    """

    beta: float = 3.0

    def __post_init__(self):
        if not self.beta > 0.0:
            raise ValueError(f"beta must be above 0, got {self.beta}")


def log_gamma_samples(key: types.PRNGKey, alpha: types.Array) -> types.Array:
    """Logarithms of Gamma(alpha, 1) variables, by Marsaglia and Tsang's rejection with boosting.

    `jax.random.gamma` derives a key for every element, which here costs more than everything else.
    """
    # Gamma(a) is Gamma(a + 1) U^(1 / a): the rejection is needed for parameters above 1 only.
    d = alpha + 1.0 - 1.0 / 3.0
    c = 1.0 / jnp.sqrt(9.0 * d)

    def propose(carry):
        i, log_v, accepted = carry
        key_i = jax.random.fold_in(key, i)
        x = jax.random.normal(types.fold_in_tag(key_i, "x"), alpha.shape)
        u = jax.random.uniform(types.fold_in_tag(key_i, "u"), alpha.shape)
        v = (1.0 + c * x) ** 3
        log = jnp.log(jnp.maximum(v, 1e-30))
        good = (v > 0.0) & (jnp.log1p(-u) < 0.5 * x**2 + d * (1.0 - v + log))
        return i + 1, jnp.where(accepted, log_v, log), accepted | good

    start = (jnp.zeros((), jnp.int32), jnp.zeros_like(d), jnp.zeros(d.shape, bool))
    _, log_v, _ = jax.lax.while_loop(lambda carry: ~jnp.all(carry[2]), propose, start)
    boost = jnp.log1p(-jax.random.uniform(types.fold_in_tag(key, "boost"), alpha.shape)) / alpha
    return jnp.log(d) + log_v + boost


def make_agent(config: Config, size: base.Size) -> base.Agent:
    """PSRL with known rewards."""

    def policy(statistics, rewards, key):
        gammas = log_gamma_samples(key, config.beta / size.num_states + statistics.moves)
        transitions = jax.nn.softmax(gammas, -1)  # normalised in logarithms, as small parameters underflow
        stages = (rewards, transitions)
        return base.Policy(solvers.backward_induction(solvers.expected_backup, stages, size.num_states))

    def update(statistics, rewards, episode, key):
        del rewards, key
        return base.count(statistics, episode)

    return base.Agent(lambda key: closed_form.no_statistics(size.pairs), policy, update)
