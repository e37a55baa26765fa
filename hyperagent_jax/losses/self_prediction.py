"""BBF's additions to a loss: prediction of the network's own later latents, and image augmentation."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hyperagent_jax import types
from hyperagent_jax.losses.base import Loss
from hyperagent_jax.losses.base import LossNoise


def self_prediction_loss(predictions: types.Array, targets: types.Array, mask: types.Array) -> types.Array:
    """Calculates the mean over K steps of mask |p / |p| - q / |q||^2, which is 2 - 2 cos (SPR).

    Args:
        predictions: predictions p, [K, width].
        targets: targets q, [K, width], without a gradient.
        mask: 1 for valid steps, [K].
    """

    def unit(x: types.Array) -> types.Array:
        return x / jnp.sqrt(jnp.maximum(jnp.sum(x**2, axis=-1, keepdims=True), 1e-12))

    difference = unit(predictions) - unit(jax.lax.stop_gradient(targets))
    return jnp.mean(mask * jnp.sum(difference**2, axis=-1))


def with_self_prediction(
    loss: Loss,
    predict: Callable[[types.Params, Any, types.Array], types.Array],
    project: Callable[[types.Params, Any], types.Array],
    weight: float,
) -> Loss:
    """Adds weight times the self-prediction loss, without changing priorities.

    Args:
        loss: a loss of transitions that are `types.Subsequence`.
        predict: maps (params, observation, actions [K]) to predictions [K, width].
        project: maps (params, observation) to a target of the predictions, [width].
        weight: factor of the self-prediction loss.
    """

    def apply_with_priority(
        params: types.Params,
        target_params: types.Params,
        transition: Any,
        prior_tm1: types.Belief,
        prior_t: types.Belief,
        noise: LossNoise,
    ) -> tuple[types.Array, types.Array]:
        own = loss.apply(params, target_params, transition, prior_tm1, prior_t, noise)
        future = transition.future
        targets = jax.vmap(project, (None, 0))(target_params, future.observations)
        predictions = predict(params, transition.o_tm1, future.actions)
        return own + weight * self_prediction_loss(predictions, targets, future.mask), own

    return _with_pair(loss, apply_with_priority)


def _with_pair(loss: Loss, pair: Callable[..., tuple[types.Array, types.Array]]) -> Loss:
    return loss._replace(
        apply=lambda *inputs: pair(*inputs)[0],
        apply_with_priority=pair,
        apply_with_value=None,
        is_semi_gradient=False,
    )


class AugmentationNoise(NamedTuple):
    """The random numbers of a loss with augmentation.

    Attributes:
        loss: random numbers of the loss itself.
        offsets: crop offsets of a transition's images, [B, 2 + K, 2].
        intensities: factors of the images' pixels, [B, 2 + K].
    """

    loss: LossNoise
    offsets: types.Array
    intensities: types.Array


def augment(picture: types.Array, offset: types.Array, intensity: types.Array, pad: int) -> types.Array:
    """Pads an image by its edges, crops it at an offset and scales it; bytes are mapped to [0, 1]."""
    x = picture.astype(jnp.float32)
    if picture.dtype == jnp.uint8:
        x = x / 255.0
    padded = jnp.pad(x, ((pad, pad), (pad, pad), (0, 0)), mode="edge")
    return intensity * jax.lax.dynamic_slice(padded, (*offset, jnp.zeros((), offset.dtype)), picture.shape)


def with_augmentation(loss: Loss, *, pad: int, intensity: float, num_future: int) -> Loss:
    """Shifts and scales every image of a transition independently (DrQ).

    Args:
        loss: a loss with `apply_with_priority` of transitions that are `types.Subsequence`.
        pad: images are padded by this and cropped; offsets are 0 to 2 pad - 1, as in BBF's code.
        intensity: standard deviation of the factor of all pixels, normal, truncated at 2 standard deviations.
        num_future: number of following observations K.
    """
    inner = loss.apply_with_priority
    if inner is None:
        raise ValueError("augmentation needs a loss with apply_with_priority: use with_self_prediction first")

    def draw(key: types.PRNGKey, batch_size: int) -> Any:
        shape = (batch_size, 2 + num_future)
        offsets = jax.random.randint(types.fold_in_tag(key, "offsets"), (*shape, 2), 0, max(2 * pad, 1))
        normal = jnp.clip(jax.random.normal(types.fold_in_tag(key, "intensities"), shape), -2.0, 2.0)
        return AugmentationNoise(loss.draw(key, batch_size), offsets, 1.0 + intensity * normal)

    def apply_with_priority(
        params: types.Params,
        target_params: types.Params,
        transition: Any,
        prior_tm1: types.Belief,
        prior_t: types.Belief,
        noise: AugmentationNoise,
    ) -> tuple[types.Array, types.Array]:
        pictures = jnp.concatenate([transition.o_tm1[None], transition.o_t[None], transition.future.observations])
        seen = jax.vmap(augment, (0, 0, 0, None))(pictures, noise.offsets, noise.intensities, pad)
        future = transition.future._replace(observations=seen[2:])
        changed = transition._replace(o_tm1=seen[0], o_t=seen[1], future=future)
        return inner(params, target_params, changed, prior_tm1, prior_t, noise.loss)

    return _with_pair(loss, apply_with_priority)._replace(draw=draw)
