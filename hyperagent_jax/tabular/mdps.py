"""Finite MDPs as arrays, of fixed horizon (Assumption 1) or discounted, and the examples of the theory.

Rewards are known functions of the pair; agents have to learn the transitions.
"""

import os
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from hyperagent_jax import npz
from hyperagent_jax import types
from hyperagent_jax.environments import deep_sea as deep_sea_lib

# Tolerance for the sum of a row of float32 probabilities.
_TOLERANCE = 1e-5


class FiniteMdp(NamedTuple):
    """An MDP of fixed horizon H whose transitions may differ from stage to stage.

    Attributes:
        transitions: P_t(x' | x, a), [H, S, A, S]; those of the last stage have no effect.
        rewards: r_t(x, a), [H, S, A].
        start: distribution of the initial state, [S].
    """

    transitions: types.Array
    rewards: types.Array
    start: types.Array


class DiscountedMdp(NamedTuple):
    """A stationary MDP: `transitions` [S, A, S], `rewards` [S, A], `start` [S] and a `discount` below one."""

    transitions: types.Array
    rewards: types.Array
    start: types.Array
    discount: float


def _check_rows(name: str, probabilities: npt.ArrayLike) -> None:
    rows = np.asarray(probabilities, np.float64)
    if not np.all(np.isfinite(rows)) or rows.min() < 0.0:
        raise ValueError(f"{name} must be probabilities, but some are negative or not finite")
    sums = rows.sum(-1)
    worst = np.unravel_index(np.argmax(np.abs(sums - 1.0)), sums.shape)
    if abs(sums[worst] - 1.0) > _TOLERANCE:
        place = f"{name}[{', '.join(map(str, worst))}]" if worst else name
        raise ValueError(f"{place} must sum to one, but sums to {sums[worst]:.6g}")


def _check(
    transitions: npt.ArrayLike, rewards: npt.ArrayLike, start: npt.ArrayLike, num_axes: int, axes: str
) -> None:
    shape = np.shape(transitions)
    if len(shape) != num_axes or shape[-1] != shape[-3] or 0 in shape:
        raise ValueError(f"transitions must have shape {axes}, got {list(shape)}")
    if np.shape(rewards) != shape[:-1] or np.shape(start) != shape[-1:]:
        raise ValueError(
            f"rewards must have shape {list(shape[:-1])} and start {list(shape[-1:])}, "
            f"got {list(np.shape(rewards))} and {list(np.shape(start))}"
        )
    if not np.all(np.isfinite(rewards)):
        raise ValueError("rewards must be finite")
    _check_rows("transitions", transitions)
    _check_rows("start", start)


def _as_float(x: npt.ArrayLike) -> types.Array:
    return jnp.asarray(x, jnp.result_type(float))


def make_finite(transitions: npt.ArrayLike, rewards: npt.ArrayLike, start: npt.ArrayLike) -> FiniteMdp:
    """Makes a FiniteMdp from arrays, which it checks."""
    _check(transitions, rewards, start, 4, "[H, S, A, S]")
    return FiniteMdp(_as_float(transitions), _as_float(rewards), _as_float(start))


def make_discounted(
    transitions: npt.ArrayLike, rewards: npt.ArrayLike, start: npt.ArrayLike, discount: float
) -> DiscountedMdp:
    """Makes a DiscountedMdp from arrays, which it checks."""
    _check(transitions, rewards, start, 3, "[S, A, S]")
    if not 0.0 <= discount < 1.0:
        raise ValueError(f"the discount must be at least 0 and below 1, got {discount}")
    return DiscountedMdp(_as_float(transitions), _as_float(rewards), _as_float(start), discount)


def load(path: str | os.PathLike) -> FiniteMdp:
    """Reads a FiniteMdp from an npz file with its three arrays."""
    try:
        with np.load(path, allow_pickle=False) as file:
            for name in FiniteMdp._fields:
                npz.check_size(file, name)
            arrays = {name: file[name] for name in FiniteMdp._fields}
        if any(array.dtype.kind not in "fiub" for array in arrays.values()):
            raise TypeError("not an array of numbers")
    except npz.UNREADABLE as error:
        raise ValueError(f"{path} is not an npz file with the arrays {', '.join(FiniteMdp._fields)}") from error
    try:
        return make_finite(**arrays)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def log_gamma_samples(key: types.PRNGKey, alpha: types.Array) -> types.Array:
    """Samples logarithms of Gamma(alpha, 1) variables, by Marsaglia and Tsang's rejection with boosting.

    `jax.random.gamma` derives a key for every element, which would cost PSRL more than everything else.
    """
    # Gamma(a) is Gamma(a + 1) U^(1 / a), so rejection is only needed for parameters above 1.
    d = alpha + 1.0 - 1.0 / 3.0
    c = 1.0 / jnp.sqrt(9.0 * d)

    def propose(
        carry: tuple[types.Array, types.Array, types.Array],
    ) -> tuple[types.Array, types.Array, types.Array]:
        i, log_v, accepted = carry
        key_i = jax.random.fold_in(key, i)
        x = jax.random.normal(types.fold_in_tag(key_i, "x"), alpha.shape)
        u = jax.random.uniform(types.fold_in_tag(key_i, "u"), alpha.shape)
        v = (1.0 + c * x) ** 3
        log = jnp.log(jnp.maximum(v, 1e-30))
        good = (v > 0.0) & (jnp.log1p(-u) < 0.5 * x**2 + d * (1.0 - v + log))
        return i + 1, jnp.where(accepted, log_v, log), accepted | good

    start = (jnp.zeros((), jnp.int32), jnp.zeros_like(d), jnp.zeros(d.shape, bool))
    _, log_v, _ = jax.lax.while_loop(lambda carry: ~jnp.all(carry[2]), propose, start)
    boost = jnp.log1p(-jax.random.uniform(types.fold_in_tag(key, "boost"), alpha.shape)) / alpha
    return jnp.log(d) + log_v + boost


def dirichlet_rows(key: types.PRNGKey, alpha: types.Array) -> types.Array:
    """Samples Dirichlet(alpha) along the last axis, in logarithms because small parameters underflow."""
    return jax.nn.softmax(log_gamma_samples(key, alpha), -1)


def dirichlet(key: types.PRNGKey, num_states: int, num_actions: int, horizon: int, beta: float) -> FiniteMdp:
    """Samples an MDP from the prior of Assumption 2, with every row from Dirichlet(beta / S, ..., beta / S).

    Rewards are uniform on [0, 1], and episodes start in state 0.
    """
    shape = (horizon, num_states, num_actions)
    alpha = jnp.full((*shape, num_states), beta / num_states)
    return FiniteMdp(
        dirichlet_rows(types.fold_in_tag(key, "transitions"), alpha),
        jax.random.uniform(types.fold_in_tag(key, "rewards"), shape),
        jax.nn.one_hot(0, num_states),
    )


def _with_stages(transitions: np.ndarray, rewards: np.ndarray, horizon: int) -> FiniteMdp:
    """Makes an MDP with the same transitions and rewards in every stage that starts in state 0."""
    start = np.eye(len(rewards))[0]
    return make_finite(np.stack([transitions] * horizon), np.stack([rewards] * horizon), start)


def river_swim(num_states: int = 6, horizon: int = 20) -> FiniteMdp:
    """Makes RiverSwim: left (action 0) is downstream and always succeeds, right is against the current.

    Staying at the left end pays 0.005, swimming at the right end pays 1.
    """
    if num_states < 2:
        raise ValueError(f"RiverSwim needs at least 2 states, got {num_states}")
    last = num_states - 1
    transitions, rewards = np.zeros((num_states, 2, num_states)), np.zeros((num_states, 2))
    for x in range(num_states):
        transitions[x, 0, max(x - 1, 0)] = 1.0
        back, stay, forth = (0.05, 0.6, 0.35) if 0 < x < last else (0.4, 0.6, 0.0) if x else (0.0, 0.4, 0.6)
        for probability, y in ((back, x - 1), (stay, x), (forth, x + 1)):
            if probability:
                transitions[x, 1, y] = probability
    rewards[0, 0], rewards[last, 1] = 0.005, 1.0
    return _with_stages(transitions, rewards, horizon)


def deep_sea(size: int, mapping_seed: int) -> FiniteMdp:
    """Makes deterministic DeepSea: the stage is the row, the state the column (see environments/deep_sea.py)."""
    right_action = deep_sea_lib.action_mapping(size, mapping_seed)
    row, column = np.meshgrid(np.arange(size), np.arange(size), indexing="ij")
    transitions, rewards = np.zeros((size, size, 2, size)), np.zeros((size, size, 2))
    transitions[row, column, right_action, np.minimum(column + 1, size - 1)] = 1.0
    transitions[row, column, 1 - right_action, np.maximum(column - 1, 0)] = 1.0
    rewards[row, column, right_action] = (column == size - 1) - deep_sea_lib.MOVE_COST / size
    return make_finite(transitions, rewards, np.eye(size)[0])


def insight(horizon: int = 6) -> FiniteMdp:
    """Makes the MDP of four states in the section "Insight": up (action 0) and down move one state up or down.

    The paper gives the transitions only in a figure; these are consistent with its text, where paths lead down to
    (4, down) from everywhere. Rewards are zero, so that only uncertainty propagates.
    """
    transitions = np.zeros((4, 2, 4))
    for x in range(4):
        transitions[x, 0, max(x - 1, 0)] = transitions[x, 1, min(x + 1, 3)] = 1.0
    return _with_stages(transitions, np.zeros((4, 2)), horizon)
