"""Times compiled functions."""

from collections.abc import Callable
import time
from typing import Any

import jax


def fastest(
    function: Callable[[], Any],
    repeats: int = 3,
    seconds: float = 0.0,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Returns the duration in seconds of the fastest call, after a warm-up call; waits for the results of calls.

    Makes at least `repeats` calls, for at least `seconds` in total. With `time.process_time` as `clock` it is the
    processor time of all threads.
    """
    jax.block_until_ready(function())
    times: list[float] = []
    while len(times) < repeats or sum(times) < seconds:
        begin = clock()
        jax.block_until_ready(function())
        times.append(clock() - begin)
    return min(times)
