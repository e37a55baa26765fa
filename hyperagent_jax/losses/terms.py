"""Terms that can be added to a loss."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from hyperagent_jax import types
from hyperagent_jax.losses.base import Loss
from hyperagent_jax.networks import epistemic


def _with_regularizer(loss: Loss, term: Callable[[types.Params], types.Array], beta: float) -> Loss:
    """Adds beta / |D| times a function of the parameters to the loss's regulariser."""
    if not beta:
        return loss
    others = loss.regularizer

    def regularizer(params: types.Params, replay_size: types.Array | None) -> types.Array:
        if replay_size is None:
            raise ValueError(
                "a regulariser needs the batch's replay_size: the number of transitions in the replay"
            )
        value = beta * term(params) / jnp.maximum(replay_size, 1)
        return value if others is None else value + others(params, replay_size)

    return loss._replace(regularizer=regularizer)


def with_prior_regularization(loss: Loss, beta: float) -> Loss:
    """Adds beta / |D| |theta|^2 (eq. 5)."""

    def squared_norm(params: types.Params) -> types.Array:
        return sum((jnp.sum(x**2) for x in jax.tree.leaves(params)), start=0)  # type: ignore[return-value]

    return _with_regularizer(loss, squared_norm, beta)


def with_head_regularization(loss: Loss, network: epistemic.EpistemicNetwork, beta: float) -> Loss:
    """Adds beta / |D| times the mean square of the generated last-layer weights A xi + b, as in the released code.

    That code samples xi; this is the expectation, the mean over weights i of c |A_i|^2 + b_i^2 with E[xi xi^T] = c
    I.
    """
    if not beta:
        return loss
    second_moment = network.index.second_moment
    if not network.is_linear or not network.index.is_isotropic or second_moment is None:
        raise ValueError("head_regularization needs a generated last layer: use prior_regularization")

    def mean_square(params: types.Params) -> types.Array:
        kernel = params["head"]["kernel"]  # A, followed by b: [features, num_actions, M + 1]
        variances = second_moment * jnp.sum(kernel[..., :-1] ** 2, axis=-1)
        return jnp.mean(variances + kernel[..., -1] ** 2)

    return _with_regularizer(loss, mean_square, beta)


def with_gradient_penalty(loss: Loss, factor: float) -> Loss:
    """Adds factor times the squared norm of the gradient of the batch's mean Q-value (released code, Atari)."""
    if factor and loss.apply_with_value is None:
        raise ValueError("a gradient penalty needs a loss with apply_with_value")
    return loss._replace(gradient_penalty=factor)
