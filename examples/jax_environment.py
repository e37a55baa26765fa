"""Your own environment as pure JAX functions: environment, replay and learning on device, all seeds at once.

Example: python examples/jax_environment.py --length=20 --seeds=4
         python experiments/run_jax.py --env=examples.jax_environment:make_lock --steps=20000 --eval_every=2000
"""

from absl import app
from absl import flags
import jax
import jax.numpy as jnp
import numpy as np

import hyperagent_jax as hx
from hyperagent_jax.environments import base
from hyperagent_jax.runners import scan


def make_lock(length: int = 20) -> base.Environment:
    """A lock of `length` digits, alternately 0 and 1: a wrong digit ends the episode, the last correct one pays 1.

    State and observation are the number of correct digits so far. The lock jams (the episode is truncated) before
    the third digit in one of 50 tries: `reset` and `step` get the random numbers for this from `draw`.
    """

    def reset(place, noise):
        place = jnp.int32(0)
        return place, base.restart(place)

    def step(place, action, noise):
        is_right = action == place % 2
        opened = is_right & (place == length - 1)
        jammed = (place == 2) & (noise < 0.02)
        place = jnp.minimum(place + 1, length - 1)
        return place, base.transition(place, reward=opened, terminated=opened | ~is_right, truncated=jammed)

    return base.Environment(hx.EnvironmentSpec(2, (), length), reset, jax.random.uniform, step)


def main(length: int = 20, seeds: int = 4, steps: int = 20_000) -> np.ndarray:
    """Returns how often each of `seeds` agents opened the lock in the last tenth of `steps` steps."""
    environment = make_lock(length)
    agent = hx.agents.make("hyperagent", environment.spec, replay_capacity=steps)
    runner = scan.make_runner(agent, environment)
    states = jax.jit(jax.vmap(runner.init, (0, None)))(jax.random.split(jax.random.key(0), seeds), None)
    run = jax.jit(runner.run, donate_argnums=0)
    for start in range(0, steps, steps // 10):
        states, metrics = run(states, start, steps // 10)
        opened = np.asarray(metrics.returns / metrics.episodes)
        print(f"from step {start:>8,}: lock opened in episodes, by agent:", " ".join(f"{x:4.0%}" for x in opened))
    return opened


if __name__ == "__main__":
    LENGTH = flags.DEFINE_integer("length", 20, "Digits of the lock.", lower_bound=1)
    SEEDS = flags.DEFINE_integer("seeds", 4, "Number of agents.", lower_bound=1)
    STEPS = flags.DEFINE_integer("steps", 20_000, "Interactions per agent.", lower_bound=10)
    app.run(lambda _: print("in the last tenth:", main(LENGTH.value, SEEDS.value, STEPS.value)))
