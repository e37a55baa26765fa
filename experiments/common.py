"""Sets the environment that jax reads and puts this clone on the path, before all other imports of a script."""

import multiprocessing
import os
import pathlib
import signal
import sys
from typing import Any

# Networks this small run fastest on one thread: XLA's thread pool costs more than it gains. This must be set
# before jax is imported; set NPROC to override it.
os.environ.setdefault("NPROC", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# A clone's scripts run that clone, installed or not.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))


def _end(number: int, frame: Any) -> None:
    """Ends the script wherever it is; an exception in an import may be lost, or be a long traceback."""
    del number, frame
    os.write(2, b"stopped\n")
    os._exit(130)


# Until something runs that has a state to save, which then takes these signals over. What is ignored stays so.
# Workers leave it to their parent.
for _number in (signal.SIGINT, signal.SIGTERM) if multiprocessing.parent_process() is None else ():
    if signal.getsignal(_number) in (signal.default_int_handler, signal.SIG_DFL):
        signal.signal(_number, _end)
