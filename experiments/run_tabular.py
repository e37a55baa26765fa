"""The paper's theory as experiments: each command writes tables, a picture and its configuration.

Example: python experiments/run_tabular.py lemma
         python experiments/run_tabular.py all --logdir=logs/tabular
"""

from collections.abc import Callable
import dataclasses
import pathlib
import time
from typing import Any, NamedTuple

import common  # isort: skip  # noqa: F401  (sets the environment that jax reads)

from absl import flags
import jax

from hyperagent_jax import config as config_lib
from hyperagent_jax import results
from hyperagent_jax.analysis.deep_sea import read
from hyperagent_jax.analysis.deep_sea import stats
from hyperagent_jax.experiment import cli
from hyperagent_jax.experiment import fingerprint
from hyperagent_jax.experiment import run_directory
from hyperagent_jax.tabular.studies import deep_sea
from hyperagent_jax.tabular.studies import lemma
from hyperagent_jax.tabular.studies import posterior
from hyperagent_jax.tabular.studies import propagation
from hyperagent_jax.tabular.studies import regret
from hyperagent_jax.tabular.studies import speed

FLAGS = flags.FLAGS
flags.DEFINE_string("logdir", "logs/tabular", "Folder of the results; every command has a folder in it.")
flags.DEFINE_bool("overwrite", False, "Delete what is there first.")


class Study(NamedTuple):
    """Attributes: its Config, what makes its tables, and what draws them (None if there is nothing to see)."""

    config: type
    run: Callable[[Any], dict[str, list[dict]]]
    draw: Callable[..., None] | None


def _draw_deep_sea(file, tables, config) -> None:
    del tables, config
    from hyperagent_jax.analysis.deep_sea import plots

    runs, _ = read.read([str(file.parent)])
    plots.episodes_to_learn(file, "Episodes to learn on DeepSea, tabular", stats.group(runs))


def _draw_by(name: str) -> Callable[..., None]:
    def draw(file, tables, config):
        from hyperagent_jax.analysis.tabular import plots

        getattr(plots, name)(file, tables, config)

    return draw


STUDIES = {
    "lemma": Study(lemma.Config, lemma.run, _draw_by("lemma")),
    "regret": Study(regret.Config, regret.run, _draw_by("regret")),
    "deepsea": Study(deep_sea.Config, deep_sea.run, _draw_deep_sea),
    "propagation": Study(propagation.Config, propagation.run, _draw_by("propagation")),
    "posterior": Study(posterior.Config, posterior.run, _draw_by("posterior")),
    "bench": Study(speed.Config, speed.run, None),
}
CONFIGS = {name: study.config for name, study in STUDIES.items()}
config_lib.define_flags(CONFIGS)
flags.adopt_module_key_flags(config_lib)  # so that --help lists them


def _run(name: str, config: Any) -> None:
    study, begin = STUDIES[name], time.perf_counter()
    identity = {"experiment": f"tabular_{name}", "config": dataclasses.asdict(config)}
    folder = pathlib.Path(FLAGS.logdir) / name
    directory = run_directory.RunDirectory(
        str(folder), fingerprint.make(identity, config=config), resume=None, overwrite=FLAGS.overwrite
    )
    tables = study.run(config)
    for table, rows in tables.items():
        rows = [{key: _shortened(value) for key, value in row.items()} for row in rows]
        results.write_csv(folder / f"{table}.csv", rows[0], rows)
    if study.draw is not None:
        try:
            study.draw(folder / f"{name}.png", tables, config)
        except ImportError:
            cli.say_no_picture()
    else:
        for row in tables["bench"]:
            print(", ".join(f"{key} {_shortened(value)}" for key, value in row.items()))
    directory.close()
    print(f"{name}: {time.perf_counter() - begin:.0f} s; {folder}", flush=True)


def _shortened(value: Any) -> Any:
    """Floats with six digits, which is what float32 has."""
    return value if isinstance(value, bool | int | str) else f"{float(value):.6g}"


def main(command: str) -> int:
    # Only `bench` asks for more than one; must be said before anything else is asked of jax.
    jax.config.update("jax_num_cpu_devices", cli.num_cores())
    names = list(STUDIES) if command == "all" else [command]
    configs = {name: config_lib.from_flags(name, CONFIGS[name], CONFIGS, FLAGS, kind="command") for name in names}
    cli.use_compilation_cache()
    for name, config in configs.items():
        _run(name, config)
    return 0


if __name__ == "__main__":
    cli.run(main, [*STUDIES, "all"])
