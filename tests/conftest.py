"""Settings of the whole test suite; they must be in place before jax is imported."""

import os
import shutil
import tempfile

# The networks of the tests are so small that XLA's thread pool costs more than it saves.
os.environ.setdefault("NPROC", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

# Many tests build the same programs: compile each once per session. The workers of pytest-xdist and the
# scripts that tests start inherit these variables.
_own_cache = None
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    _own_cache = tempfile.mkdtemp(prefix="hyperagent_jax_tests_")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _own_cache
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"


def pytest_unconfigure(config):
    del config
    if _own_cache is not None:
        shutil.rmtree(_own_cache, ignore_errors=True)
