"""Trains one learner on several devices: batches are split over the devices, parameters are replicated."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from hyperagent_jax import errors

AXIS = "batch"


def batch_mesh(devices: Sequence[jax.Device], batch_size: int) -> jax.sharding.Mesh:
    """Makes a mesh of devices over which to split a batch; raises UserError unless the batch divides evenly."""
    if batch_size % len(devices):
        raise errors.UserError(
            f"batch_size={batch_size} cannot be split evenly over {len(devices)} devices: use a multiple of it"
        )
    return jax.sharding.Mesh(np.array(devices), (AXIS,))


def jit_update(update: Callable[..., Any], mesh: jax.sharding.Mesh) -> Callable[..., Any]:
    """Compiles the function (learner, sum, key, batch) of `vector.make_update` with the batch split over a mesh.

    The program is the same as for one device; XLA inserts the sums over devices, including the gradient penalty's.
    Results are the same as on one device up to the order of sums.
    """
    whole = jax.sharding.NamedSharding(mesh, jax.P())
    parts = jax.sharding.NamedSharding(mesh, jax.P(AXIS))

    def place(batch: Any) -> Any:
        return jax.tree.map(lambda x: jax.device_put(x, parts if np.ndim(x) else whole), batch)

    compiled = jax.jit(update, donate_argnums=(0, 1), out_shardings=(whole, whole, parts))

    def spread(learner: Any, total: Any, key: Any, batch: Any) -> Any:
        learner, total, key = jax.device_put((learner, total, key), whole)
        return compiled(learner, total, key, place(batch))

    return spread
