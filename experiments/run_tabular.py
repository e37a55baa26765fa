"""The paper's theory as experiments: each command writes tables, a picture and its configuration.

Example: python experiments/run_tabular.py lemma
         python experiments/run_tabular.py all --logdir=logs/tabular
"""

import dataclasses
import os
import pathlib
import time
from typing import Any

import common  # isort: skip  # noqa: F401  (sets the environment that jax reads)

from absl import flags
import jax
import numpy as np

from hyperagent_jax import config as config_lib
from hyperagent_jax import errors
from hyperagent_jax import host_memory
from hyperagent_jax import results
from hyperagent_jax.analysis.deep_sea import read
from hyperagent_jax.analysis.deep_sea import stats
from hyperagent_jax.experiment import cli
from hyperagent_jax.experiment import fingerprint
from hyperagent_jax.experiment import run_directory
from hyperagent_jax.tabular.studies import chain
from hyperagent_jax.tabular.studies import deep_sea
from hyperagent_jax.tabular.studies import lemma
from hyperagent_jax.tabular.studies import posterior
from hyperagent_jax.tabular.studies import propagation
from hyperagent_jax.tabular.studies import regret
from hyperagent_jax.tabular.studies import speed
from hyperagent_jax.tabular.studies import uncertainty

FLAGS = flags.FLAGS
# The chain's agents have 50 features per state, learned and fixed.
_CHAIN_FLOATS = 100
_SMALLER = "lower its numbers of states, seeds, samples, transitions, episodes or indices, or --index_dim"
_NOT_FINITE = ("nan", "inf", "-inf")
flags.DEFINE_string("logdir", "logs/tabular", "Folder of the results, with a subfolder for every command.")
flags.DEFINE_bool("overwrite", False, "Delete existing results first.")


# Each has a Config, and a function `run` that returns its tables.
STUDIES: dict[str, Any] = {
    "lemma": lemma,
    "regret": regret,
    "deepsea": deep_sea,
    "propagation": propagation,
    "posterior": posterior,
    "chain": chain,
    "uncertainty": uncertainty,
    "bench": speed,
}
CONFIGS = {name: study.Config for name, study in STUDIES.items()}
config_lib.define_flags(CONFIGS)
flags.adopt_module_key_flags(config_lib)  # so that --help lists them


def _draw(name: str, folder: pathlib.Path, tables: dict[str, list[dict]], config: Any) -> None:
    file = folder / f"{name}.png"
    if name == "deepsea":
        from hyperagent_jax.analysis.deep_sea import plots as deep_sea_plots

        runs, _ = read.read([str(folder)])
        deep_sea_plots.episodes_to_learn(file, "Episodes to learn on DeepSea, tabular", stats.group(runs))
    else:
        from hyperagent_jax.analysis.tabular import plots

        plots.PLOTS[name](file, tables, config)


def _run(name: str, config: Any) -> None:
    begin = time.perf_counter()
    identity = {"experiment": f"tabular_{name}", "config": dataclasses.asdict(config)}
    folder = pathlib.Path(FLAGS.logdir) / name
    directory = run_directory.RunDirectory(
        str(folder), fingerprint.make(identity, config=config), resume=None, overwrite=FLAGS.overwrite
    )
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # is told below
            tables = STUDIES[name].run(config)
    except (RuntimeError, MemoryError) as error:
        if not host_memory.is_shortage(error):
            raise
        raise errors.UserError(f"{name} does not fit in memory: {_SMALLER}") from error
    if not all(tables.values()):
        raise errors.UserError(f"{name}: these settings leave nothing to run")
    # Floats with six digits, the precision of float32.
    texts = {
        table: [
            {x: y if isinstance(y, bool | int | str) else f"{float(y):.6g}" for x, y in row.items()}
            for row in rows
        ]
        for table, rows in tables.items()
    }
    for table, rows in texts.items():
        if any(y in _NOT_FINITE for row in rows for y in row.values()):
            raise errors.UserError(
                f"{name}: {table} would have numbers that are not finite: give less extreme settings"
            )
    for table, rows in texts.items():
        results.write_csv(folder / f"{table}.csv", rows[0], rows)
        if name == "bench":  # it has no picture
            for row in rows:
                print(", ".join(f"{key} {value}" for key, value in row.items()))
    if name != "bench":
        try:
            _draw(name, folder, tables, config)
        except ImportError:
            cli.say_no_picture()
    directory.close()
    print(f"{name}: {time.perf_counter() - begin:.0f} s; {folder}", flush=True)


def _least_bytes(config: Any) -> int:
    """Returns a lower bound on the memory of an experiment: its MDPs, records of episodes, indices or samples."""

    def count(name: str) -> int:
        return getattr(config, name, 1)

    states = max(getattr(config, "sizes", ()), default=1) ** 2 if hasattr(config, "sizes") else count("num_states")
    mdps = count("horizon") * states**2 * count("num_actions")
    torso = _CHAIN_FLOATS * getattr(config, "length", 0)
    index_dim = max([count("index_dim"), *getattr(config, "index_dims", ())])
    of_a_seed = max(mdps, torso, count("num_episodes"), count("num_ois"), index_dim)
    return 4 * max(
        count("num_seeds") * of_a_seed, count("num_samples") * index_dim, count("num_transitions") * index_dim
    )


def main(command: str) -> int:
    # On a CPU every core is a device, unless the user asks for another number; this is set before jax is used.
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", cli.num_cores())
    names = list(STUDIES) if command == "all" else [command]
    configs = {name: config_lib.from_flags(name, CONFIGS, FLAGS, kind="command") for name in names}
    cli.require_backend()
    cli.use_compilation_cache()
    for name, config in configs.items():
        host_memory.require(_least_bytes(config), name, _SMALLER)
    for name, config in configs.items():
        _run(name, config)
    return 0


if __name__ == "__main__":
    cli.run(main, [*STUDIES, "all"])
