"""Runs an agent on Atari games by the paper's protocol.

Examples: python experiments/run_atari.py --game=Pong --steps=100000
          python experiments/run_atari.py --game=all26 --num_seeds=5 --agent=ddqn --logdir=logs/ddqn
"""

import common  # isort: skip  # noqa: F401  (sets the environment that jax reads)

from hyperagent_jax.experiment import atari
from hyperagent_jax.experiment import driver

if __name__ == "__main__":
    driver.main(atari.EXPERIMENT)
