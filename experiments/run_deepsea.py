"""Runs an agent on DeepSea by the paper's protocol.

Example: python experiments/run_deepsea.py --size=20 --num_seeds=10
"""

import common  # isort: skip  # noqa: F401  (sets the environment that jax reads)

from hyperagent_jax.experiment import deep_sea
from hyperagent_jax.experiment import driver

if __name__ == "__main__":
    driver.main(deep_sea.EXPERIMENT)
