"""Acting: chooses the index to follow in an environment, and the action it implies."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from hyperagent_jax import binding
from hyperagent_jax import checks
from hyperagent_jax import indices as indices_lib
from hyperagent_jax import types

ACTION_INDICES = ("episode", "step", "all")

# The probability of a random action: a number, or a function of the number of updates so far.
Epsilon = Callable[[types.Array], types.Array] | float | types.Array
# Maps indices [n, M] to Q-values [n, num_actions] of the current observation.
QValuesFn = Callable[[types.Array], types.Array]


class ActorNoise(NamedTuple):
    """The random numbers of one action.

    Attributes:
        indices: candidates for the next indices, [num_ois, M], or all values [num_values, M].
        resample: a number in [0, 1) that decides whether the indices are replaced.
        explore: a number in [0, 1) that decides whether the action is random.
        ties: numbers in [0, 1) that break ties between actions; the largest also gives the random action,
            [num_actions].
    """

    indices: types.Array
    resample: types.Array
    explore: types.Array
    ties: types.Array


class InitFn(Protocol):
    """Initialises an actor."""

    def __call__(self, key: types.PRNGKey, /) -> types.Array:
        """Returns the first indices [num_ois, M]."""


class DrawFn(Protocol):
    """Draws the random numbers of one action."""

    def __call__(self, key: types.PRNGKey, /) -> ActorNoise:
        """Returns the random numbers."""


class ActFn(Protocol):
    """Acts with a random key."""

    def __call__(
        self,
        q_values_fn: QValuesFn,
        indices: types.Array,
        is_first: types.Array | bool,
        key: types.PRNGKey,
        count: types.Array | int | None = None,
    ) -> tuple[types.Array, types.Array]:
        """Returns the action and the indices to pass next time."""


class ChooseFn(Protocol):
    """Acts with pre-drawn random numbers."""

    def __call__(
        self,
        q_values_fn: QValuesFn,
        indices: types.Array,
        is_first: types.Array | bool,
        noise: ActorNoise,
        count: types.Array | int | None = None,
    ) -> tuple[types.Array, types.Array]:
        """Returns the action and the indices to pass next time."""


class NextIndicesFn(Protocol):
    """Keeps or replaces indices."""

    def __call__(self, indices: types.Array, is_first: types.Array | bool, noise: ActorNoise, /) -> types.Array:
        """Returns the indices to act with now."""


class SelectFn(Protocol):
    """Chooses an action."""

    def __call__(
        self, values: types.Array, noise: ActorNoise, count: types.Array | int | None = None
    ) -> types.Array:
        """Returns the action, int32."""


class Actor(NamedTuple):
    """Pure functions of one environment's actor, whose state is its indices [num_ois, M].

    Attributes:
        init: maps a key to the first indices.
        act: maps (q_values_fn, indices, is_first, key) to (action, indices). `q_values_fn` maps indices [n, M] to
            Q-values [n, num_actions]; the number of updates so far is a fifth argument, `count`, that an epsilon
            schedule needs.
        draw: maps a key to the ActorNoise of one step.
        choose: `act` with those numbers instead of a key, for loops that draw in blocks of steps.
        next_indices: maps (indices, is_first, noise) to the indices to act with now; the first half of `choose`.
        select: maps (values [num_ois, num_actions], noise, count) to an action; the second half of `choose`. With
            NaN values, the action is meaningless.
    """

    init: InitFn
    act: ActFn
    draw: DrawFn
    choose: ChooseFn
    next_indices: NextIndicesFn
    select: SelectFn


def argmax_with_ties(values: types.Array, ties: types.Array) -> types.Array:
    """Returns the index of the largest of `values` [n], breaking ties by the largest of `ties` [n]."""
    return jnp.argmax(jnp.where(values == jnp.max(values), ties, -1.0)).astype(jnp.int32)


def random_action(noise: ActorNoise) -> types.Array:
    """Returns a uniformly random action."""
    return jnp.argmax(noise.ties).astype(jnp.int32)


def explore(greedy: types.Array, noise: ActorNoise, chance: types.Array | float) -> types.Array:
    """Returns the greedy action or, with probability `chance`, a random one."""
    return jnp.where(noise.explore < chance, random_action(noise), greedy)


def draw(
    key: types.PRNGKey,
    *,
    index: indices_lib.IndexDistribution,
    num_actions: int,
    action_index: str,
    num_ois: int,
) -> ActorNoise:
    """Draws the random numbers of one action.

    Args:
        key: random key.
        index: distribution of the index.
        num_actions: number of actions.
        action_index: see `make_actor`.
        num_ois: number of indices.

    Returns:
        ActorNoise.
    """
    if action_index == "all":
        candidates = jnp.asarray(index.support)
    else:
        candidates = index.sample(types.fold_in_tag(key, "indices"), (num_ois,))
    return ActorNoise(
        candidates,
        jax.random.uniform(types.fold_in_tag(key, "resample")),
        jax.random.uniform(types.fold_in_tag(key, "explore")),
        jax.random.uniform(types.fold_in_tag(key, "ties"), (num_actions,)),
    )


def init(key: types.PRNGKey, *, draw: DrawFn) -> types.Array:
    """Draws the first indices [num_ois, M], which only matter if an actor starts in the middle of an episode."""
    return draw(key).indices


def next_indices(
    indices: types.Array,
    is_first: types.Array | bool,
    noise: ActorNoise,
    *,
    action_index: str,
    resample_probability: float | types.Array,
) -> types.Array:
    """Keeps the indices or replaces them with new ones.

    Args:
        indices: current indices, [num_ois, M].
        is_first: whether the observation is the first of an episode.
        noise: random numbers of this action.
        action_index: see `make_actor`.
        resample_probability: see `make_actor`.

    Returns:
        The indices to act with now, [num_ois, M].
    """
    if jnp.shape(indices) != jnp.shape(noise.indices):
        raise ValueError(
            f"the actor's indices must have shape {jnp.shape(noise.indices)}, got {jnp.shape(indices)}: "
            "use those returned by `init` or by the last action"
        )
    if action_index != "episode":
        return noise.indices
    renew = is_first | (noise.resample < resample_probability)
    return jnp.where(renew, noise.indices, indices)


def select(
    values: types.Array, noise: ActorNoise, count: types.Array | int | None = None, *, epsilon: Epsilon
) -> types.Array:
    """Chooses the action with the largest of all values, or a random one (eq. OIS).

    Args:
        values: Q-values, one row per index, [num_ois, num_actions]. With NaN, the action is meaningless.
        noise: random numbers of this action.
        count: number of updates so far, for an epsilon schedule.
        epsilon: see `make_actor`.

    Returns:
        The action, int32.
    """
    expected = (*jnp.shape(noise.indices)[:-1], *jnp.shape(noise.ties))
    if jnp.shape(values) != expected:
        raise ValueError(f"values must be [num_ois, num_actions] = {expected}, got shape {jnp.shape(values)}")
    greedy = argmax_with_ties(jnp.max(values, axis=0), noise.ties)
    if not callable(epsilon):
        return explore(greedy, noise, epsilon)
    if count is None:
        raise ValueError("an epsilon schedule needs the number of updates so far: pass count")
    return explore(greedy, noise, epsilon(jnp.asarray(count)))


def choose(
    q_values_fn: QValuesFn,
    indices: types.Array,
    is_first: types.Array | bool,
    noise: ActorNoise,
    count: types.Array | int | None = None,
    *,
    next_indices: NextIndicesFn,
    select: SelectFn,
) -> tuple[types.Array, types.Array]:
    """Acts on one observation, with pre-drawn random numbers.

    Args:
        q_values_fn: maps indices [n, M] to Q-values [n, num_actions] of the observation.
        indices: current indices, [num_ois, M].
        is_first: whether the observation is the first of an episode.
        noise: random numbers of this action, from `Actor.draw`.
        count: number of updates so far, for an epsilon schedule.
        next_indices: keeps or replaces the indices.
        select: chooses the action.

    Returns:
        The action, int32, and the indices to pass next time.
    """
    indices = next_indices(indices, is_first, noise)
    return select(q_values_fn(indices), noise, count), indices


def act(
    q_values_fn: QValuesFn,
    indices: types.Array,
    is_first: types.Array | bool,
    key: types.PRNGKey,
    count: types.Array | int | None = None,
    *,
    draw: DrawFn,
    choose: ChooseFn,
) -> tuple[types.Array, types.Array]:
    """Acts on one observation.

    Args:
        q_values_fn: maps indices [n, M] to Q-values [n, num_actions] of the observation.
        indices: current indices, [num_ois, M]; initially those of `Actor.init`.
        is_first: whether the observation is the first of an episode.
        key: random key.
        count: number of updates so far, for an epsilon schedule.
        draw: draws the random numbers.
        choose: acts with them.

    Returns:
        The action, int32, and the indices to pass next time.
    """
    return choose(q_values_fn, indices, is_first, draw(key), count)


def make_actor(
    index: indices_lib.IndexDistribution,
    num_actions: int,
    *,
    action_index: str = "episode",
    num_ois: int = 1,
    resample_probability: float | types.Array = 0.0,
    epsilon: Epsilon = 0.0,
) -> Actor:
    """Makes an actor that is greedy with respect to sampled values (Algorithm 1, line 7, of
    https://arxiv.org/abs/2402.10228), optimistic over several indices (eq. OIS), with optional random actions.

    Args:
        index: distribution of the index.
        num_actions: number of actions.
        action_index: "episode" keeps the indices for an episode, "step" draws them for every state, "all"
            acts on all values of the index.
        num_ois: number of indices; the action maximises the largest of their values.
        resample_probability: with "episode", the probability per step of new indices within the episode.
        epsilon: probability of a uniformly random action; a number or a function of the number of updates.

    Returns:
        The Actor.
    """
    indices_lib.require_distribution(index)
    checks.one_of("action_index", action_index, ACTION_INDICES)
    checks.whole_number("num_actions", num_actions, 1)
    checks.whole_number("num_ois", num_ois, 1)
    checks.real_number("resample_probability", resample_probability, 0, 1)
    if not callable(epsilon):
        checks.real_number("epsilon", epsilon, 0, 1)
    if action_index == "all" and num_ois > 1:
        raise ValueError("action_index=all leaves no choice of indices: use num_ois=1")
    if action_index == "all" and index.support is None:
        raise ValueError(
            f"the index distribution {index.name!r} has no finite support to enumerate: use action_index=episode"
        )
    draw_fn = binding.bind(draw, index=index, num_actions=num_actions, action_index=action_index, num_ois=num_ois)
    next_indices_fn = binding.bind(
        next_indices, action_index=action_index, resample_probability=resample_probability
    )
    select_fn = binding.bind(select, epsilon=epsilon)
    choose_fn = binding.bind(choose, next_indices=next_indices_fn, select=select_fn)
    return Actor(
        init=binding.bind(init, draw=draw_fn),
        act=binding.bind(act, draw=draw_fn, choose=choose_fn),
        draw=draw_fn,
        choose=choose_fn,
        next_indices=next_indices_fn,
        select=select_fn,
    )
