"""Regression with uncertainty: mean and standard deviation of a hypermodel trained on noisy points."""

from absl import app
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import hyperagent_jax as hx

NOISE, M = 0.1, 16


def make_data(rng):
    """Samples noisy points of sin(3 x) on [-1, -0.4] and [0.4, 1], with a gap in between."""
    x = np.concatenate([rng.uniform(-1, -0.4, 40), rng.uniform(0.4, 1, 40)]).astype(np.float32)
    return x, (np.sin(3 * x) + NOISE * rng.normal(size=x.size)).astype(np.float32)


def main(steps: int = 4_000, seed: int = 0) -> dict[str, dict[str, float]]:
    """Fits the points; returns error of the mean and standard deviation on data, in the gap and outside."""
    rng, keys = np.random.default_rng(seed), jax.random.split(jax.random.key(seed), 3)
    x, y = make_data(rng)
    index, z = hx.indices.sphere(M), hx.indices.scaled_sphere(M).sample(keys[0], (x.size,))
    torso = nn.Sequential([nn.Dense(64), nn.relu, nn.Dense(64), nn.relu])
    network = hx.make_hyper_network(torso, 1, index, np.zeros(1), prior=hx.hyper_prior(3.0))  # one "action"
    # With discount 0 the TD loss is a regression of r_t + sigma xi^T z_t on o_tm1.
    learner = hx.make_learner(network, hx.losses.make_td_loss(network, sigma=NOISE), optax.adam(1e-3))
    zeros = np.zeros(x.size)
    batch = hx.Batch(hx.Transition(x[:, None], zeros.astype(np.int32), y, zeros, x[:, None], z))

    @jax.jit
    def fit(state, key):
        step = lambda state, key: (learner.step(state, batch, key)[0], None)
        return jax.lax.scan(step, state, jax.random.split(key, steps))[0]

    variables = learner.variables(fit(learner.init(keys[1]), keys[2]))
    regions = {"on data": x, "in the gap": np.linspace(-0.2, 0.2, 50), "outside": np.linspace(2, 3, 50)}
    outcome = {}
    for name, points in regions.items():
        mean, std = hx.posterior.mean_and_std(network, variables, jnp.asarray(points, jnp.float32)[:, None])
        error = np.sqrt(np.mean((mean[:, 0] - np.sin(3 * points)) ** 2))
        outcome[name] = {"error": float(error), "std": float(np.mean(std))}
    return outcome


def show(outcome: dict[str, dict[str, float]]) -> None:
    """Prints a line per region."""
    for name, row in outcome.items():
        print(f"{name}: error of the mean {row['error']:.3f}, standard deviation {row['std']:.3f}")


if __name__ == "__main__":
    app.run(lambda _: show(main()))
