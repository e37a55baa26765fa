"""How much memory there is, and a refusal in one line before too much of it is taken."""

import pathlib

from hyperagent_jax import errors

# Files with the limit of a container, and the marks that say "none".
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_USED = ("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory/memory.usage_in_bytes")


def _number(path: str) -> int | None:
    try:
        return int(pathlib.Path(path).read_text())
    except (OSError, ValueError):
        return None


def available_bytes() -> int | None:
    """Memory that this process could still take; None where the system does not say."""
    amounts = []
    try:
        for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                amounts.append(1024 * int(line.split()[1]))
    except OSError:
        pass
    for limit, used in zip(_LIMITS, _USED, strict=True):
        if (most := _number(limit)) is not None and (now := _number(used)) is not None:
            amounts.append(most - now)
    return min(amounts) if amounts else None


def resident_bytes() -> int:
    """Memory that this process takes now; 0 where the system does not say."""
    try:
        for line in pathlib.Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return 1024 * int(line.split()[1])
    except OSError:
        pass
    return 0


def require(num_bytes: int, what: str, advice: str) -> None:
    """Refuses to go on when there is less memory than that.

    Args:
        num_bytes: how much is wanted.
        what: for what.
        advice: what to do instead.
    """
    available = available_bytes()
    if available is not None and num_bytes > available:
        raise errors.UserError(
            f"{what} needs {num_bytes / 1e9:.2f} GB of memory and {available / 1e9:.2f} GB are free: {advice}"
        )
