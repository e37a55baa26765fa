"""Times compiled functions."""

from collections.abc import Callable
import time
from typing import Any

import jax


def fastest(function: Callable[[], Any], repeats: int = 3, seconds: float = 0.0) -> float:
    """Returns the duration in seconds of the fastest call, after a warm-up call; waits for the results of calls.

    Makes at least `repeats` calls, for at least `seconds` in total.
    """
    jax.block_until_ready(function())
    times: list[float] = []
    while len(times) < repeats or sum(times) < seconds:
        begin = time.perf_counter()
        jax.block_until_ready(function())
        times.append(time.perf_counter() - begin)
    return min(times)
