"""HyperAgent in one jitted program: lax.scan over steps, vmap over seeds, flashbax for the replay."""

from absl import app
import flashbax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import hyperagent_jax as hx

LENGTH, GAMMA, STEPS = 10, 0.99, 6_000
RIGHT = jnp.array([1, 0, 0, 1, 0, 1, 1, 0, 1, 0])  # the action that advances, by place
TORSO, INDEX = nn.Sequential([nn.Dense(32), nn.relu]), hx.indices.sphere(4)
NETWORK = hx.make_hyper_network(TORSO, 2, INDEX, jnp.zeros(LENGTH), prior=hx.hyper_prior(3.0))
LOSS = hx.losses.make_td_loss(NETWORK, sigma=1e-3)
LEARNER, ACTOR = hx.make_learner(NETWORK, LOSS, optax.adam(2e-3)), hx.make_actor(INDEX, num_actions=2)
BUFFER = flashbax.make_item_buffer(STEPS, min_length=64, sample_batch_size=64)


def env_step(place, action):
    """A chain: the right action advances and the end pays 1; a wrong action ends the episode."""
    right = action == RIGHT[place]
    done = ~right | (place == LENGTH - 1)
    return jnp.where(done, 0, place + 1), jnp.float32(right & done), done


def step(carry, key):
    state, memory, place, is_first, indices = carry
    act_key, z_key, sample_key, learn_key = jax.random.split(key, 4)
    observation = jax.nn.one_hot(place, LENGTH)
    action, indices = ACTOR.act(lambda i: LEARNER.values(state, observation, i), indices, is_first, act_key)
    place, reward, done = env_step(place, action)
    discount, following = GAMMA * (1.0 - done), jax.nn.one_hot(place, LENGTH)
    z = LOSS.perturbation.sample(z_key, ())
    memory = BUFFER.add(memory, hx.Transition(observation, action, reward, discount, following, z))
    batch = hx.Batch(BUFFER.sample(memory, sample_key).experience)
    updated, _ = LEARNER.step(state, batch, learn_key)
    state = jax.tree.map(lambda x, y: jnp.where(BUFFER.can_sample(memory), x, y), updated, state)
    return (state, memory, place, done, indices), (reward, done)


def train(key):
    init_key, run_key = jax.random.split(key)
    observation, zero = jnp.zeros(LENGTH), jnp.float32(0)
    memory = BUFFER.init(hx.Transition(observation, jnp.int32(0), zero, zero, observation, jnp.zeros(4)))
    carry = (LEARNER.init(init_key), memory, jnp.int32(0), jnp.array(True), ACTOR.init(init_key))
    return jax.lax.scan(step, carry, jax.random.split(run_key, STEPS))[1]


def main(seeds: int = 4) -> np.ndarray:
    """Returns the fraction of rewarded episodes in the last tenth of training, by seed."""
    rewards, dones = jax.jit(jax.vmap(train))(jax.random.split(jax.random.key(0), seeds))
    return np.asarray(rewards[:, -STEPS // 10 :].sum(axis=1) / dones[:, -STEPS // 10 :].sum(axis=1))


if __name__ == "__main__":
    app.run(lambda _: print("rewarded episodes in the last tenth, by seed:", *main().round(2)))
