"""Reads one row of a table, differentiably and fast on every platform.

The gradient of indexing is a scatter-add. A TPU runs it as a sequential loop over the rows of the batch; a GPU
uses atomic additions, whose order, and hence the last bits of the sum, differs from run to run. So the row of an
action is selected by a mask, and the gradient of a long table is a matrix product everywhere except on CPU, where
the scatter-add is faster.
"""

import jax
import jax.numpy as jnp

from hyperagent_jax import types


def of_action(values: types.Array, action: types.Array) -> types.Array:
    """Returns `values[action]` of an array with a leading axis of actions; zeros for an action out of range."""
    mask = jnp.arange(values.shape[0]) == action
    # Adding zeros is exact, so this is the row bit for bit.
    return jnp.sum(jnp.where(mask.reshape(-1, *[1] * (values.ndim - 1)), values, 0), axis=0)


def by_product(table: types.Array, state: types.Array) -> types.Array:
    """Returns row `state` of a table [num_rows, width] as a product with the state's one-hot vector."""
    last = table.shape[0] - 1
    code = jax.nn.one_hot(jnp.minimum(state, last), last + 1, dtype=table.dtype)
    return jnp.matmul(code, table, precision=jax.lax.Precision.HIGHEST)


def look_up(table: types.Array, state: types.Array) -> types.Array:
    """Returns row `state` of a table [num_rows, width]; larger states read the last row."""
    # JAX does not pass a vmapped numpy array to a function with a custom derivative; the sum makes it a jax array.
    return _look_up(jnp.asarray(table), state + jnp.zeros((), jnp.int32))


@jax.custom_jvp
def _look_up(table: types.Array, state: types.Array) -> types.Array:
    return table[state]


@_look_up.defjvp
def _look_up_jvp(
    primals: tuple[types.Array, types.Array], tangents: tuple[types.Array, types.Array]
) -> tuple[types.Array, types.Array]:
    (table, state), (tangent, _) = primals, tangents
    # This is linear in the tangent, so it can be transposed for the backward pass.
    row = jax.lax.platform_dependent(tangent, state, cpu=lambda tangent, state: tangent[state], default=by_product)
    return _look_up(table, state), row
