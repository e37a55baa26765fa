"""Settings of the whole test suite; they must be in place before jax is imported."""

import hashlib
import os
import pathlib
import platform
import shutil

# The networks of the tests are so small that XLA's thread pool costs more than it saves.
os.environ.setdefault("NPROC", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

MAX_CACHE_BYTES = 500 * 2**20


def cpu() -> str:
    """What this machine's programs are compiled for, in eight letters: jax's key of a program leaves it out."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        features = sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))})
    except OSError:
        features = [platform.machine(), platform.processor()]
    return hashlib.sha256("\n".join(features).encode()).hexdigest()[:8]


def use_cache(build: pathlib.Path) -> None:
    """Compiles each program once for all tests, workers of pytest-xdist, scripts that tests start and later runs.

    Most of the time of a first run is compilation, and most programs are the same in the next one.
    """
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        folder = build / f"test_programs_{cpu()}"
        if sum(path.stat().st_size for path in folder.glob("*")) > MAX_CACHE_BYTES:  # programs of older code
            shutil.rmtree(folder, ignore_errors=True)
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


use_cache(pathlib.Path(__file__).resolve().parent.parent / "build")
