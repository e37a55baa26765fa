"""What a learner is made of: the types of its functions, in one place for those who write their own."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from hyperagent_jax import losses
from hyperagent_jax import types

LearnerState = types.LearnerState
Metrics = dict[str, types.Array]


class InitFn(Protocol):
    """Initialises a learner."""

    def __call__(self, key: types.PRNGKey, /) -> LearnerState:
        """Returns the state before the first update."""


class StepFn(Protocol):
    """An update that draws its own random numbers."""

    def __call__(
        self, state: LearnerState, batch: types.Batch, key: types.PRNGKey, /
    ) -> tuple[LearnerState, Metrics]:
        """Returns the state after the update, and metrics."""


class UpdateFn(Protocol):
    """An update with pre-drawn random numbers."""

    def __call__(
        self, state: LearnerState, batch: types.Batch, noise: losses.LossNoise, /
    ) -> tuple[LearnerState, Metrics]:
        """Returns the state after the update, and metrics."""


class UpdateNoise(NamedTuple):
    """The random numbers of one update if the optimiser needs some as well.

    Attributes:
        loss: random numbers of the loss.
        optimizer: data of the optimiser's key, two 32-bit words.
    """

    loss: losses.LossNoise
    optimizer: types.Array


class VariablesFn(Protocol):
    """Reads a state."""

    def __call__(self, state: LearnerState, /) -> types.Variables:
        """Returns the network's variables."""


class ParamsFn(Protocol):
    """Reads the parameters of a state."""

    def __call__(self, state: LearnerState, /) -> types.Params:
        """Returns all online parameters."""


class ParamsAtFn(Protocol):
    """Reads the parameters that matter at one observation."""

    def __call__(self, state: LearnerState, observation: types.Array, /) -> tuple[types.Params, types.Array]:
        """Returns online parameters and the observation to use with them."""


class ValuesFn(Protocol):
    """Evaluates the online network."""

    def __call__(
        self,
        state: LearnerState,
        observation: types.Array,
        indices: types.Array,
        prior: types.Belief | None = None,
    ) -> types.Array:
        """Returns Q-values [n, num_actions] of one observation at indices [n, M]."""


class BatchLossFn(Protocol):
    """The loss of a batch."""

    def __call__(
        self,
        params: types.Params,
        target_params: types.Params,
        prior: types.Params,
        batch: types.Batch,
        noise: losses.LossNoise,
        /,
    ) -> tuple[types.Array, types.Array]:
        """Returns a scalar and the losses [B]."""


class ValueAndGradFn(Protocol):
    """The loss of a batch with its gradient."""

    def __call__(
        self,
        params: types.Params,
        target_params: types.Params,
        prior: types.Params,
        batch: types.Batch,
        noise: losses.LossNoise,
        /,
    ) -> tuple[tuple[types.Array, types.Array], types.Params]:
        """Returns ((scalar, losses [B]), gradient)."""


class ApplyGradientFn(Protocol):
    """The optimiser's step."""

    def __call__(self, state: LearnerState, gradient: types.Params, /, **extra_args: Any) -> LearnerState:
        """Returns the state after the update."""


class ResetFn(Protocol):
    """Reinitialises a part of the parameters."""

    def __call__(self, state: LearnerState, key: types.PRNGKey, /) -> LearnerState:
        """Returns the state after the reset."""


class ResetRule(NamedTuple):
    """When to reset which parameters.

    Attributes:
        period: updates between resets.
        kept_share: maps the path of a parameter, as names, to the fraction of its old value that is kept.
    """

    period: int
    kept_share: Callable[[Sequence[str]], float]


class Learner(NamedTuple):
    """Pure functions that train a network; all may be jitted and vmapped.

    Attributes:
        init: maps a key to a LearnerState.
        step: maps (state, batch, key) to (state, metrics): the `losses` of the transitions [B], which
            prioritised replays need, and the `loss`, their weighted mean plus any regulariser and penalty.
        update: `step` with random numbers instead of a key, for loops that draw in blocks of steps.
        draw: maps (key, batch_size) to the random numbers of one step.
        variables: maps a state to the network's Variables. Outside jit these are the state's own arrays: copy them
            before a step that donates the state.
        values: maps (state, observation, indices [n, M]) to Q-values [n, num_actions]; takes the prior's belief
            as an optional fourth argument.
        batch_loss: maps (params, target_params, prior, batch, noise) to (scalar, losses [B]), for training loops
            with their own gradients or targets; without the gradient penalty.
        value_and_grad: maps the same to ((scalar, losses [B]), gradient), with regulariser and gradient penalty.
        apply_gradient: maps (state, gradient) to the state after one step of the optimiser and of the target.
            `update` is `value_and_grad` at the state's own parameters, followed by `apply_gradient`; insert a
            `pmean` in between to train on several devices. Keyword arguments are passed to the optimiser.
        reset: maps (state, key) to a state with partly reinitialised parameters; None unless there is a
            `ResetRule`. Loops call it after every `reset_period` updates.
        reset_period: updates between resets; 0 for no resets.
    """

    init: InitFn
    step: StepFn
    update: UpdateFn
    draw: losses.DrawFn
    variables: VariablesFn
    values: ValuesFn
    batch_loss: BatchLossFn
    value_and_grad: ValueAndGradFn
    apply_gradient: ApplyGradientFn
    reset: ResetFn | None = None
    reset_period: int = 0
