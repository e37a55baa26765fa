"""Checks the available memory, and raises a one-line error before too much of it is allocated."""

import pathlib

from hyperagent_jax import errors

# Location of a container's limits in the two versions of control groups: folder, limit, use.
_CONTAINERS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
)
# Messages of XLA if an array does not fit.
_SHORTAGE = ("RESOURCE_EXHAUSTED", "Out of memory")
# Counted as used but released on demand: the page cache.
_CACHE = ("inactive_file", "active_file")


def _left_in_container(folder: str, limit: str, use: str) -> int | None:
    """Returns the memory left within a container's limit; None if there is no limit."""
    place = pathlib.Path(folder)
    try:
        left = int((place / limit).read_text()) - int((place / use).read_text())
        counts = dict(line.split() for line in (place / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    return left + sum(int(counts.get(name, 0)) for name in _CACHE)


def _bytes_in(file: str, name: str) -> int | None:
    """Returns an entry of a system file, which is in kilobytes, in bytes; None if there is no such entry."""
    try:
        for line in pathlib.Path(file).read_text().splitlines():
            if line.startswith(f"{name}:"):
                return 1024 * int(line.split()[1])
    except OSError:
        pass
    return None


def available_bytes() -> int | None:
    """Returns the memory that this process can still allocate; None if unknown."""
    limits = [_bytes_in("/proc/meminfo", "MemAvailable"), *(_left_in_container(*one) for one in _CONTAINERS)]
    return min((limit for limit in limits if limit is not None), default=None)


def resident_bytes() -> int:
    """Returns the resident memory of this process; 0 if unknown."""
    return _bytes_in("/proc/self/status", "VmRSS") or 0


def is_shortage(error: Exception) -> bool:
    """Returns whether an exception of Python or XLA means that an array did not fit."""
    return isinstance(error, MemoryError) or any(text in str(error) for text in _SHORTAGE)


def require(num_bytes: int, what: str, advice: str) -> None:
    """Raises an error if less than `num_bytes` of memory is available for `what`; `advice` says what to do."""
    available = available_bytes()
    if available is not None and num_bytes > available:
        raise errors.UserError(
            f"{what} needs {num_bytes / 1e9:.2f} GB of memory, but {available / 1e9:.2f} GB are free: {advice}"
        )
