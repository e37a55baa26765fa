"""What all experiment scripts share: the process's settings and the way errors are shown."""

from collections.abc import Callable
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

from hyperagent_jax import errors  # noqa: E402


def use_compilation_cache() -> None:
    """Keeps compiled programs on disk, so that a second start compiles next to nothing."""
    cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    folder = pathlib.Path(cache) / "hyperagent_jax"
    if jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def run(main: Callable[[], int | None]) -> None:
    """Parses flags and runs `main`; a UserError or bad flag ends in one line and exit code 2."""

    def guarded(argv):
        logging.set_verbosity(logging.WARNING)
        if len(argv) > 1:
            fail(f"unexpected argument {argv[1]!r}; settings are given as --name=value")
        try:
            return main()
        except errors.UserError as error:
            fail(str(error))

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
