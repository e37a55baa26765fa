"""Arrays of npz files from anywhere: nothing is unpickled, and no memory is taken that the file does not fill."""

import math
import tokenize
from typing import Any
import zipfile
import zlib

import numpy as np

from hyperagent_jax import host_memory

# What numpy, zipfile and json raise at files that are damaged or were never ours.
UNREADABLE = (
    OSError, ValueError, KeyError, AttributeError, TypeError, RuntimeError, SyntaxError, OverflowError,
    MemoryError, EOFError, zipfile.BadZipFile, zlib.error, tokenize.TokenError,
)  # fmt: skip


def read_header(f: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Returns shape, whether in Fortran's order, and type of the array in an npy file."""
    major, _ = np.lib.format.read_magic(f)
    read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
    return read(f)


def check_size(arrays: Any, name: str) -> None:
    """Raises ValueError if an array of an open npz file claims more than it holds, or than there is memory for."""
    member = arrays.zip.getinfo(f"{name}.npy")
    with arrays.zip.open(member) as f:
        shape, _, dtype = read_header(f)
        claimed, held = math.prod(shape) * dtype.itemsize, member.file_size - f.tell()
    if claimed != held:
        raise ValueError(f"{name} claims {claimed:,} bytes and holds {held:,}")
    available = host_memory.available_bytes()
    if available is not None and claimed > available:
        raise ValueError(f"{name} needs {claimed / 1e9:.2f} GB of memory and {available / 1e9:.2f} GB are free")
