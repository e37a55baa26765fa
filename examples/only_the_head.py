"""Only the hypermodel's head, prior and loss, in a DQN of your own with your own network, optimiser and target."""

from absl import app
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import hyperagent_jax as hx
from hyperagent_jax.networks import coefficients
from hyperagent_jax.networks import epistemic
from hyperagent_jax.networks import priors

LENGTH, GAMMA, M = 8, 0.9, 4
INDEX = hx.indices.sphere(M)
OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-3, weight_decay=1e-6))


class QNetwork(nn.Module):
    """Your own network; only its last layer is the hypermodel's: coefficients [2, M + 1] instead of values [2]."""

    @nn.compact
    def __call__(self, observation):
        return hx.HyperLinear(2, M)(nn.relu(nn.Dense(32)(observation)))


PRIOR = hx.hyper_prior(3.0, torso=nn.Sequential([nn.Dense(32), nn.relu])).build(
    priors.PriorInputs(torso=None, num_actions=2, index_dim=M, observation=np.zeros(LENGTH))
)
LEARNABLE = coefficients.CoefficientFn(lambda key: QNetwork().init(key, np.zeros(LENGTH)), QNetwork().apply)
LOSS = hx.losses.make_td_loss(epistemic.make_linear_network(LEARNABLE, PRIOR, INDEX), sigma=1e-3)


@jax.jit
def q_values(params, prior, observation, index):
    return (LEARNABLE.apply(params, observation) + PRIOR.apply(prior, observation)) @ jnp.append(index, 1.0)


@jax.jit
def update(params, target, opt_state, prior, batch, key):
    """Your own update: a mean over transitions, any optax chain, a Polyak target."""

    def mean_loss(params):
        def one(t, noise):
            beliefs = PRIOR.apply(prior, t.o_tm1), PRIOR.apply(prior, t.o_t)
            return LOSS.apply(params, target, t, *beliefs, noise)

        return jnp.mean(jax.vmap(one)(batch, LOSS.draw(key, batch.a_tm1.shape[0])))

    updates, opt_state = OPTIMIZER.update(jax.grad(mean_loss)(params), opt_state, params)
    params = optax.apply_updates(params, updates)
    return params, optax.incremental_update(params, target, 0.05), opt_state


def main(steps: int = 2_500, seed: int = 0) -> float:
    """Trains on a chain where a wrong step ends the episode; returns the mean return of the last 50."""
    rng, keys = np.random.default_rng(seed), jax.random.split(jax.random.key(seed), steps + 3)
    right, states = rng.integers(2, size=LENGTH), np.eye(LENGTH, dtype=np.float32)
    directions = np.asarray(INDEX.sample(keys[-1], (2 * steps,)))  # indices xi, and z / sqrt(M)
    params, prior = LEARNABLE.init(keys[-2]), PRIOR.init(keys[-3])
    target, opt_state, replay, returns, place, index = params, OPTIMIZER.init(params), [], [], 0, directions[0]
    for t in range(steps):
        action = int(np.argmax(q_values(params, prior, states[place], index)))
        done = action != right[place] or place == LENGTH - 1
        reward, following = float(done and action == right[place]), 0 if done else place + 1
        z = np.sqrt(M) * directions[steps + t]
        replay.append(hx.Transition(states[place], action, reward, GAMMA * (not done), states[following], z))
        batch = jax.tree.map(lambda *x: np.stack(x), *[replay[i] for i in rng.integers(len(replay), size=32)])
        params, target, opt_state = update(params, target, opt_state, prior, batch, keys[t])
        place, index = following, directions[t] if done else index
        returns += [reward] if done else []
    return float(np.mean(returns[-50:]))


if __name__ == "__main__":
    app.run(lambda _: print(f"rewarded episodes among the last 50: {main():.0%}"))
