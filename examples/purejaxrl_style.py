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


def env_step(place, action):
    """A chain: the right action advances and the end pays 1; a wrong action ends the episode."""
    right = action == RIGHT[place]
    reward = jnp.float32(right & (place == LENGTH - 1))
    done = ~right | (place == LENGTH - 1)
    return jnp.where(done, 0, place + 1), reward, done


def make_train():
    index = hx.indices.sphere(4)
    network = hx.make_hyper_network(
        nn.Sequential([nn.Dense(32), nn.relu]), 2, index, jnp.zeros(LENGTH), prior=hx.hyper_prior(3.0)
    )
    learner = hx.make_learner(network, hx.losses.make_td_loss(network, sigma=1e-3), optax.adam(2e-3))
    actor, perturbation = hx.make_actor(index, num_actions=2), hx.indices.scaled_sphere(4)
    buffer = flashbax.make_item_buffer(STEPS, min_length=64, sample_batch_size=64)
    observe = lambda place: jax.nn.one_hot(place, LENGTH)

    def step(carry, key):
        state, memory, place, is_first, indices = carry
        act_key, z_key, sample_key, learn_key = jax.random.split(key, 4)
        noise = actor.draw(act_key)
        indices = actor.next_indices(indices, is_first, noise)
        action = actor.select(learner.values(state, observe(place), indices), noise, state.count)
        following, reward, done = env_step(place, action)
        discount, z = GAMMA * (1.0 - done), perturbation.sample(z_key, ())
        item = hx.Transition(observe(place), action, reward, discount, observe(following), z)
        memory = buffer.add(memory, item)
        batch = hx.Batch(buffer.sample(memory, sample_key).experience)
        updated, _ = learner.step(state, batch, learn_key)
        state = jax.tree.map(lambda x, y: jnp.where(buffer.can_sample(memory), x, y), updated, state)
        return (state, memory, following, done, indices), (reward, done)

    def train(key):
        init_key, run_key = jax.random.split(key)
        zeros = hx.Transition(observe(0), jnp.int32(0), 0.0, 0.0, observe(0), jnp.zeros(4))
        memory = buffer.init(jax.tree.map(jnp.float32, zeros)._replace(a_tm1=jnp.int32(0)))
        carry = (learner.init(init_key), memory, jnp.int32(0), jnp.array(True), jnp.zeros((1, 4)))
        return jax.lax.scan(step, carry, jax.random.split(run_key, STEPS))[1]

    return train


def main(seeds: int = 4) -> np.ndarray:
    """Returns the share of rewarded episodes in the last tenth of training, by seed."""
    rewards, dones = jax.jit(jax.vmap(make_train()))(jax.random.split(jax.random.key(0), seeds))
    last = slice(-STEPS // 10, None)
    return np.asarray(rewards[:, last].sum(axis=1) / dones[:, last].sum(axis=1))


if __name__ == "__main__":
    app.run(lambda _: print("rewarded episodes in the last tenth, by seed:", *main().round(2)))
