"""How long compiled functions take."""

from collections.abc import Callable
import time
from typing import Any

import jax


def fastest(function: Callable[[], Any], repeats: int = 3, seconds: float = 0.0) -> float:
    """Returns the seconds of the fastest call, after one that does not count; waits for what calls return.

    There are at least `repeats` calls, which take at least `seconds` together.
    """
    jax.block_until_ready(function())
    times: list[float] = []
    while len(times) < repeats or sum(times) < seconds:
        begin = time.perf_counter()
        jax.block_until_ready(function())
        times.append(time.perf_counter() - begin)
    return min(times)
