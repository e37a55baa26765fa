"""What a script needs before all other imports: the environment that jax reads, and this clone on the path."""

import os
import pathlib
import sys

# Networks this small run fastest on one thread: XLA's thread pool costs more than it gives. Must be set before
# jax is imported; set NPROC yourself to overrule it.
os.environ.setdefault("NPROC", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# A clone's scripts run that clone, installed or not.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
