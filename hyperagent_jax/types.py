"""Shared data structures and aliases."""

from typing import Any, NamedTuple
import zlib

import jax
import jax.numpy as jnp
import numpy as np

from hyperagent_jax import checks

# Largest seed of a run.
MAX_SEED = 2**31

Array = jax.Array
PRNGKey = jax.Array
# Observations of environments outside JAX: arrays, or numpy scalars such as np.int32.
HostArray = np.ndarray | np.generic
Params = Any
# The output of a network for one state before an index is applied. For networks that are linear in the index, it
# is the array of coefficients [num_actions, index_dim + 1], with the mean in the last column.
Belief = Any


class Transition(NamedTuple):
    """One transition; times as in rlax: (o_tm1, a_tm1) leads to (r_t, discount_t, o_t).

    Attributes:
        o_tm1: observation in which the action was taken.
        a_tm1: action, int32.
        r_t: reward; the sum of discounted rewards for n-step transitions.
        discount_t: gamma**n; 0 if the episode terminated, but not if it was truncated.
        o_t: observation n steps later.
        z_t: perturbation vector z ~ P_z of this transition (Algorithm 1, line 9), [perturbation_dim].
    """

    o_tm1: Array
    a_tm1: Array
    r_t: Array
    discount_t: Array
    o_t: Array
    z_t: Array


class Future(NamedTuple):
    """The steps that follow a transition's o_tm1.

    Attributes:
        observations: the K observations after o_tm1, [K, ...].
        actions: the actions that lead to them, the first of which is a_tm1, [K].
        mask: 1 for existing steps of the same episode, 0 beyond, [K].
    """

    observations: Array
    actions: Array
    mask: Array


class Subsequence(NamedTuple):
    """The fields of a Transition, with the steps that follow it.

    Attributes:
        o_tm1: see Transition, also for the following fields except the last.
        a_tm1: action.
        r_t: reward.
        discount_t: discount.
        o_t: observation n steps later.
        z_t: perturbation vector.
        future: the steps that follow.
    """

    o_tm1: Array
    a_tm1: Array
    r_t: Array
    discount_t: Array
    o_t: Array
    z_t: Array
    future: Future


class Batch(NamedTuple):
    """The input of one step of a learner.

    Attributes:
        transitions: a Transition whose fields have a leading batch axis.
        replay_size: |D|, the number of transitions in the replay; scales the prior regularisation
            (eq. 5). May be None if the loss has no regulariser.
        prior_tm1: fixed prior beliefs at o_tm1 if stored; None to compute them.
        prior_t: fixed prior beliefs at o_t if stored; None to compute them.
        weights: importance weights of the losses, [B]; None for ones.
    """

    transitions: Transition
    replay_size: Array | None = None
    prior_tm1: Belief | None = None
    prior_t: Belief | None = None
    weights: Array | None = None


class _EnvironmentSpec(NamedTuple):
    num_actions: int
    observation_shape: tuple[int, ...]
    num_states: int | None = None
    dtype: str = "float32"


class EnvironmentSpec(_EnvironmentSpec):
    """The properties of an environment that are needed to build an agent.

    Attributes:
        num_actions: number of discrete actions.
        observation_shape: shape of one observation; () for integer states.
        num_states: number of integer states, or None if observations are arrays.
        dtype: dtype of the arrays; replays on device store them without conversion.
    """

    __slots__ = ()

    def __new__(
        cls,
        num_actions: int,
        observation_shape: tuple[int, ...],
        num_states: int | None = None,
        dtype: str = "float32",
    ) -> "EnvironmentSpec":
        checks.whole_number("num_actions", num_actions, 1)
        if not isinstance(observation_shape, tuple | list):
            raise ValueError(f"observation_shape must be a tuple of lengths, got {observation_shape!r}")
        try:
            jnp.dtype(dtype)
        except TypeError as error:
            raise ValueError(f"dtype must be the name of a dtype such as float32, got {dtype!r}") from error
        for length in observation_shape:
            checks.whole_number("every length in observation_shape", length, 1)
        if num_states is not None:
            checks.whole_number("num_states", num_states, 1)
            if len(observation_shape):
                raise ValueError(
                    "num_states is for integer observations, whose observation_shape is (), "
                    f"got observation_shape {observation_shape}: omit num_states"
                )
        return super().__new__(cls, num_actions, observation_shape, num_states, dtype)


class Variables(NamedTuple):
    """All variables of a network.

    Attributes:
        params: the learnable parameters, the only part that an optimiser gets.
        prior: the fixed prior's, which have no gradient, no weight decay and no target copy.
    """

    params: Params
    prior: Params


class LearnerState(NamedTuple):
    """State of a learner.

    Attributes:
        params: online parameters. With `LazyAdam` all except the tables of rows, which are in `opt_state`;
            `Learner.variables` returns all parameters in either case.
        target_params: parameters of the bootstrap target, with the structure of `params`.
        opt_state: the optimiser's state; a `lazy_adam.LazyState` with `LazyAdam`.
        prior: the fixed prior, which is never optimised.
        count: number of updates so far.
    """

    params: Params
    target_params: Params
    opt_state: Any
    prior: Params
    count: Array  # type: ignore[assignment]  # hides tuple.count


def fold_in_tag(key: PRNGKey, tag: str) -> PRNGKey:
    """Derives the key of a named consumer, so that adding a consumer does not change the keys of others."""
    return jax.random.fold_in(key, np.uint32(zlib.crc32(tag.encode())))
