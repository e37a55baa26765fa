"""Lazy Adam: equals Adam for tables of rows, at the cost of only the rows that a batch looks up.

A network on integer states has a first layer that is a table of rows (`torsos.look_up_row`). This file contains
all that a learner needs to train it without visiting every row in every update: Adam's updates of rows without
gradient in closed form (`RowAdvance`), the tables among a network's parameters (`RowTables`), and the functions
that a learner binds (`init`, `update`, `apply_gradient`, `whole_params`, `params_at`).
"""

import math
from typing import Any, NamedTuple

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import optax

from hyperagent_jax import losses
from hyperagent_jax import optimizers
from hyperagent_jax import types
from hyperagent_jax.networks import epistemic
from hyperagent_jax.networks import torsos


class LazyAdam(optimizers.Adam):
    """`Adam` for networks whose first layer is a table of rows looked up by integer states.

    Plain Adam visits every row in every update, because a row without a gradient still moves with its decaying
    momentum. These moves can be summed afterwards (`RowAdvance`), so lazy Adam brings a row up to date when a
    batch next looks it up. The result equals Adam's up to rounding, and the cost of an update does not grow with
    the number of states.
    """

    @property
    def is_accurate(self) -> bool:
        """Whether the rules of `coasting_rules` are accurate for these decay rates."""
        return 0 < self.b1 <= 0.9 and 0.99 <= self.b2 < 1


# After this many updates without gradient, the momentum is negligible (0.9 ** 256 = 2e-12).
_MAX_AGE = 256
# After this many updates, the bias correction of the momentum is one (0.9 ** 128 = 1e-6).
_MAX_TIME = 128


def coasting_rules(b1: float, b2: float) -> np.ndarray:
    """Computes the two-point Gauss rules for the sums over j = 1..age that `RowAdvance` needs.

    The sum has weights b1^j / (1 - b1^(time + j)) and a factor that is a smooth function of
    s_j = sqrt((1 - b2^(time + j)) / b2^j), so the rules treat the weights as a measure on s.

    Returns:
        [_MAX_TIME + 1, _MAX_AGE + 1, 4]: for every time and age, two nodes j (real numbers) and two weights.
    """
    j = np.arange(1.0, _MAX_AGE + 1)
    reached = np.tri(_MAX_AGE + 1, _MAX_AGE, -1)  # row `age` has ones for j <= age
    per_time = []
    for time in range(_MAX_TIME + 1):
        mass = reached * b1**j / (1 - b1 ** (time + j))
        total = mass.sum(axis=1)
        mass /= np.maximum(total, 1e-30)[:, None]
        s = np.sqrt(b2**-j - b2**time)
        # The nodes are the eigenvalues of the measure's 2 x 2 Jacobi matrix, which its first three central
        # moments determine; the weights follow from the eigenvectors (Golub and Welsch).
        mean = mass @ s
        centred = s - mean[:, None]
        variance = (mass * centred**2).sum(axis=1)
        skew = (mass * centred**3).sum(axis=1) / np.maximum(variance, 1e-30)
        jacobi = np.stack([np.zeros_like(mean), *[np.sqrt(variance)] * 2, skew], axis=1).reshape(-1, 2, 2)
        nodes, vectors = np.linalg.eigh(jacobi)
        nodes = -np.log((mean[:, None] + nodes) ** 2 + b2**time) / np.log(b2)
        per_time.append(np.concatenate([nodes, total[:, None] * vectors[:, 0] ** 2], axis=1))
    rules = np.stack(per_time)
    rules[:, 0, :2] = 1.0  # age 0 has no weight, so its nodes are arbitrary
    return rules.astype(np.float32)


class Rows(NamedTuple):
    """Rows under Adam; every field is [num_rows, width]."""

    value: types.Array
    mu: types.Array
    nu: types.Array


class RowAdvance:
    """Applies any number of Adam's steps without gradient in closed form.

    In the updates `updated + 1 .. now`, Adam moves a row without gradient by
        -lr sum_j [b1^j mu / (1 - b1^(updated + j))] / [sqrt(b2^j nu / (1 - b2^(updated + j))) + eps],
    and a two-point Gauss rule gives that sum with a relative error of 1e-6 (3e-3 for rows last written in the very
    first updates, when bias corrections still change quickly).
    """

    def __init__(self, adam: LazyAdam):
        if not adam.is_accurate:
            raise ValueError(
                f"LazyAdam needs 0 < b1 <= 0.9 and 0.99 <= b2 < 1, got {adam.b1} and {adam.b2}: use Adam"
            )
        self._adam = adam
        self._rules = coasting_rules(adam.b1, adam.b2)

    def __call__(self, rows: Rows, updated: types.Array, now: types.Array) -> Rows:
        """Advances rows that include `updated` [num_rows] updates to update `now`, never backwards."""
        adam = self._adam
        log_b1, log_b2 = float(np.log(adam.b1)), float(np.log(adam.b2))
        age = jnp.maximum(now - updated, 0)
        rule = jnp.asarray(self._rules)[jnp.minimum(updated, _MAX_TIME), jnp.minimum(age, _MAX_AGE)]
        nodes, weights = rule[:, :2], adam.learning_rate * rule[:, 2:]
        time = updated[:, None].astype(jnp.float32) + nodes
        root_scale = jnp.sqrt(jnp.exp(log_b2 * nodes) / -jnp.expm1(log_b2 * time))
        root_nu = jnp.sqrt(rows.nu)
        first = root_scale[:, :1] * root_nu + adam.eps
        second = root_scale[:, 1:] * root_nu + adam.eps
        # weights[0] / first + weights[1] / second with a single division
        step = (weights[:, :1] * second + weights[:, 1:] * first) / (first * second)
        decay = age[:, None].astype(jnp.float32)
        return Rows(
            rows.value - step * rows.mu, rows.mu * jnp.exp(log_b1 * decay), rows.nu * jnp.exp(log_b2 * decay)
        )

    def with_gradient(self, rows: Rows, gradient: types.Array, count: types.Array) -> Rows:
        """Applies one Adam update to rows that are up to date, as update number `count` (the first is 1)."""
        adam = self._adam
        mu = adam.b1 * rows.mu + (1 - adam.b1) * gradient
        nu = adam.b2 * rows.nu + (1 - adam.b2) * gradient**2
        time = count.astype(jnp.float32)
        mu_scale = adam.learning_rate / -jnp.expm1(float(np.log(adam.b1)) * time)
        root_scale = jax.lax.rsqrt(-jnp.expm1(float(np.log(adam.b2)) * time))
        return Rows(rows.value - mu_scale * mu / (root_scale * jnp.sqrt(nu) + adam.eps), mu, nu)


class RowTables:
    """The tables of rows among a network's parameters, concatenated to one, [num_rows, width].

    A table is [num_rows, width], or [members, num_rows, width] in an ensemble. Leading batch axes, and fewer rows
    than the network has, are allowed everywhere.
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
            if len(shape) == 3:  # concatenate the members' rows
                table = jnp.moveaxis(table, -3, -2)
                table = table.reshape(*table.shape[:-2], shape[0] * shape[2])
            rows.append(table)
        return traverse_util.unflatten_dict(flat), jnp.concatenate(rows, axis=-1)

    def join(self, rest: types.Params, rows: types.Array) -> types.Params:
        """Inverts `split`."""
        widths = [math.prod(shape) // shape[-2] for shape in self._shapes.values()]
        tables = jnp.split(rows, np.cumsum(widths)[:-1], axis=-1)
        for i, shape in enumerate(self._shapes.values()):
            if len(shape) == 3:
                members = tables[i].reshape(*rows.shape[:-1], shape[0], shape[2])
                tables[i] = jnp.moveaxis(members, -2, -3)
        return self._with_tables(rest, tables)

    def batch_axes(self, rest: types.Params) -> types.Params:
        """Returns the vmap axes of joined parameters whose tables have a batch axis."""
        return self._with_tables(jax.tree.map(lambda _: None, rest), [0] * len(self._shapes))

    def _with_tables(self, rest: types.Params, tables: list[Any]) -> types.Params:
        flat = traverse_util.flatten_dict(rest)
        return traverse_util.unflatten_dict({**flat, **dict(zip(self._shapes, tables, strict=True))})


class LazyState(NamedTuple):
    """The `opt_state` of a learner with `LazyAdam`.

    Attributes:
        rest: Adam's state for all parameters except the tables.
        rows: value, mu, nu and target of every row, side by side, [num_rows, 4 width]: a TPU would pad a last
            axis of 64 to twice its size, and copy the whole. The first three are as of the row's last write.
            `target` is the row at the last target copy, valid only for rows written since.
        updated: number of updates that each row includes, [num_rows].
    """

    rest: optax.OptState
    rows: types.Array
    updated: types.Array


class LazyRules:
    """The constants of a learner with `LazyAdam`.

    Attributes:
        adam: Adam's constants.
        target_period: number of updates between target copies.
        tables: the tables among the network's parameters.
        advance: Adam's steps without gradient.
        rest_optimizer: the optimiser of all other parameters, applied after clipping.
    """

    def __init__(self, adam: LazyAdam, target_period: int | types.Array, params_like: types.Params):
        self.adam = adam
        self.target_period = target_period
        self.tables = RowTables(params_like)
        self.advance = RowAdvance(adam)
        self.rest_optimizer = optax.adam(adam.learning_rate, adam.b1, adam.b2, adam.eps)


def init(key: types.PRNGKey, *, network: epistemic.EpistemicNetwork, rules: LazyRules) -> types.LearnerState:
    """Initialises a learner's state from a random key."""
    variables = network.init(key)
    rest, table = rules.tables.split(variables.params)
    zeros = jnp.zeros_like(table)
    opt_state = LazyState(
        rules.rest_optimizer.init(rest),
        jnp.concatenate([table, zeros, zeros, table], axis=1),
        jnp.zeros(table.shape[0], jnp.int32),
    )
    count = jnp.zeros((), jnp.int32)
    # Copy, because a state that contains the same array twice cannot be donated.
    return types.LearnerState(rest, jax.tree.map(jnp.copy, rest), opt_state, variables.prior, count)


def _apart(table: types.Array) -> types.Array:
    """Returns rows of `LazyState.rows` with an axis for value, mu, nu and target."""
    return table.reshape(len(table), 4, -1)


def _read(table: types.Array, states: types.Array) -> types.Array:
    """Reads rows of `LazyState.rows`, [B, 4, width]."""
    return jax.lax.platform_dependent(
        table,
        states,
        cpu=lambda table, states: _apart(table)[states],
        default=lambda table, states: _apart(table[states]),
    )


def _write(table: types.Array, states: types.Array, packed: types.Array) -> types.Array:
    """Writes rows of `LazyState.rows`, given as [B, 4, width]."""
    return jax.lax.platform_dependent(
        table,
        states,
        packed,
        # Costs nothing on CPU, where writing whole rows takes longer.
        cpu=lambda table, states, packed: _apart(table).at[states].set(packed).reshape(table.shape),
        default=lambda table, states, packed: table.at[states].set(packed.reshape(len(packed), -1)),
    )


def _gather(opt_state: LazyState, states: types.Array) -> tuple[Rows, types.Array, types.Array]:
    """Returns rows, target rows and numbers of updates of some states, as stored."""
    packed = _read(opt_state.rows, states)
    return Rows(packed[:, 0], packed[:, 1], packed[:, 2]), packed[:, 3], opt_state.updated[states]


def _all(opt_state: LazyState) -> tuple[Rows, types.Array, types.Array]:
    """Returns what `_gather` returns of all states, without the copies of a gather."""
    *rows, target = jnp.split(opt_state.rows, 4, axis=1)
    return Rows(*rows), target, opt_state.updated


def _up_to_date(
    stored: tuple[Rows, types.Array, types.Array], count: types.Array, rules: LazyRules
) -> tuple[Rows, types.Array, types.Array]:
    """Advances what `_gather` returns: rows to update `count`, targets to the last target copy."""
    rows, target, updated = stored
    last_copy = count - count % rules.target_period
    caught_up = rules.advance(rows, updated, last_copy).value
    target = jnp.where((updated <= last_copy)[:, None], caught_up, target)
    return rules.advance(rows, updated, count), target, updated


def _squared_norm(row_gradient: types.Array, same: types.Array) -> types.Array:
    """Returns the sum of squares of distinct rows; `same` [B, B] says which occurrences are of the same one."""
    return jnp.sum(jnp.sum(row_gradient**2, axis=1) / jnp.sum(same, axis=1))


def _squared_norm_at_once(row_gradient: types.Array, same: types.Array) -> types.Array:
    """Implements `_squared_norm` with a kernel less on a GPU; other last bits."""
    return jnp.sum(row_gradient**2 / jnp.sum(same, axis=1, keepdims=True))


def update(
    state: types.LearnerState,
    batch: types.Batch,
    noise: losses.LossNoise,
    *,
    network: epistemic.EpistemicNetwork,
    loss: losses.Loss,
    rules: LazyRules,
) -> tuple[types.LearnerState, dict[str, types.Array]]:
    """Updates the parameters on a batch, reading and writing only the rows of its states.

    Args:
        state: the learner's state.
        batch: a Batch of B transitions.
        noise: the random numbers of the update.
        network: the network.
        loss: the loss of one transition.
        rules: see `LazyRules`.

    Returns:
        The state after the update, and the metrics of `learner.update`.
    """
    batch_size = losses.check_batch(batch)
    batch = losses.with_prior_beliefs(batch, state.prior, network)
    transitions, tables = batch.transitions, rules.tables
    states = jnp.concatenate([transitions.o_tm1, transitions.o_t])
    rows, target, updated = _up_to_date(_gather(state.opt_state, states), state.count, rules)

    def pair(x: types.Array) -> types.Array:  # gives every transition its own table of two rows: o_tm1 and o_t
        return jnp.stack([x[:batch_size], x[batch_size:]], axis=1)

    first = jnp.zeros(batch_size, jnp.int32)
    local = batch._replace(transitions=transitions._replace(o_tm1=first, o_t=first + 1))
    (value, each), gradient = losses.value_and_grad(
        tables.join(state.params, pair(rows.value)),
        tables.join(state.target_params, pair(target)),
        state.prior,
        local,
        noise,
        network=network,
        loss=loss,
        axes=tables.batch_axes(state.params),
    )
    states = transitions.o_tm1
    rows, target, updated = jax.tree.map(lambda x: x[:batch_size], (rows, target, updated))
    rest_gradient, row_gradient = tables.split(gradient)
    # A state may occur more than once in a batch: every occurrence gets the whole gradient of its row, so that all
    # of them write the same values.
    same = (states[:, None] == states[None, :]).astype(jnp.float32)
    row_gradient = jnp.matmul(same, row_gradient[:, 0], precision=jax.lax.Precision.HIGHEST)
    squared_norm = optax.tree.norm(rest_gradient, squared=True) + jax.lax.platform_dependent(
        row_gradient, same, cpu=_squared_norm, default=_squared_norm_at_once
    )
    params, target_params, opt_state, rows = _step(state, rest_gradient, rows, row_gradient, squared_norm, rules)
    packed = jnp.stack([*rows, target], axis=1)
    # `updated` never exceeds `count`. The maximum makes the write depend on the read; otherwise XLA would copy the
    # array in every step of a loop.
    now = jnp.maximum(updated, state.count + 1)
    opt_state = LazyState(
        opt_state, _write(state.opt_state.rows, states, packed), state.opt_state.updated.at[states].set(now)
    )
    params = losses.propagate_nan(value, params)
    new_state = types.LearnerState(params, target_params, opt_state, state.prior, state.count + 1)
    return new_state, {"loss": value, "losses": each}


def _step(
    state: types.LearnerState,
    rest_gradient: types.Params,
    rows: Rows,
    row_gradient: types.Array,
    squared_norm: types.Array,
    rules: LazyRules,
) -> tuple[types.Params, types.Params, optax.OptState, Rows]:
    """Applies one clipped step of Adam; returns params, target params and Adam's state of the rest, and rows."""
    max_norm = rules.adam.max_grad_norm
    clip = jnp.minimum(1.0, max_norm * jax.lax.rsqrt(jnp.maximum(squared_norm, 1e-30)))
    clipped = jax.tree.map(lambda g: clip * g, rest_gradient)
    updates, opt_state = rules.rest_optimizer.update(clipped, state.opt_state.rest, state.params)
    params = optax.apply_updates(state.params, updates)
    count = state.count + 1
    target_params = optax.periodic_update(params, state.target_params, count, rules.target_period)
    return params, target_params, opt_state, rules.advance.with_gradient(rows, clip * row_gradient, count)


def apply_gradient(
    state: types.LearnerState, gradient: types.Params, *, rules: LazyRules, **extra_args: Any
) -> types.LearnerState:
    """Updates the parameters with a gradient of all parameters; visits all rows, like plain Adam.

    Args:
        state: the learner's state.
        gradient: a gradient with the structure of the parameters of `Learner.variables`.
        rules: see `LazyRules`.
        **extra_args: ignored; other optimisers may need them.

    Returns:
        The state after the update.
    """
    del extra_args
    rows, target, _ = _up_to_date(_all(state.opt_state), state.count, rules)
    rest_gradient, row_gradient = rules.tables.split(gradient)
    squared_norm = optax.tree.norm(rest_gradient, squared=True) + jnp.sum(row_gradient**2)
    params, target_params, opt_state, rows = _step(state, rest_gradient, rows, row_gradient, squared_norm, rules)
    packed = jnp.concatenate([*rows, target], axis=1)
    opt_state = LazyState(opt_state, packed, jnp.full_like(state.opt_state.updated, state.count + 1))
    return types.LearnerState(params, target_params, opt_state, state.prior, state.count + 1)


def whole_params(state: types.LearnerState, *, rules: LazyRules) -> types.Params:
    """Returns the online parameters with all rows up to date."""
    rows, _, updated = _all(state.opt_state)
    return rules.tables.join(state.params, rules.advance(rows, updated, state.count).value)


def params_at(
    state: types.LearnerState, observation: types.Array, *, rules: LazyRules
) -> tuple[types.Params, types.Array]:
    """Returns online parameters with a single row, that of an integer observation, and its position there, 0."""
    rows, _, updated = _gather(state.opt_state, observation[None])
    params = rules.tables.join(state.params, rules.advance(rows, updated, state.count).value)
    return params, jnp.zeros_like(observation)
