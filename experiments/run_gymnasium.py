"""Runs an agent on a Gymnasium environment with discrete actions.

Example: python experiments/run_gymnasium.py --env=CartPole-v1 --agent=hyperagent --num_seeds=3
"""

import common  # isort: skip  # noqa: F401  (sets the environment that jax reads)

from hyperagent_jax.experiment import driver
from hyperagent_jax.experiment import gymnasium

if __name__ == "__main__":
    driver.main(gymnasium.EXPERIMENT)
