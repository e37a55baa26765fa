"""Runs an agent on bsuite: one id, an experiment, TESTING or the whole SWEEP, one process per core.

Example: python experiments/run_bsuite.py --bsuite_id=TESTING --agent=hyperagent --logdir=logs/bsuite_hyperagent

bsuite's own logging writes one csv file per id to <logdir>/csv, where bsuite.logging.csv_load and other tools find
them. results.csv has one row per id, written when it is finished, including ids that failed or cannot run on this
machine. --resume continues unfinished ids and runs those that failed or were skipped again. report.py scores and
plots one or more such folders.
"""

import common  # isort: skip  # noqa: F401  (sets the environment that jax reads)

from hyperagent_jax.experiment import bsuite
from hyperagent_jax.experiment import driver

if __name__ == "__main__":
    driver.main(bsuite.EXPERIMENT)
