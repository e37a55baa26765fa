"""The loss of a batch, with its gradient."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from hyperagent_jax import types
from hyperagent_jax.losses.base import Loss
from hyperagent_jax.losses.base import LossNoise
from hyperagent_jax.networks import epistemic


def check_batch(batch: types.Batch) -> int:
    """Raises ValueError unless a batch has the shapes and dtypes that a loss needs; returns its size B.

    It reads only shapes and dtypes, so it costs nothing in a compiled program.
    """
    if not hasattr(batch, "transitions"):
        raise ValueError(f"a learner takes a Batch, got a {type(batch).__name__}: use Batch(transitions)")
    t = batch.transitions
    for name in ("a_tm1", "r_t", "discount_t"):
        if not hasattr(getattr(t, name), "dtype"):
            raise ValueError(f"{name} must be an array [B], got {getattr(t, name)!r}")
    if t.a_tm1.ndim != 1:
        raise ValueError(
            f"a_tm1 must have shape [B], got {t.a_tm1.shape}: every field of a batch has a leading batch axis"
        )
    size = t.a_tm1.shape[0]
    if not size:
        raise ValueError("the batch is empty")
    if not jnp.issubdtype(t.a_tm1.dtype, jnp.integer):
        raise ValueError(f"a_tm1 must have an integer dtype, got {t.a_tm1.dtype}")
    for name, value in (("r_t", t.r_t), ("discount_t", t.discount_t), ("weights", batch.weights)):
        if value is None:  # only weights may be None
            continue
        if value.shape != (size,):
            raise ValueError(f"{name} must have shape [B] = ({size},), got {value.shape}")
        if not jnp.issubdtype(value.dtype, jnp.floating):
            raise ValueError(f"{name} must have a floating-point dtype, got {value.dtype}: cast it to float32")
    for name, tree in (
        ("o_tm1", t.o_tm1),
        ("o_t", t.o_t),
        ("z_t", t.z_t),
        ("prior_tm1", batch.prior_tm1),
        ("prior_t", batch.prior_t),
    ):
        for leaf in jax.tree.leaves(tree):
            if jnp.shape(leaf)[:1] != (size,):
                raise ValueError(
                    f"{name} must have a leading batch axis of size {size}, got shape {jnp.shape(leaf)}"
                )
    return size


def with_prior_beliefs(
    batch: types.Batch, prior: types.Params, network: epistemic.EpistemicNetwork
) -> types.Batch:
    """Returns the batch with the fixed prior's beliefs, computing them if they were not stored."""
    over_batch = jax.vmap(network.prior, (None, 0))
    if batch.prior_tm1 is None:
        batch = batch._replace(prior_tm1=over_batch(prior, batch.transitions.o_tm1))
    if batch.prior_t is None:
        batch = batch._replace(prior_t=over_batch(prior, batch.transitions.o_t))
    return batch


def _over_transitions(
    apply: Callable[..., Any],
    params: types.Params,
    target_params: types.Params,
    batch: types.Batch,
    noise: LossNoise,
    axes: Any,
) -> Any:
    size = batch.transitions.a_tm1.shape[0]
    noise = jax.tree.map(lambda x: jnp.broadcast_to(x, (size, *x.shape[1:])), noise)  # if shared
    per_transition = jax.vmap(apply, (axes, axes, 0, 0, 0, 0))
    return per_transition(params, target_params, batch.transitions, batch.prior_tm1, batch.prior_t, noise)


def _losses_and_priorities(
    loss: Loss, params: types.Params, target_params: types.Params, batch: types.Batch, noise: LossNoise, axes: Any
) -> tuple[types.Array, types.Array]:
    """Returns the losses [B] and the priorities [B]."""
    if loss.apply_with_priority is not None:
        return _over_transitions(loss.apply_with_priority, params, target_params, batch, noise, axes)
    each = _over_transitions(loss.apply, params, target_params, batch, noise, axes)
    return each, each


def _total(each: types.Array, params: types.Params, batch: types.Batch, loss: Loss) -> types.Array:
    """Returns the weighted mean of losses [B] plus the regulariser."""
    value = jnp.mean(each if batch.weights is None else batch.weights * each)
    if loss.regularizer is not None:
        value += loss.regularizer(params, batch.replay_size)
    return value


def batch_loss(
    params: types.Params,
    target_params: types.Params,
    prior: types.Params,
    batch: types.Batch,
    noise: LossNoise,
    *,
    network: epistemic.EpistemicNetwork,
    loss: Loss,
    axes: Any = None,
) -> tuple[types.Array, types.Array]:
    """Calculates the loss of a batch, without the gradient penalty.

    Args:
        params: online parameters.
        target_params: target parameters.
        prior: the fixed prior.
        batch: a Batch of B transitions.
        noise: LossNoise of the batch.
        network: the network.
        loss: the loss of one transition.
        axes: vmap axes of both parameters; leaves that differ from one transition to the next have axis 0.

    Returns:
        The weighted mean of the losses plus the regulariser, a scalar; and the unweighted losses [B].
    """
    check_batch(batch)
    batch = with_prior_beliefs(batch, prior, network)
    each, priorities = _losses_and_priorities(loss, params, target_params, batch, noise, axes)
    return _total(each, params, batch, loss), priorities


def value_and_grad(
    params: types.Params,
    target_params: types.Params,
    prior: types.Params,
    batch: types.Batch,
    noise: LossNoise,
    *,
    network: epistemic.EpistemicNetwork,
    loss: Loss,
    axes: Any = None,
) -> tuple[tuple[types.Array, types.Array], types.Params]:
    """Calculates the loss of a batch and its gradient, with regulariser and gradient penalty.

    Args:
        params: online parameters.
        target_params: target parameters.
        prior: the fixed prior.
        batch: a Batch of B transitions.
        noise: LossNoise of the batch.
        network: the network.
        loss: the loss of one transition.
        axes: vmap axes of both parameters; leaves that differ from one transition to the next have axis 0.

    Returns:
        ((value, losses), gradient): a scalar value, the unweighted losses of the transitions [B], and a gradient
        with the structure of `params`. If the value is NaN, the gradient may be zero instead of NaN: see
        `propagate_nan`.
    """
    check_batch(batch)
    batch = with_prior_beliefs(batch, prior, network)
    if loss.gradient_penalty:
        return _penalized_value_and_grad(params, target_params, batch, noise, loss, axes)

    def of_params(params: types.Params) -> tuple[types.Array, types.Array]:
        each, priorities = _losses_and_priorities(loss, params, target_params, batch, noise, axes)
        return _total(each, params, batch, loss), priorities

    return jax.value_and_grad(of_params, has_aux=True)(params)


def propagate_nan(value: types.Array, params: types.Params) -> types.Params:
    """Returns the updated parameters, with the smallest array set to NaN if the value of the loss is NaN.

    In a compiled program the gradient of a maximum of NaNs may be zero, and a NaN reward would go unnoticed. One
    array is enough to make all Q-values NaN; setting all arrays would cost 6% of a step of a small network.
    """
    leaves, structure = jax.tree.flatten(params)
    smallest = min(range(len(leaves)), key=lambda i: leaves[i].size)
    leaves[smallest] = jnp.where(jnp.isnan(value), jnp.nan, leaves[smallest])
    return jax.tree.unflatten(structure, leaves)


def _penalized_value_and_grad(
    params: types.Params, target_params: types.Params, batch: types.Batch, noise: LossNoise, loss: Loss, axes: Any
) -> tuple[tuple[types.Array, types.Array], types.Params]:
    """Implements `value_and_grad` for a loss with a gradient penalty; the batch includes prior beliefs."""
    # With g the gradient of the mean value and H its Hessian, the gradient of |g|^2 is 2 H g, and H v is the
    # derivative of g along v. A backward pass is linear in its cotangent, so its derivative at (parameters, mean
    # value) in the direction (v, loss) is H v plus the gradient of the loss. Hence a single forward derivative of
    # a single backward pass gives everything; two backward passes take four times as long.
    apply = loss.apply_with_value
    assert apply is not None  # with_gradient_penalty rejects other losses

    def loss_and_value(params: types.Params) -> Any:
        each, values = _over_transitions(apply, params, target_params, batch, noise, axes)
        value = _total(each, params, batch, loss)
        return (value, jnp.mean(values)), (value, each)

    def pull_back(params: types.Params, cotangents: tuple[float, float]) -> Any:
        _, transposed, aux = jax.vjp(loss_and_value, params, has_aux=True)
        return transposed(cotangents)[0], aux

    of_value, along, (value, each) = jax.linearize(pull_back, params, (0.0, 1.0), has_aux=True)
    gradient = along(optax.tree.scale(2 * loss.gradient_penalty, of_value), (1.0, 0.0))
    penalty = loss.gradient_penalty * optax.tree.norm(of_value, squared=True)
    return (value + penalty, each), gradient
