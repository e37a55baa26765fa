"""Your own environment as pure JAX functions: environment, replay and learning on device, all seeds at once.

Example: python examples/jax_environment.py --length=20 --seeds=4
"""

from absl import app
from absl import flags
import jax
import jax.numpy as jnp
import numpy as np

import hyperagent_jax as hx
from hyperagent_jax.environments import base
from hyperagent_jax.runners import scan


def make_lock(length: int) -> base.Environment:
    """A lock of `length` digits, 0 and 1 in turn: a wrong one ends the episode, the last right one pays 1.

    The state is the number of right digits so far, and so is the observation. Nothing here is random; what is
    would come from `draw`, whose numbers `reset` and `step` get as `noise`.
    """

    def show(place, reward=0.0, last=False):
        timestep = base.TimeStep(place, jnp.float32(reward), jnp.where(last, 0.0, 1.0), jnp.asarray(last))
        return place, timestep

    def reset(place, noise):
        return show(jnp.zeros_like(place))

    def step(place, action, noise):
        is_right = action == place % 2
        opened = is_right & (place == length - 1)
        return show(jnp.minimum(place + 1, length - 1), opened, opened | ~is_right)

    return base.Environment(hx.EnvironmentSpec(2, (), length), reset, lambda key: (), step)


def main(length: int = 20, seeds: int = 4, steps: int = 20_000) -> np.ndarray:
    """Trains `seeds` agents for `steps` steps, rounded up to tens, side by side.

    Returns:
        How often each opened the lock in its last tenth.
    """
    environment = make_lock(length)
    agent = hx.agents.make("hyperagent", environment.spec, replay_capacity=steps)
    runner = scan.make_runner(agent, environment)
    keys = jax.random.split(jax.random.key(0), seeds)
    states = jax.jit(jax.vmap(runner.init, (0, None)))(keys, jnp.zeros((), jnp.int32))
    run = jax.jit(runner.run, donate_argnums=0)
    tenth = -(-steps // 10)
    for k in range(10):
        states, metrics = run(states, k * tenth, tenth)
        opened = np.asarray(metrics.returns / metrics.episodes)
        shares = " ".join(f"{share:4.0%}" for share in opened)
        print(f"{(k + 1) * tenth:>8,} steps: episodes that opened it, by agent: {shares}")
    return opened


if __name__ == "__main__":
    LENGTH = flags.DEFINE_integer("length", 20, "Digits of the lock.", lower_bound=1)
    SEEDS = flags.DEFINE_integer("seeds", 4, "Number of agents.", lower_bound=1)
    STEPS = flags.DEFINE_integer("steps", 20_000, "Interactions of each.", lower_bound=10)

    def run_with_flags(_):
        main(LENGTH.value, SEEDS.value, STEPS.value)

    app.run(run_with_flags)
