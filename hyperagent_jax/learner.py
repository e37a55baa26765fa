"""The learner of all agents: Double-DQN's update for any epistemic network, loss and optimiser."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax

from hyperagent_jax import binding
from hyperagent_jax import checks
from hyperagent_jax import langevin
from hyperagent_jax import lazy_adam
from hyperagent_jax import learner_types
from hyperagent_jax import losses
from hyperagent_jax import optimizers
from hyperagent_jax import prng
from hyperagent_jax import types
from hyperagent_jax.networks import epistemic

LearnerState = types.LearnerState
Metrics = learner_types.Metrics
InitFn = learner_types.InitFn
StepFn = learner_types.StepFn
UpdateFn = learner_types.UpdateFn
UpdateNoise = learner_types.UpdateNoise
VariablesFn = learner_types.VariablesFn
ParamsFn = learner_types.ParamsFn
ParamsAtFn = learner_types.ParamsAtFn
ValuesFn = learner_types.ValuesFn
BatchLossFn = learner_types.BatchLossFn
ValueAndGradFn = learner_types.ValueAndGradFn
ApplyGradientFn = learner_types.ApplyGradientFn
ResetFn = learner_types.ResetFn
ResetRule = learner_types.ResetRule
Learner = learner_types.Learner


def init(
    key: types.PRNGKey, *, network: epistemic.EpistemicNetwork, optimizer: optax.GradientTransformation
) -> LearnerState:
    """Initialises a learner's state from a random key."""
    params, prior = network.init(key)
    # Copy, because a state that contains the same array twice cannot be donated.
    target_params = jax.tree.map(jnp.copy, params)
    return LearnerState(params, target_params, optimizer.init(params), prior, jnp.zeros((), jnp.int32))


def apply_gradient(
    state: LearnerState,
    gradient: types.Params,
    *,
    optimizer: optax.GradientTransformationExtraArgs,
    target_period: int | types.Array,
    polyak: float | types.Array | None,
    **extra_args: Any,
) -> LearnerState:
    """Updates online and target parameters with a gradient.

    Args:
        state: the learner's state.
        gradient: a gradient with the structure of `state.params`.
        optimizer: the optimiser.
        target_period: see `make_learner`.
        polyak: see `make_learner`.
        **extra_args: extra arguments of the optimiser's update, such as `value`; others ignore them.

    Returns:
        The state after the update.
    """
    updates, opt_state = optimizer.update(gradient, state.opt_state, state.params, **extra_args)
    params, count = optax.apply_updates(state.params, updates), state.count + 1
    if polyak is None:
        target_params = optax.periodic_update(params, state.target_params, count, target_period)
    else:
        target_params = optax.incremental_update(params, state.target_params, polyak)
    return LearnerState(params, target_params, opt_state, state.prior, count)


def update(
    state: LearnerState,
    batch: types.Batch,
    noise: losses.LossNoise,
    *,
    value_and_grad: ValueAndGradFn,
    apply_gradient: ApplyGradientFn,
    axis_name: str | None = None,
) -> tuple[LearnerState, Metrics]:
    """Updates the parameters on a batch.

    Args:
        state: the learner's state.
        batch: a Batch of B transitions.
        noise: the random numbers of the update, from `Learner.draw`.
        value_and_grad: computes the gradient.
        apply_gradient: applies it.
        axis_name: see `make_learner`.

    Returns:
        The state after the update, and metrics: the unweighted `losses` of the transitions [B], and the `loss`,
        their weighted mean plus any regulariser and penalty.
    """

    def of_params(params: types.Params) -> tuple[tuple[types.Array, types.Array], types.Params]:
        (value, each), gradient = value_and_grad(params, state.target_params, state.prior, batch, noise)
        if axis_name is not None:
            value, gradient = jax.lax.pmean((value, gradient), axis_name)
        return (value, each), gradient

    (value, each), gradient = of_params(state.params)
    new_state = apply_gradient(
        state, gradient, value=value, grad=gradient, value_fn=lambda params: of_params(params)[0][0]
    )
    new_state = new_state._replace(params=losses.propagate_nan(value, new_state.params))
    return new_state, {"loss": value, "losses": each}


def draw_with_key(key: types.PRNGKey, batch_size: int, *, draw: losses.DrawFn) -> UpdateNoise:
    """Draws the random numbers of one update for an optimiser that needs a key.

    Args:
        key: random key.
        batch_size: number of transitions.
        draw: draws the random numbers of the loss.
    """
    words = jax.random.bits(types.fold_in_tag(key, "optimizer"), (2,), jnp.uint32)
    return UpdateNoise(draw(key, batch_size), words)


def update_with_key(
    state: LearnerState,
    batch: types.Batch,
    noise: UpdateNoise,
    *,
    value_and_grad: ValueAndGradFn,
    apply_gradient: ApplyGradientFn,
    axis_name: str | None = None,
) -> tuple[LearnerState, Metrics]:
    """Updates the parameters on a batch, with an optimiser that needs a key.

    Args:
        state: the learner's state.
        batch: a Batch of B transitions.
        noise: the random numbers of the update, from `Learner.draw`.
        value_and_grad: computes the gradient.
        apply_gradient: applies it.
        axis_name: see `make_learner`.

    Returns:
        The state after the update, and the metrics of `update`.
    """
    key = prng.hash_key(jax.random.wrap_key_data(noise.optimizer, impl="threefry2x32"))
    with_key = functools.partial(apply_gradient, key=key)
    return update(
        state, batch, noise.loss, value_and_grad=value_and_grad, apply_gradient=with_key, axis_name=axis_name
    )


def draw_shard(key: types.PRNGKey, batch_size: int, *, draw: losses.DrawFn, axis_name: str) -> losses.LossNoise:
    """Draws the random numbers of one device's part of a batch, different ones on every device.

    Args:
        key: random key, the same on all devices.
        batch_size: number of transitions of this device.
        draw: draws the random numbers of the loss.
        axis_name: see `make_learner`.
    """
    return draw(jax.random.fold_in(key, jax.lax.axis_index(axis_name)), batch_size)


def step(
    state: LearnerState, batch: types.Batch, key: types.PRNGKey, *, draw: losses.DrawFn, update: UpdateFn
) -> tuple[LearnerState, Metrics]:
    """Updates the parameters on a batch, with random numbers from a key.

    Args:
        state: the learner's state.
        batch: a Batch of B transitions.
        key: random key.
        draw: draws the random numbers.
        update: updates with them.

    Returns:
        The state after the update, and metrics: the unweighted `losses` of the transitions [B], and the `loss`,
        their weighted mean plus any regulariser and penalty.
    """
    return update(state, batch, draw(key, losses.check_batch(batch)))


def variables(state: LearnerState, *, params: ParamsFn) -> types.Variables:
    """Returns the network's variables: whole online parameters and the fixed prior."""
    return types.Variables(params(state), state.prior)


def values(
    state: LearnerState,
    observation: types.Array,
    indices: types.Array,
    prior: types.Belief | None = None,
    *,
    network: epistemic.EpistemicNetwork,
    params_at: ParamsAtFn,
) -> types.Array:
    """Returns the online network's Q-values of one observation at several indices.

    Args:
        state: the learner's state.
        observation: one observation.
        indices: indices [n, M].
        prior: the fixed prior's belief at the observation, if known.
        network: the network.
        params_at: returns the parameters to use at an observation.

    Returns:
        Q-values [n, num_actions].
    """
    params, local = params_at(state, observation)
    if prior is None:
        prior = network.prior(state.prior, observation)
    belief = network.posterior(params, local, prior)
    return jax.vmap(network.value, (None, None, 0))(params, belief, indices)


def reset(
    state: LearnerState,
    key: types.PRNGKey,
    *,
    network: epistemic.EpistemicNetwork,
    optimizer: optax.GradientTransformationExtraArgs | langevin.StochasticTransformation,
    rule: ResetRule,
) -> LearnerState:
    """Moves online and target parameters towards two different reinitialisations, and resets the optimiser.

    Args:
        state: the learner's state.
        key: random key.
        network: the network.
        optimizer: the optimiser.
        rule: see `ResetRule`.

    Returns:
        The state after the reset, with the same prior and number of updates.
    """

    def mixed(old: types.Params, tag: str) -> types.Params:
        fresh = network.init(types.fold_in_tag(key, tag)).params

        def mix(path: Any, x: types.Array, y: types.Array) -> types.Array:
            share = rule.kept_share(jax.tree_util.keystr(path, simple=True, separator="/").split("/"))
            return share * x + (1.0 - share) * y

        return jax.tree_util.tree_map_with_path(mix, old, fresh)

    params = mixed(state.params, "online")
    return state._replace(
        params=params, target_params=mixed(state.target_params, "target"), opt_state=optimizer.init(params)
    )


def _target_params(state: LearnerState) -> types.Params:
    return state.target_params


def _target_params_at(state: LearnerState, observation: types.Array) -> tuple[types.Params, types.Array]:
    return state.target_params, observation


def _params(state: LearnerState) -> types.Params:
    return state.params


def _params_at(state: LearnerState, observation: types.Array) -> tuple[types.Params, types.Array]:
    return state.params, observation


def make_learner(
    network: epistemic.EpistemicNetwork,
    loss: losses.Loss,
    optimizer: optax.GradientTransformation | optimizers.Adam | langevin.StochasticTransformation,
    *,
    target_period: int | types.Array = 4,
    polyak: float | types.Array | None = None,
    acts_with_target: bool = False,
    reset_rule: ResetRule | None = None,
    axis_name: str | None = None,
) -> Learner:
    """Makes a learner (Algorithm 2, option 1, of https://arxiv.org/abs/2402.10228).

    Args:
        network: the network to train.
        loss: loss of one transition.
        optimizer: any optax optimiser, `optimizers.Adam`, or `lazy_adam.LazyAdam` for networks on integer states.
            Optimisers with extra arguments (`optax.lbfgs`, `optax.contrib.reduce_on_plateau`) get `value`, `grad`
            and `value_fn`; those of langevin.py get a random `key` too.
        target_period: the target parameters become a copy of the online ones after every update whose number,
            counted from 1, is a multiple of this. May be traced.
        polyak: step size tau of a moving average instead: after every update the target parameters become
            (1 - tau) times themselves plus tau times the online ones. None for periodic copies.
        acts_with_target: whether `values` and `variables` use the target network.
        reset_rule: when to reset which parameters; None for no resets.
        axis_name: axis of the `pmap`, `shard_map` (with check_vma=False) or `vmap` in which `step` and `update`
            are called, each with its part of the batch: loss and gradient are averaged over it, so that all
            devices keep the same parameters. `update` takes the noise of its own part, `step` draws it from a key
            that all share. `value_and_grad` covers only one part. None outside such an axis.

    Returns:
        The Learner.
    """
    is_optimizer = isinstance(optimizer, optimizers.Adam) or (
        hasattr(optimizer, "init") and hasattr(optimizer, "update")
    )
    if not isinstance(loss, losses.Loss) or not is_optimizer:
        raise ValueError(
            "make_learner takes (network, loss, optimizer), with a Loss before an optax optimiser, "
            f"got a {type(loss).__name__} and a {type(optimizer).__name__}"
        )
    checks.whole_number("target_period", target_period, 1)
    if polyak is not None:
        checks.real_number("polyak", polyak, 0, 1, is_open=True)
    batch_loss = binding.bind(losses.batch_loss, network=network, loss=loss, axes=None)
    value_and_grad = binding.bind(losses.value_and_grad, network=network, loss=loss, axes=None)
    if axis_name is not None and (loss.gradient_penalty or isinstance(optimizer, lazy_adam.LazyAdam)):
        raise ValueError(
            "axis_name averages gradients, which is not enough for a gradient penalty or LazyAdam: use Adam "
            "without penalty, or shard the batch of a learner without axis_name (sharding.jit_update)"
        )
    params: ParamsFn = _params
    params_at: ParamsAtFn = _params_at
    if acts_with_target:
        params, params_at = _target_params, _target_params_at
    reset_fn: ResetFn | None = None
    draw_loss: losses.DrawFn = loss.draw
    if axis_name is not None:
        draw_loss = binding.bind(draw_shard, draw=loss.draw, axis_name=axis_name)
    draw: Any = draw_loss
    if isinstance(optimizer, lazy_adam.LazyAdam):
        if not loss.has_local_gradient:
            raise ValueError(
                "LazyAdam only updates the rows at a batch's o_tm1, so it supports neither a regulariser nor a "
                "penalty nor a loss with gradients at o_t: use Adam"
            )
        if acts_with_target or reset_rule is not None:
            raise ValueError("LazyAdam supports neither resets nor acts_with_target: use Adam")
        if polyak is not None:
            raise ValueError(
                "LazyAdam only supports periodic target copies: use target_period, or Adam with polyak"
            )
        params_like = jax.eval_shape(lambda: network.init(jax.random.key(0)).params)
        rules = lazy_adam.LazyRules(optimizer, target_period, params_like)
        init_fn = binding.bind(lazy_adam.init, network=network, rules=rules)
        update_fn = binding.bind(lazy_adam.update, network=network, loss=loss, rules=rules)
        apply_fn = binding.bind(lazy_adam.apply_gradient, rules=rules)
        params = binding.bind(lazy_adam.whole_params, rules=rules)
        params_at = binding.bind(lazy_adam.params_at, rules=rules)
    else:
        is_stochastic = isinstance(optimizer, langevin.StochasticTransformation)
        if isinstance(optimizer, optimizers.Adam):
            optimizer = optimizer.transformation()
        optimizer = optimizer if is_stochastic else optax.with_extra_args_support(optimizer)
        init_fn = binding.bind(init, network=network, optimizer=optimizer)
        apply_fn = binding.bind(apply_gradient, optimizer=optimizer, target_period=target_period, polyak=polyak)
        if reset_rule is not None:
            reset_fn = binding.bind(reset, network=network, optimizer=optimizer, rule=reset_rule)
        if is_stochastic:
            draw = binding.bind(draw_with_key, draw=draw_loss)
        update_fn = binding.bind(
            update_with_key if is_stochastic else update,
            value_and_grad=value_and_grad,
            apply_gradient=apply_fn,
            axis_name=axis_name,
        )
    return Learner(
        init=init_fn,
        step=binding.bind(step, draw=draw, update=update_fn),
        update=update_fn,
        draw=draw,
        variables=binding.bind(variables, params=params),
        values=binding.bind(values, network=network, params_at=params_at),
        batch_loss=batch_loss,
        value_and_grad=value_and_grad,
        apply_gradient=apply_fn,
        reset=reset_fn,
        reset_period=0 if reset_rule is None else reset_rule.period,
    )
