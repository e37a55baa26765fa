"""Only the hypermodel's head, prior and loss, in your own DQN with your own network, optimiser and target."""

from absl import app
import flax.linen as nn
import jax
import numpy as np
import optax

import hyperagent_jax as hx

LENGTH, GAMMA, M, SIGMA = 8, 0.9, 4, 1e-3
INDEX, PERTURBATION = hx.indices.sphere(M), hx.indices.scaled_sphere(M)
OPTIMIZER = optax.adamw(3e-3, weight_decay=1e-6)
# Your own network; only its last layer is the hypermodel's: coefficients [2, M + 1] instead of values [2].
NETWORK = nn.Sequential([nn.Dense(32), nn.relu, hx.HyperLinear(2, M)])


def coefficients(params, prior, observation):  # the sum of learned ones and those of a fixed prior
    return NETWORK.apply(params, observation) + 3.0 * NETWORK.apply(prior, observation)


@jax.jit
def q_values(params, prior, observation, index):
    return coefficients(params, prior, observation) @ jax.numpy.append(index, 1.0)


@jax.jit  # your own update: a mean over transitions, any optax chain, a Polyak target
def update(params, target, opt_state, prior, batch, key):
    def loss(online, t, index):
        q_t, selector = (q_values(x, prior, t.o_t, index)[None] for x in (target, params))
        own, c = coefficients(online, prior, t.o_tm1), INDEX.second_moment
        return hx.losses.exact_td_loss(own, t.a_tm1, t.r_t, t.discount_t, q_t, selector, t.z_t, SIGMA, c)

    mean_loss = lambda online: jax.vmap(loss, (None, 0, 0))(online, batch, INDEX.sample(key, (32,))).mean()
    updates, opt_state = OPTIMIZER.update(jax.grad(mean_loss)(params), opt_state, params)
    params = optax.apply_updates(params, updates)
    return params, optax.incremental_update(params, target, 0.05), opt_state


def main(steps: int = 2_500, seed: int = 0) -> float:
    """Trains on a chain where a wrong step ends the episode; returns the mean return of the last 50."""
    rng, (run_key, *keys) = np.random.default_rng(seed), jax.random.split(jax.random.key(seed), 5)
    right, states = rng.integers(2, size=LENGTH), np.eye(LENGTH, dtype=np.float32)
    indices, zs = map(np.asarray, (INDEX.sample(keys[0], (steps,)), PERTURBATION.sample(keys[1], (steps,))))
    params, prior = (NETWORK.init(key, states[0]) for key in keys[2:])
    target, opt_state, replay, returns, place, index = params, OPTIMIZER.init(params), [], [], 0, indices[0]
    for t, key in enumerate(jax.random.split(run_key, steps)):
        action = int(np.argmax(q_values(params, prior, states[place], index)))
        done = bool(action != right[place] or place == LENGTH - 1)
        reward, following = float(done and action == right[place]), (place + 1) * (not done)
        replay.append(hx.Transition(states[place], action, reward, GAMMA * (not done), states[following], zs[t]))
        batch = jax.tree.map(lambda *x: np.stack(x), *[replay[i] for i in rng.integers(len(replay), size=32)])
        params, target, opt_state = update(params, target, opt_state, prior, batch, key)
        place, index, returns = following, indices[t] if done else index, returns + [reward] * done
    return np.mean(returns[-50:])


if __name__ == "__main__":
    app.run(lambda _: print(f"rewarded episodes among the last 50: {main():.0%}"))
