"""One learner on several devices: every batch is spread over them, the parameters are the same on all."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from hyperagent_jax import errors

AXIS = "batch"


def batch_mesh(devices: Sequence[jax.Device], batch_size: int) -> jax.sharding.Mesh:
    """Makes a mesh of devices that a batch is spread over; UserError unless it can be done evenly."""
    if batch_size % len(devices):
        raise errors.UserError(
            f"batch_size={batch_size} cannot be spread evenly over {len(devices)} devices: use a multiple of it"
        )
    return jax.sharding.Mesh(np.array(devices), (AXIS,))


def jit_update(update: Callable[..., Any], mesh: jax.sharding.Mesh) -> Callable[..., Any]:
    """Compiles `vector.make_update`'s function (learner, sum, key, batch) with the batch spread over a mesh.

    The program is that of one device; XLA adds the sums over devices, in the gradient penalty too. Results are the
    same as on one device up to the order of sums.
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
