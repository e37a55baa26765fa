"""Flags that all scripts share, and the way a script starts and ends."""

from collections.abc import Callable, Iterable, Iterator, Sequence
import os
import pathlib
import shlex
import sys
from typing import Any, NoReturn

from absl import app
from absl import flags
from absl import logging
import jax

from hyperagent_jax import errors
from hyperagent_jax import types
from hyperagent_jax.experiment import base


def define_run_flags(checkpoint_seconds: float = 60.0) -> None:
    """Defines the flags of scripts whose runs can be resumed and spread over processes."""
    flags.DEFINE_bool("resume", False, "Continue the run in --logdir from its checkpoints.")
    flags.DEFINE_bool("overwrite", False, "Delete the run in --logdir first.")
    flags.DEFINE_integer(
        "num_workers", None, "Processes; default: one per core on CPU, one on accelerators.", lower_bound=1
    )
    flags.DEFINE_float("checkpoint_seconds", checkpoint_seconds, "Time between checkpoints.", lower_bound=0.0)
    flags.DEFINE_bool("progress", True, "Show a progress bar.")


def define_seed_flags() -> None:
    """Defines the flags that `seeds` reads."""
    flags.DEFINE_integer("seed", 0, "First seed.", lower_bound=0, upper_bound=types.MAX_SEED)
    flags.DEFINE_integer(
        "num_seeds", 1, "Number of seeds: seed, seed + 1, ...", lower_bound=1, upper_bound=1_000_000
    )


def seeds() -> list[int]:
    """The seeds to run."""
    last = flags.FLAGS.seed + flags.FLAGS.num_seeds - 1
    if last > types.MAX_SEED:
        raise errors.UserError(f"--seed and --num_seeds go up to {last}; {types.MAX_SEED} is the largest")
    return list(range(flags.FLAGS.seed, last + 1))


def num_workers() -> int:
    """The number of processes to use."""
    if flags.FLAGS.num_workers is not None:
        return flags.FLAGS.num_workers
    return num_cores() if jax.default_backend() == "cpu" else 1


def num_cores() -> int:
    """Number of cores this process may use; where a system does not tell, all there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def use_compilation_cache() -> None:
    """Keeps compiled programs on disk, so that a second start compiles next to nothing."""
    cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    folder = pathlib.Path(cache) / "hyperagent_jax"
    if jax.config.values["jax_compilation_cache_dir"] is None:
        jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def command(experiment: base.Experiment, task: base.Task, seed: int) -> str:
    """The command that gives a seed's row by itself."""
    columns = {"agent": task.agent, **task.columns_of(seed)}
    first = {name: columns.pop(name) for name in ("agent", experiment.problem, "seed") if name in columns}
    settings = {**first, **columns, **experiment.changed_settings(task)}
    arguments = [f"--{name}={value}" for name, value in settings.items() if value != ""]
    name = task.name if task.is_cell else "_".join([experiment.name, *first.values()]).replace("/", "-")
    return shlex.join(["python", f"experiments/{experiment.script}", *arguments, f"--logdir=logs/{name}"])


def print_table(fields: Sequence[str], rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Prints rows as a table in Markdown, each as soon as it is there, and yields them."""
    print("| " + " | ".join(fields) + " |\n" + "|---" * len(fields) + "|")
    for row in rows:
        print("| " + " | ".join(str(row[field]) for field in fields) + " |", flush=True)
        yield row


def say_no_picture() -> None:
    """Says why there is no picture."""
    print("no picture: matplotlib is not installed (pip install 'hyperagent_jax[sweep]')")


def exit_code(completed: bool) -> int:
    """The exit code of a run that was completed or stopped; says how to continue one that was stopped."""
    if completed:
        return 0
    print("stopped; the same command with --resume continues from here", file=sys.stderr)
    return 130


def run(main: Callable[..., int | None], commands: Sequence[str] = ()) -> None:
    """Parses flags and runs `main`; a UserError or bad flag ends in one line and exit code 2.

    Args:
        main: the program; takes the command if there are any.
        commands: what the one argument that is not a flag may be.
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
        except KeyboardInterrupt:  # before there was anything to save
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
    """Ends the program with one line on standard error."""
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)
