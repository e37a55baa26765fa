"""Runs a grid of agents, problems, seeds and any other settings of an experiment, one process per core.

Example: python experiments/sweep.py --grid='{"agent": "hyperagent", "size": [10, 20], "seed": [0, 1, 2],
"index_dim": [1, 4, 16]}' --logdir=logs/my_sweep
         python experiments/sweep.py --experiment=gymnasium --grid='{"env": "CartPole-v1", "seed": [0, 1]}'

Keys are agent, seed, the settings of the agents, and those of the experiment: its size, game, bsuite_id or env,
and its protocol (listed by the --help of its script). A list of grids runs all of them; keys that are missing from
a grid have their defaults there. Settings that an agent does not have are left blank. Each run is one row of
results.csv, written as soon as it is finished; a failed run is a row too, whose `error` gives the reason. --resume
continues unfinished runs from their checkpoints, runs those with an error again, and accepts a larger grid: more
values for the same keys. Sweeps of jax and gymnasium also write curve.csv, with the columns that identify runs;
for the others it would be too large, but the command in a run's row reproduces its curve.
"""

import common  # isort: skip  # noqa: F401  (sets the environment that jax reads)

from absl import flags

from hyperagent_jax import errors
from hyperagent_jax.experiment import base
from hyperagent_jax.experiment import cli
from hyperagent_jax.experiment import driver
from hyperagent_jax.experiment import sweep

FLAGS = flags.FLAGS
flags.DEFINE_string(
    "grid",
    None,
    "The grid: a JSON object that maps names of settings to lists of values (or single values), a list of such "
    "objects, or the path of a file that contains one of these.",
)
flags.DEFINE_string("experiment", "deepsea", f"What to run: {', '.join(base.NAMES)}.")
flags.DEFINE_string("logdir", "logs/sweep", "Folder of the results.")
cli.define_run_flags()
flags.adopt_module_key_flags(cli)  # so that --help lists them


def main() -> int:
    if FLAGS.grid is None:
        raise errors.UserError("--grid is missing: give a JSON object of settings, or the path of a file with one")
    return driver.execute(sweep.plan(base.get(FLAGS.experiment), sweep.read(FLAGS.grid), FLAGS.logdir))


if __name__ == "__main__":
    cli.run(main)
