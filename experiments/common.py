"""What experiment scripts share: the process's settings, flags, and the way rows and errors are shown."""

from collections.abc import Callable, Iterable, Sequence
import os
import pathlib
import sys

# Networks this small run fastest on one thread: XLA's thread pool costs more than it gives. Must be set
# before jax is imported; set NPROC yourself to overrule it.
os.environ.setdefault("NPROC", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# A clone's scripts run that clone, installed or not.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from absl import app  # noqa: E402
from absl import flags  # noqa: E402
from absl import logging  # noqa: E402
import jax  # noqa: E402
import tqdm  # noqa: E402

from hyperagent_jax import errors  # noqa: E402
from hyperagent_jax import types  # noqa: E402
from hyperagent_jax.runners import deep_sea  # noqa: E402


def define_run_flags() -> None:
    """Defines the flags of scripts whose runs can be resumed and spread over processes."""
    flags.DEFINE_bool("resume", False, "Go on with the run in --logdir, from its checkpoints.")
    flags.DEFINE_bool("overwrite", False, "Delete the run in --logdir first.")
    flags.DEFINE_integer(
        "num_workers", None, "Processes; default: one per core on CPU, one on accelerators.", lower_bound=1
    )
    flags.DEFINE_float("checkpoint_seconds", 60.0, "Time between checkpoints.", lower_bound=0.0)
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
    if jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def progress_bar(total: int, unit: str, done: int = 0) -> tqdm.tqdm:
    """A bar on standard error that shows how many of `total` are done, unless --noprogress was given."""
    return tqdm.tqdm(
        initial=done,
        total=total,
        unit=unit,
        unit_scale=total >= 10_000,
        disable=not flags.FLAGS.progress,
        mininterval=0.2,
        smoothing=0.05,
        dynamic_ncols=True,
        file=sys.stderr,
    )


def run_task(task: deep_sea.Task, report, should_stop) -> None:
    """`deep_sea.run_task` in a process that may have just begun."""
    use_compilation_cache()
    deep_sea.run_task(task, report, should_stop)


def label(row: dict, settings: Iterable[str] = ()) -> str:
    """What was run, from a row's agent, size, seed and those of the named settings that are not blank."""
    named = "".join(f" {name}={row[name]}" for name in settings if row[name] != "")
    return f"{row['agent']} size {row['size']} seed {row['seed']}{named}"


def summary(row: dict, settings: Iterable[str] = ()) -> str:
    """One line about a row of results.csv; `settings` names further columns to show."""
    if row.get("error"):
        return f"{label(row, settings)}: ERROR {row['error']}"
    outcome = (
        f"solved in {row['episodes_to_learn']} episodes"
        if str(row["solved"]) == "True"
        else f"NOT solved, return {row['final_return']}"
    )
    return (
        f"{label(row, settings)}: {outcome} "
        f"({int(row['interactions']):,} interactions, {row['train_seconds']} s, "
        f"{float(row['interactions_per_second']):,.0f}/s, compile {row['compile_seconds']} s)"
    )


def say_no_picture() -> None:
    """Says why there is no picture."""
    print("no picture: matplotlib is not installed (pip install 'hyperagent_jax[sweep]')")


def exit_code(completed: bool) -> int:
    """The exit code of a run that was completed or stopped; says how to go on with one that was stopped."""
    if completed:
        return 0
    print("stopped; the same command with --resume goes on from here", file=sys.stderr)
    return 130


def run(main: Callable[..., int | None], commands: Sequence[str] = ()) -> None:
    """Parses flags and runs `main`; a UserError or bad flag ends in one line and exit code 2.

    Args:
        main: the program; takes the command if there are any.
        commands: what the one argument that is no flag may be.
    """

    def guarded(argv):
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

    def parse(argv):
        try:
            return flags.FLAGS(argv)
        except flags.Error as error:
            fail(f"{' '.join(str(error).split())} (--help lists all flags)")

    if any(argument in ("--help", "-help", "-h", "--helpfull", "--helpshort") for argument in sys.argv):
        app.run(guarded)
    app.run(guarded, flags_parser=parse)


def fail(message: str) -> None:
    """Ends the program with one line on standard error."""
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)
