"""Defines losses: functions of one transition, and the random numbers that they need."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from hyperagent_jax import indices as indices_lib
from hyperagent_jax import types


class LossNoise(NamedTuple):
    """The random numbers of one update; arrays that all transitions share have a leading axis of length 1.

    Attributes:
        indices: indices xi of the sampled loss, [B, N, M]; None for the others.
        target_indices: indices xi^- of the bootstrap target, [B, num_ois, M]; None if the target uses the
            indices of the loss or all values of the index.
        selector_indices: indices with which the online network selects the target's actions, with the shape of
            `target_indices`; None if it uses those.
    """

    indices: types.Array | None
    target_indices: types.Array | None
    selector_indices: types.Array | None = None


class DrawFn(Protocol):
    """Draws the random numbers of a batch."""

    def __call__(self, key: types.PRNGKey, batch_size: int, /) -> LossNoise:
        """Returns the LossNoise of a batch; every array has a leading axis of length batch_size or 1."""


class ApplyFn(Protocol):
    """The loss of one transition."""

    def __call__(
        self,
        params: types.Params,
        target_params: types.Params,
        transition: types.Transition,
        prior_tm1: types.Belief,
        prior_t: types.Belief,
        noise: LossNoise,
        /,
    ) -> types.Array:
        """Returns the loss, a scalar; priors are the fixed prior's beliefs at o_tm1 and o_t."""


class ApplyWithValueFn(Protocol):
    """The loss of one transition and the Q-value that it trains."""

    def __call__(
        self,
        params: types.Params,
        target_params: types.Params,
        transition: types.Transition,
        prior_tm1: types.Belief,
        prior_t: types.Belief,
        noise: LossNoise,
        /,
    ) -> tuple[types.Array, types.Array]:
        """Returns the loss, and the Q-value of the action taken averaged over the indices of the loss."""


class RegularizerFn(Protocol):
    """A function of the parameters that is added once per batch."""

    def __call__(self, params: types.Params, replay_size: types.Array | None, /) -> types.Array:
        """Returns the term, a scalar."""


class Loss(NamedTuple):
    """A loss of one transition.

    Attributes:
        draw: maps (key, batch_size) to the LossNoise of a batch.
        apply: maps (params, target_params, transition, prior_tm1, prior_t, noise) of one transition to its loss.
        regularizer: maps (params, replay_size) to a scalar, added once per batch; or None.
        apply_with_value: like `apply`, but returns (loss, Q-value of the action taken, averaged over the indices
            of the loss), which a gradient penalty needs; or None.
        gradient_penalty: factor of the squared norm of the gradient of the batch's mean of those values.
        is_semi_gradient: whether gradients flow only through the online network at o_tm1, not through the target.
        apply_with_priority: like `apply`, but returns (loss, priority), for losses whose priority is only a part
            of the loss; None if the loss is the priority.
        perturbation: the distribution from which the z_t of transitions must be sampled:
            `loss.perturbation.sample(key, (batch_size,))`; None if the loss has no perturbation.
    """

    draw: DrawFn
    apply: ApplyFn
    regularizer: RegularizerFn | None = None
    apply_with_value: ApplyWithValueFn | None = None
    gradient_penalty: float = 0.0
    is_semi_gradient: bool = False
    perturbation: indices_lib.IndexDistribution | None = None
    apply_with_priority: Callable[..., tuple[types.Array, types.Array]] | None = None

    @property
    def has_local_gradient(self) -> bool:
        """Whether parameters that no o_tm1 of a batch uses neither have a gradient nor influence any."""
        return self.is_semi_gradient and self.regularizer is None and not self.gradient_penalty
