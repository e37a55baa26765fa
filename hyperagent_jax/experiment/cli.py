"""Flags that all scripts share, and the way a script starts and ends."""

from collections.abc import Callable, Iterable, Iterator, Sequence
import os
import pathlib
import sys
from typing import Any, NoReturn

from absl import app
from absl import flags
from absl import logging
import jax

from hyperagent_jax import errors


def define_run_flags(checkpoint_seconds: float = 60.0) -> None:
    """Defines the flags of scripts whose runs can be resumed and spread over processes."""
    flags.DEFINE_bool("resume", False, "Continue the run in --logdir from its checkpoints.")
    flags.DEFINE_bool("overwrite", False, "Delete the run in --logdir first.")
    flags.DEFINE_integer(
        "num_workers", None, "Processes; default: one per core on CPU, one on accelerators.", lower_bound=1
    )
    flags.DEFINE_float("checkpoint_seconds", checkpoint_seconds, "Time between checkpoints.", lower_bound=0.0)
    flags.DEFINE_integer(
        "retries", 3, "How often a run whose process was killed continues from its checkpoint.", lower_bound=0
    )
    flags.DEFINE_bool("progress", True, "Show a progress bar.")


def num_workers() -> int:
    """The number of processes to use."""
    return flags.FLAGS.num_workers or (num_cores() if jax.default_backend() == "cpu" else 1)


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


def print_table(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Prints rows as a table in Markdown, each as soon as it is there, and yields them."""
    for i, row in enumerate(rows):
        if i == 0:
            print("| " + " | ".join(row) + " |\n" + "|---" * len(row) + "|")
        print("| " + " | ".join(map(str, row.values())) + " |", flush=True)
        yield row


def say_no_picture() -> None:
    """Says why there is no picture."""
    print("no picture: matplotlib is not installed (pip install 'hyperagent_jax[sweep]')")


def run(main: Callable[..., int | None], commands: Sequence[str] = ()) -> None:
    """Parses flags and runs `main`, with the one of `commands` that is given if there are any.

    A UserError or bad flag ends in one line and exit code 2.
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
