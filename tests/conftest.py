"""Settings of the whole test suite; they must be in place before jax is imported."""

import os

# The networks of the tests are so small that XLA's thread pool costs more than it saves.
os.environ.setdefault("NPROC", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
