"""HyperAgent's parts in your own loop, with your own torso, environment, replay and optimiser."""

from absl import app
from absl import flags
import dm_env
import flax.linen as nn
import jax
import numpy as np
import optax

import hyperagent_jax as hx


class Tightrope(dm_env.Environment):
    """Eight steps, alternately left and right: a wrong step ends the episode, the last correct one pays 1."""

    observation_spec = lambda self: dm_env.specs.Array((9,), float)
    action_spec = lambda self: dm_env.specs.DiscreteArray(2)

    def reset(self):
        self._place = 0
        return dm_env.restart(np.eye(9)[0])

    def step(self, action):
        fell, self._place = action != self._place % 2, self._place + 1
        make = dm_env.termination if fell or self._place == 8 else dm_env.transition
        return make(float(self._place == 8 and not fell), np.eye(9)[self._place])


def main(steps: int = 1000, seed: int = 0) -> float:
    """Trains for `steps` interactions and returns the return of a greedy episode, at most 1."""
    environment, replay, rng, index = Tightrope(), [], np.random.default_rng(seed), hx.indices.sphere(4)
    network = hx.make_hyper_network(nn.Sequential([nn.Dense(32), nn.tanh]), 2, index, np.zeros(9))
    loss = hx.losses.make_td_loss(network, sigma=0.01)
    learner, actor = hx.make_learner(network, loss, optax.adam(3e-3)), hx.make_actor(index, num_actions=2)
    learn, (init_key, run_key) = jax.jit(learner.step), jax.random.split(jax.random.key(seed))

    @jax.jit
    def act(state, observation, indices, is_first, key):
        action, indices = actor.act(lambda i: learner.values(state, observation, i), indices, is_first, key)
        return action, indices, loss.perturbation.sample(jax.random.fold_in(key, 1), ())

    state, indices, step = learner.init(init_key), actor.init(init_key), environment.reset()
    for act_key, learn_key in jax.random.split(run_key, (steps, 2)):
        action, indices, z = act(state, step.observation, indices, step.first(), act_key)
        o_tm1, step = step.observation, environment.step(int(action))
        replay.append(hx.Transition(o_tm1, action, step.reward, 0.99 * step.discount, step.observation, z))
        rows = [replay[i] for i in rng.integers(len(replay), size=32)]
        state, _ = learn(state, hx.Batch(jax.tree.map(lambda *x: np.stack(x), *rows)), learn_key)
        step = environment.reset() if step.last() else step
    step, variables = environment.reset(), learner.variables(state)
    while not step.last():  # greedy with respect to the posterior mean
        step = environment.step(int(hx.posterior.mean(network, variables, step.observation).argmax()))
    return step.reward  # all earlier rewards are zero


if __name__ == "__main__":
    STEPS = flags.DEFINE_integer("steps", 1000, "Number of interactions.")
    app.run(lambda _: print(f"greedy return: {main(STEPS.value)}"))
