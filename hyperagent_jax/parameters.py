"""How a learner keeps its online and target parameters between updates.

`dense_store` keeps both whole and takes any optax optimiser. `lazy_store` is for one-hot observations:
it keeps a table of rows of which an update reads and writes only those its batch asks for.
"""

from collections.abc import Callable
import math
from typing import Any, NamedTuple

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import optax

from hyperagent_jax import optimizers
from hyperagent_jax import types
from hyperagent_jax.networks import torsos


class View(NamedTuple):
    """Parameters as the loss of a batch sees them.

    Attributes:
        online: online parameters.
        target: target parameters.
        axes: the vmap axes of both; leaves that differ from one transition to the next have axis 0.
        transitions: the batch's transitions, their observations valid for these parameters.
        context: whatever `write` needs again.
    """

    online: types.Params
    target: types.Params
    axes: Any
    transitions: types.Transition
    context: Any


class ParameterStore(NamedTuple):
    """Pure functions on stored parameters; `count` is the number of updates so far.

    Attributes:
        init: maps params to a store.
        read: maps (store, transitions, count) to a View.
        write: maps (store, view, gradient of view.online, count) to the store after one update.
        params: maps (store, count) to whole online parameters.
        params_at: maps (store, observation, count) to (params, observation) for use at that one
            observation.
    """

    init: Callable[..., Any]
    read: Callable[..., View]
    write: Callable[..., Any]
    params: Callable[..., types.Params]
    params_at: Callable[..., tuple[types.Params, types.Array]]


class DenseParameters(NamedTuple):
    """Attributes: online and target parameters and the optimiser's state."""

    online: types.Params
    target: types.Params
    opt_state: optax.OptState


def _choose(condition, if_true, if_false):
    return jax.tree.map(lambda t, f: jnp.where(condition, t, f), if_true, if_false)


def dense_store(optimizer: optax.GradientTransformation, target_period: int) -> ParameterStore:
    """Keeps whole parameters; every `target_period` updates the target becomes a copy, before the update."""

    def init(params):
        # A copy, or the same arrays would be there twice, and such a state cannot be donated.
        return DenseParameters(params, jax.tree.map(jnp.copy, params), optimizer.init(params))

    def read(store, transitions, count):
        target = _choose(count % target_period == 0, store.online, store.target)
        return View(store.online, target, None, transitions, None)

    def write(store, view, gradient, count):
        del count
        updates, opt_state = optimizer.update(gradient, store.opt_state, store.online)
        return DenseParameters(optax.apply_updates(store.online, updates), view.target, opt_state)

    def params(store, count):
        del count
        return store.online

    def params_at(store, observation, count):
        return params(store, count), observation

    return ParameterStore(init, read, write, params, params_at)


class LazyParameters(NamedTuple):
    """Attributes:
    rest: all parameters but the table of rows, and their optimiser's state.
    rows: value, mu, nu, target of every row, [num_rows, 4, width]. The first three are as of the row's last
        write. `target` is the row at the last target copy, kept only for rows written since.
    updated: number of updates each row includes, [num_rows].
    """

    rest: DenseParameters
    rows: types.Array
    updated: types.Array


class _RowTables:
    """The tables of rows among a network's parameters, taken side by side as one, [num_rows, width].

    A table is [num_rows, width], or [members, num_rows, width] in an ensemble. Leading batch axes, and
    fewer rows than the network was made with, are allowed everywhere.
    """

    def __init__(self, params_like: types.Params):
        flat = traverse_util.flatten_dict(params_like)
        self._shapes = {path: leaf.shape for path, leaf in flat.items() if path[-1] == torsos.ROWS}
        if len({shape[-2] for shape in self._shapes.values()}) != 1:
            raise ValueError(f"LazyAdam needs parameters named {torsos.ROWS!r}, all with the same number of rows")

    def split(self, params: types.Params) -> tuple[types.Params, types.Array]:
        """Splits parameters into all but the tables, and the tables."""
        flat = traverse_util.flatten_dict(params)
        rows = []
        for path, shape in self._shapes.items():
            table = flat.pop(path)
            if len(shape) == 3:  # the members' rows stand side by side
                table = jnp.moveaxis(table, -3, -2)
                table = table.reshape(*table.shape[:-2], shape[0] * shape[2])
            rows.append(table)
        return traverse_util.unflatten_dict(flat), jnp.concatenate(rows, axis=-1)

    def join(self, rest: types.Params, rows: types.Array) -> types.Params:
        """Puts parameters together again."""
        widths = [math.prod(shape) // shape[-2] for shape in self._shapes.values()]
        tables = jnp.split(rows, np.cumsum(widths)[:-1], axis=-1)
        for i, shape in enumerate(self._shapes.values()):
            if len(shape) == 3:
                members = tables[i].reshape(*rows.shape[:-1], shape[0], shape[2])
                tables[i] = jnp.moveaxis(members, -2, -3)
        return self._with_tables(rest, tables)

    def batch_axes(self, rest: types.Params) -> types.Params:
        """The vmap axes of joined parameters whose tables have a batch axis."""
        return self._with_tables(jax.tree.map(lambda _: None, rest), [0] * len(self._shapes))

    def _with_tables(self, rest, tables):
        flat = traverse_util.flatten_dict(rest)
        return traverse_util.unflatten_dict({**flat, **dict(zip(self._shapes, tables, strict=True))})


def lazy_store(adam: optimizers.LazyAdam, target_period: int, params_like: types.Params) -> ParameterStore:
    """Keeps the rows of integer states under `LazyAdam`.

    Args:
        adam: Adam's constants.
        target_period: number of updates between target copies.
        params_like: parameters (or their shapes) of the network.
    """
    tables = _RowTables(params_like)
    advance = optimizers.RowAdvance(adam)
    rest_adam = optax.adam(adam.learning_rate, adam.b1, adam.b2, adam.eps)
    rest_store = dense_store(rest_adam, target_period)

    def init(params):
        rest, table = tables.split(params)
        zeros = jnp.zeros_like(table)
        return LazyParameters(
            rest_store.init(rest),
            jnp.stack([table, zeros, zeros, table], axis=1),
            jnp.zeros(table.shape[0], jnp.int32),
        )

    def gather(store, states):
        packed = store.rows[states]
        return optimizers.Rows(packed[:, 0], packed[:, 1], packed[:, 2]), packed[:, 3], store.updated[states]

    def read(store, transitions, count):
        batch_size = transitions.o_tm1.shape[0]
        states = jnp.concatenate([transitions.o_tm1, transitions.o_t])
        rows, target, updated = gather(store, states)
        last_copy = count - count % target_period
        target = jnp.where((updated <= last_copy)[:, None], advance(rows, updated, last_copy).value, target)
        rows = advance(rows, updated, count)
        rest = rest_store.read(store.rest, transitions, count)

        def pair(x):  # every transition brings its own table of two rows: o_tm1 and o_t
            return jnp.stack([x[:batch_size], x[batch_size:]], axis=1)

        written = jax.tree.map(lambda x: x[:batch_size], (rows, target, updated))
        first = jnp.zeros(batch_size, jnp.int32)
        local = transitions._replace(o_tm1=first, o_t=first + 1)
        return View(
            tables.join(rest.online, pair(rows.value)),
            tables.join(rest.target, pair(target)),
            tables.batch_axes(rest.online),
            local,
            (rest, transitions.o_tm1, *written),
        )

    def write(store, view, gradient, count):
        rest_view, states, rows, target, updated = view.context
        rest_gradient, row_gradient = tables.split(gradient)
        # A state may occur more than once in a batch: every occurrence gets the whole gradient of its
        # row, so that all of them write the same thing.
        same = (states[:, None] == states[None, :]).astype(jnp.float32)
        row_gradient = jnp.matmul(same, row_gradient[:, 0], precision=jax.lax.Precision.HIGHEST)
        squared_norm = optax.tree.norm(rest_gradient, squared=True) + jnp.sum(
            jnp.sum(row_gradient**2, axis=1) / jnp.sum(same, axis=1)
        )
        clip = jnp.minimum(1.0, adam.max_grad_norm * jax.lax.rsqrt(jnp.maximum(squared_norm, 1e-30)))
        rest = rest_store.write(store.rest, rest_view, jax.tree.map(lambda g: clip * g, rest_gradient), count)
        rows = advance.with_gradient(rows, clip * row_gradient, count + 1)
        packed = jnp.stack([rows.value, rows.mu, rows.nu, target], axis=1)
        # `updated` is never ahead of `count`. The maximum makes the write depend on the read, without which
        # XLA copies the array in every step of a loop.
        now = jnp.maximum(updated, count + 1)
        return LazyParameters(rest, store.rows.at[states].set(packed), store.updated.at[states].set(now))

    def params(store, count):
        rows, _, updated = gather(store, jnp.arange(store.rows.shape[0]))
        return tables.join(store.rest.online, advance(rows, updated, count).value)

    def params_at(store, observation, count):
        rows, _, updated = gather(store, observation[None])
        return tables.join(store.rest.online, advance(rows, updated, count).value), jnp.zeros_like(observation)

    return ParameterStore(init, read, write, params, params_at)
