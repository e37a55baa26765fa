"""Reads untrusted npz files: unpickles nothing, and allocates no more memory than the file fills."""

import math
import tokenize
from typing import Any
import zipfile
import zlib

import numpy as np

from hyperagent_jax import host_memory

# Exceptions of numpy, zipfile and json for files that are corrupt or of a different kind.
UNREADABLE = (
    OSError, ValueError, KeyError, AttributeError, TypeError, RuntimeError, SyntaxError, OverflowError,
    MemoryError, EOFError, zipfile.BadZipFile, zlib.error, tokenize.TokenError,
)  # fmt: skip


def read_header(f: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Returns the shape, whether in Fortran order, and the dtype of the array in an npy file."""
    major, _ = np.lib.format.read_magic(f)
    read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
    return read(f)


def check_size(arrays: Any, name: str) -> None:
    """Raises ValueError if an array of an open npz file claims more data than it has or than fits in memory."""
    member = arrays.zip.getinfo(f"{name}.npy")
    with arrays.zip.open(member) as f:
        shape, _, dtype = read_header(f)
        claimed, held = math.prod(shape) * dtype.itemsize, member.file_size - f.tell()
    if claimed != held:
        raise ValueError(f"{name} claims {claimed:,} bytes but has {held:,}")
    available = host_memory.available_bytes()
    if available is not None and claimed > available:
        raise ValueError(f"{name} needs {claimed / 1e9:.2f} GB of memory, but {available / 1e9:.2f} GB are free")
