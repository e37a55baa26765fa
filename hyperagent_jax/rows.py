"""Reading one row of a table, differentiably and fast on every platform.

The gradient of an index is a scatter-add. A TPU runs it as a loop over the rows of the batch, one after the other;
a GPU uses atomic additions, whose order, and with it the last bits of the sum, differs from run to run. So the row
of an action is chosen by a mask, and the gradient of a long table is a matrix product everywhere but on CPU, where
the scatter-add is the faster of the two.
"""

import jax
import jax.numpy as jnp

from hyperagent_jax import types


def of_action(values: types.Array, action: types.Array) -> types.Array:
    """Returns `values[action]` of an array with a leading axis of actions; zeros for an action out of range."""
    mask = jnp.arange(values.shape[0]) == action
    # Adding zeros is exact: this is the row, bit for bit.
    return jnp.sum(jnp.where(mask.reshape(-1, *[1] * (values.ndim - 1)), values, 0), axis=0)


def by_product(table: types.Array, state: types.Array) -> types.Array:
    """Returns row `state` of a table [num_rows, width] as a product with its one-hot code."""
    last = table.shape[0] - 1
    code = jax.nn.one_hot(jnp.minimum(state, last), last + 1, dtype=table.dtype)
    return jnp.matmul(code, table, precision=jax.lax.Precision.HIGHEST)


def look_up(table: types.Array, state: types.Array) -> types.Array:
    """Returns row `state` of a table [num_rows, width]; a state beyond the last one reads the last row."""
    # JAX does not pass a vmapped numpy array to a function with its own derivative; a sum makes it one of JAX.
    return _look_up(jnp.asarray(table), state + jnp.zeros((), jnp.int32))


@jax.custom_jvp
def _look_up(table: types.Array, state: types.Array) -> types.Array:
    return table[state]


@_look_up.defjvp
def _look_up_jvp(
    primals: tuple[types.Array, types.Array], tangents: tuple[types.Array, types.Array]
) -> tuple[types.Array, types.Array]:
    (table, state), (tangent, _) = primals, tangents
    # This is linear in the tangent; its transpose is the way back.
    row = jax.lax.platform_dependent(tangent, state, cpu=lambda tangent, state: tangent[state], default=by_product)
    return _look_up(table, state), row
