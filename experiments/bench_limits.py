"""What a machine could do at best: parts of a step by themselves."""

from collections.abc import Callable
import time

import jax
import jax.numpy as jnp

from hyperagent_jax import timing


def stream_seconds(num_floats: int, repeats: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Time memory (or the cache that holds them) needs for Adam's bytes: four arrays read, three written."""
    repetitions = max(20, 10_000_000 // num_floats)
    arrays = [jnp.full(num_floats, 1e-3) for _ in range(3)]

    @jax.jit
    def stream(gradient, *arrays):
        def body(_, carry):
            value, mu, nu = carry
            return value + mu, 0.9 * mu + gradient, 0.9 * nu + gradient

        return jax.lax.fori_loop(0, repetitions, body, arrays)

    return timing.fastest(lambda: stream(jnp.ones(num_floats), *arrays), repeats, clock=clock) / repetitions
