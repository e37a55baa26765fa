"""Trains one learner on several devices: batches are split over the devices, parameters are replicated."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
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


def mesh_of_processes() -> jax.sharding.Mesh:
    """Returns a mesh of all devices of all processes, those of a process side by side."""
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    return jax.sharding.Mesh(np.array(devices), (AXIS,))


def jit_update_of_parts(
    update: Callable[..., Any], mesh: jax.sharding.Mesh, keeps_losses: bool
) -> Callable[..., Any]:
    """Compiles `vector.make_update`'s function for several processes, each of which brings its part of the batch.

    All of them must call it, with the same learner, sum and key. Nothing is donated: the arguments can be read
    after a call that failed.

    Args:
        update: the function of (learner, sum, key, batch).
        mesh: all devices, from `mesh_of_processes`.
        keeps_losses: whether the losses of the whole batch are returned to every process.

    Returns:
        A function of (learner, sum, key, part of a batch) to (learner, sum, losses).
    """
    whole, parts = jax.sharding.NamedSharding(mesh, jax.P()), jax.sharding.NamedSharding(mesh, jax.P(AXIS))

    def place(x: Any, sharding: jax.sharding.NamedSharding) -> jax.Array:
        if isinstance(x, jax.Array) and x.sharding == sharding:
            return x
        return jax.make_array_from_process_local_data(sharding, np.asarray(x))

    def of_parts(learner: Any, total: Any, words: jax.Array, batch: Any, *, impl: Any) -> Any:
        # |D| is the sum over the processes' replays.
        batch = batch._replace(replay_size=jnp.sum(batch.replay_size))
        learner, total, losses = update(learner, total, jax.random.wrap_key_data(words, impl=impl), batch)
        return learner, total, losses if keeps_losses else None

    compiled = jax.jit(of_parts, static_argnames="impl", out_shardings=whole)

    def spread(learner: Any, total: Any, key: jax.Array, batch: Any) -> Any:
        sizes = np.zeros(len(mesh.local_devices), np.int32)
        sizes[0] = batch.replay_size
        batch = jax.tree.map(lambda x: place(x, parts), batch._replace(replay_size=sizes))
        learner, total = jax.tree.map(lambda x: place(x, whole), (learner, total))
        words = place(np.asarray(jax.random.key_data(key)), whole)
        return compiled(learner, total, words, batch, impl=jax.random.key_impl(key))

    return spread
