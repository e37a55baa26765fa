"""Flags shared by all scripts, and how a script starts and exits."""

from collections.abc import Callable, Iterable, Iterator, Sequence
import math
import os
import pathlib
import sys
from typing import Any, NoReturn

from absl import app
from absl import flags
from absl import logging
import jax

from hyperagent_jax import errors
from hyperagent_jax.experiment import launching

# Modules of this package with a function `run_tasks`, by launcher name.
LAUNCHERS = {"local": "workers", "devices": "on_devices", "ray": "on_ray", "slurm": "on_slurm"}


def define_run_flags(checkpoint_seconds: float = 60.0) -> None:
    """Defines the flags of scripts whose runs can be resumed and spread over processes."""
    flags.DEFINE_bool("resume", False, "Continue the run in --logdir from its checkpoints.")
    flags.DEFINE_bool("overwrite", False, "Delete the existing run in --logdir first.")
    flags.DEFINE_integer(
        "num_workers",
        None,
        "Number of processes, or devices; default: one process per core on CPU, all local accelerators otherwise.",
        lower_bound=1,
    )
    flags.DEFINE_float("checkpoint_seconds", checkpoint_seconds, "Seconds between checkpoints.", lower_bound=0.0)
    flags.DEFINE_integer(
        "retries", 3, "How often to restart a run from its checkpoint if its process was killed.", lower_bound=0
    )
    flags.DEFINE_bool("tensorboard", False, "Write curves and results to <logdir>/tensorboard, too.")
    flags.DEFINE_bool("progress", True, "Show a progress bar.")
    flags.DEFINE_enum(
        "launcher",
        "local",
        list(LAUNCHERS),
        "Where to run: local processes, the devices of this process (the default with several accelerators), "
        "Ray, or Slurm jobs.",
    )
    flags.DEFINE_integer(
        "tasks_per_job", None, "Runs that a Ray or Slurm job executes one after the other.", lower_bound=1
    )
    flags.DEFINE_float("cpus_per_task", 1.0, "Cores per Ray or Slurm job.", lower_bound=0.0)
    flags.DEFINE_float(
        "gpus_per_task", 0.0, "GPUs per job; on Ray, a fraction lets several jobs share one.", lower_bound=0.0
    )
    flags.DEFINE_string("ray_address", None, "Ray cluster, such as auto or host:6379; default: start one locally.")
    flags.DEFINE_string("slurm_cluster", "slurm", "slurm, or local to try out jobs on this machine.")
    flags.DEFINE_integer(
        "slurm_minutes", 240, "Time limit of a job, which then continues in a new one.", lower_bound=1
    )
    flags.DEFINE_string("slurm_partition", None, "Slurm partition; default: the cluster's.")
    flags.DEFINE_list("slurm_options", [], "Additional sbatch settings, such as account=x,qos=low,mem=8GB.")


def launcher() -> str:
    """Returns the name of the launcher; one process serves all local accelerators."""
    is_local = flags.FLAGS.launcher == "local"
    has_several = is_local and jax.default_backend() != "cpu" and jax.local_device_count() > 1
    return "devices" if has_several else flags.FLAGS.launcher


def num_workers() -> int:
    """Returns the number of processes, or of devices, to use."""
    if launcher() == "devices":
        return min(flags.FLAGS.num_workers or jax.local_device_count(), jax.local_device_count())
    return flags.FLAGS.num_workers or (num_cores() if jax.default_backend() == "cpu" else 1)


def _is_cluster() -> bool:
    # A program without the flags of launchers does its work itself.
    return "launcher" in flags.FLAGS and flags.FLAGS.launcher in ("ray", "slurm")


def leave_accelerators_to_jobs() -> None:
    """Keeps this process on the CPU if jobs do the work: accelerators are theirs, and its host may have none."""
    if _is_cluster():
        jax.config.update("jax_platforms", "cpu")


def num_accelerators() -> int:
    """Returns the number of accelerators over which the seeds of a problem are divided; 0 if runs use the CPU."""
    if _is_cluster():  # a job uses one
        return int(flags.FLAGS.gpus_per_task > 0)
    return 0 if jax.default_backend() == "cpu" else jax.local_device_count()


def cluster_settings(folder: str) -> launching.ClusterSettings:
    """Returns the cluster settings that the flags give."""
    values = flags.FLAGS
    for name in ("cpus_per_task", "gpus_per_task"):
        if not math.isfinite(value := getattr(values, name)):
            raise errors.UserError(f"--{name} must be a finite number, got {value}")
    options = dict(partition=values.slurm_partition) if values.slurm_partition else {}
    for option in values.slurm_options:
        name, is_pair, value = option.partition("=")
        if not is_pair or not name:
            raise errors.UserError(f"--slurm_options={option} must have the form name=value")
        options[name.strip().replace("-", "_").removeprefix("slurm_")] = value
    root = str(pathlib.Path(__file__).resolve().parents[2])
    starts_ray = values.launcher == "ray" and not values.ray_address
    return launching.ClusterSettings(
        folder=str(pathlib.Path(folder).resolve()),
        address=values.ray_address if values.launcher == "ray" else values.slurm_cluster,
        cpus_per_task=values.cpus_per_task,
        gpus_per_task=values.gpus_per_task,
        tasks_per_job=values.tasks_per_job,
        most_jobs=values.num_workers,
        minutes=values.slurm_minutes,
        options=options,
        environment={
            # As in `experiments/common.py`; the tasks of a clone run that clone, installed or not.
            **{name: os.environ[name] for name in ("NPROC", "TF_CPP_MIN_LOG_LEVEL") if name in os.environ},
            "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
            **(launching.RAY_ON_LOOPBACK if starts_ray else {}),
        },
    )


def require_backend() -> None:
    """Raises a one-line error if jax cannot use the devices that it was told to use."""
    try:
        jax.default_backend()
    except (RuntimeError, AssertionError) as error:  # jax asserts that there is a device of an installed platform
        asked = os.environ.get("JAX_PLATFORMS", "")
        raise errors.UserError(
            f"jax cannot use JAX_PLATFORMS={asked!r} here ({launching.describe(error)}): unset it, or install "
            "jax for that platform"
        ) from error


def num_cores() -> int:
    """Returns the number of cores this process may use; all cores if the system does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def use_compilation_cache() -> None:
    """Keeps compiled programs on disk, so that a second start compiles almost nothing."""
    cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    folder = pathlib.Path(cache) / "hyperagent_jax"
    if jax.config.values["jax_compilation_cache_dir"] is None:
        jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def print_table(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Prints rows as a Markdown table, each as soon as it is available, and yields them."""
    for i, row in enumerate(rows):
        if i == 0:
            print("| " + " | ".join(row) + " |\n" + "|---" * len(row) + "|")
        print("| " + " | ".join(map(str, row.values())) + " |", flush=True)
        yield row


def say_no_picture() -> None:
    """Explains why no picture was drawn."""
    print("no picture: matplotlib is not installed (pip install 'hyperagent_jax[sweep]')")


def run(main: Callable[..., int | None], commands: Sequence[str] = ()) -> None:
    """Parses flags and runs `main`, passing it the chosen one of `commands` if there are any.

    A UserError or a bad flag prints one line and exits with code 2.
    """

    def guarded(argv: list[str]) -> int | None:
        logging.set_verbosity(logging.WARNING)
        given = argv[1 : 1 + bool(commands)]
        if commands and (not given or given[0] not in commands):
            problem = f"unknown command {given[0]!r}" if given else "no command"
            fail(f"{problem}; choose one of {', '.join(commands)}")
        if len(argv) > 1 + len(given):
            fail(f"unexpected argument {argv[1 + len(given)]!r}; settings are given as --name=value")
        try:
            return main(*given)
        except errors.UserError as error:
            fail(str(error))
        except KeyboardInterrupt:  # nothing to save yet
            return 130

    def parse(argv: list[str]) -> list[str]:
        try:
            return flags.FLAGS(argv)
        except flags.Error as error:
            fail(f"{' '.join(str(error).split())} (--help lists all flags)")

    if any(argument in ("--help", "-help", "-h", "--helpfull", "--helpshort") for argument in sys.argv):
        app.run(guarded)
    app.run(guarded, flags_parser=parse)


def fail(message: str) -> NoReturn:
    """Exits with one line on standard error."""
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)
