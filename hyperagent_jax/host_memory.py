"""How much memory there is, and a refusal in one line before too much of it is taken."""

import pathlib

from hyperagent_jax import errors

# Where the limits of a container are, by the two versions of control groups: folder, limit, use.
_CONTAINERS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
)
# What XLA says when an array does not fit.
_SHORTAGE = ("RESOURCE_EXHAUSTED", "Out of memory")
# What counts as used and is given up when it is needed: the cache of files.
_CACHE = ("inactive_file", "active_file")


def _left_in_container(folder: str, limit: str, use: str) -> int | None:
    """Memory that is left of a container's limit; None if there is no limit."""
    place = pathlib.Path(folder)
    try:
        left = int((place / limit).read_text()) - int((place / use).read_text())
        counts = dict(line.split() for line in (place / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    return left + sum(int(counts.get(name, 0)) for name in _CACHE)


def _bytes_in(file: str, name: str) -> int | None:
    """The amount of that name in a file of the system, which counts kilobytes; None where it does not say."""
    try:
        for line in pathlib.Path(file).read_text().splitlines():
            if line.startswith(f"{name}:"):
                return 1024 * int(line.split()[1])
    except OSError:
        pass
    return None


def available_bytes() -> int | None:
    """Memory that this process could still take; None where the system does not say."""
    limits = [_bytes_in("/proc/meminfo", "MemAvailable"), *(_left_in_container(*one) for one in _CONTAINERS)]
    return min((limit for limit in limits if limit is not None), default=None)


def resident_bytes() -> int:
    """Memory that this process takes now; 0 where the system does not say."""
    return _bytes_in("/proc/self/status", "VmRSS") or 0


def is_shortage(error: Exception) -> bool:
    """Whether an exception says that an array did not fit, in Python's words or in XLA's."""
    return isinstance(error, MemoryError) or any(text in str(error) for text in _SHORTAGE)


def require(num_bytes: int, what: str, advice: str) -> None:
    """Refuses to continue when there is less memory than that for `what`; `advice` says what to do instead."""
    available = available_bytes()
    if available is not None and num_bytes > available:
        raise errors.UserError(
            f"{what} needs {num_bytes / 1e9:.2f} GB of memory and {available / 1e9:.2f} GB are free: {advice}"
        )
