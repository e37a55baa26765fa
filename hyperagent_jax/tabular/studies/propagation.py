"""How uncertainty about one pair spreads through the stochastic Bellman iteration (section "Insight")."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from hyperagent_jax import checks
from hyperagent_jax import indices
from hyperagent_jax import types
from hyperagent_jax.tabular import closed_form
from hyperagent_jax.tabular import hyperagent
from hyperagent_jax.tabular import mdps


@dataclasses.dataclass(frozen=True)
class Config:
    """The four-state example.

    Attributes:
        visits: N of (4, down).
        visits_elsewhere: N of all other pairs, "virtually infinite".
        beta: prior regularisation.
        sigma: level of perturbation.
        index_dim: M.
        num_samples: number of index mappings over which to take the standard deviation.
        seed: seed of all random numbers.
    """

    visits: float = 1.0
    visits_elsewhere: float = 1e8
    beta: float = 1.0
    sigma: float = 1.0
    index_dim: int = 16
    num_samples: int = 20_000
    seed: int = 0

    def __post_init__(self) -> None:
        checks.finite(self)
        checks.counts(self, "num_samples")
        checks.real_number("visits", self.visits, 0.0)
        checks.real_number("visits_elsewhere", self.visits_elsewhere, 0.0)
        checks.seeds(self, "seed")
        hyperagent.Config(self.beta, self.sigma, index_dim=self.index_dim)


def sample_q(config: Config) -> types.Array:
    """Returns Q^(0), Q^(1), ... at many index mappings, [num_samples, H + 1, S, A]."""
    mdp = mdps.insight()
    transitions, rewards = mdp.transitions[0], mdp.rewards[0]
    visits = jnp.full(rewards.shape, config.visits_elsewhere).at[-1, -1].set(config.visits)
    statistics = closed_form.Statistics(visits, visits[..., None] * transitions)
    key = jax.random.key(config.seed)
    z = indices.sphere(config.index_dim).sample(types.fold_in_tag(key, "z"), rewards.shape)
    m = config.sigma / jnp.sqrt(visits + config.beta)[..., None] * z  # with the norm given by the lemma

    def iterate(key: types.PRNGKey) -> types.Array:
        xi = indices.gaussian(config.index_dim).sample(key, (rewards.shape[0],))
        noise = jnp.sum(m * xi[:, None], -1)

        def step(q: types.Array, _: None) -> tuple[types.Array, types.Array]:
            q_next = closed_form.bellman(
                statistics, rewards, noise, jnp.max(q, -1), prior_mean=0.0, beta=config.beta
            )
            return q_next, q_next

        start = jnp.zeros_like(rewards)
        _, later = jax.lax.scan(step, start, length=mdp.rewards.shape[0])
        return jnp.concatenate([start[None], later])

    return jax.vmap(iterate)(jax.random.split(types.fold_in_tag(key, "xi"), config.num_samples))


def run(config: Config) -> dict[str, list[dict]]:
    """Returns the table `results`: mean and standard deviation of every Q^(i)(s, a) over index mappings."""
    q = np.asarray(jax.jit(lambda: sample_q(config))(), np.float64)
    mean, spread = q.mean(0), q.std(0)
    rows = []
    for i, x, a in np.ndindex(mean.shape):
        rows.append(
            {
                "iteration": i,
                "stage": mean.shape[0] - 1 - i,
                "state": x + 1,
                "action": ("up", "down")[a],
                "mean": mean[i, x, a],
                "standard_deviation": spread[i, x, a],
            }
        )
    return {"results": rows}
