"""Runs an agent in a JAX environment: explore/, pgx's MinAtar, gymnax, navix (see --env=list), or your own.

Example: python experiments/run_jax.py --env=minatar/breakout --preset=minatar --num_seeds=2
         python experiments/run_jax.py --env=gymnax/MountainCar-v0 --agent=ddqn --steps=100000
         python experiments/run_jax.py --env=my_module:make_environment --steps=100000
"""

import common  # isort: skip  # noqa: F401  (sets the environment that jax reads)

from hyperagent_jax.experiment import driver
from hyperagent_jax.experiment import jax_env

if __name__ == "__main__":
    driver.main(jax_env.EXPERIMENT)
