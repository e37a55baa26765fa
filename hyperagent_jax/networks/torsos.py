"""Feature networks phi_w, written for one observation."""

from collections.abc import Sequence
from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp

from hyperagent_jax import types

# The released code draws every torso weight Xavier normal, not truncated, and starts biases at zero.
xavier_normal = nn.initializers.variance_scaling(1.0, "fan_avg", "normal")

# Name of the parameter that holds one row per integer state.
ROWS = "rows"


class Mlp(nn.Module):
    """ReLU network on a flattened observation."""

    features: Sequence[int] = (64, 64)

    @nn.compact
    def __call__(self, observation: types.Array) -> types.Array:
        x = observation.reshape(-1).astype(jnp.float32)
        for i, width in enumerate(self.features):
            x = nn.relu(nn.Dense(width, kernel_init=xavier_normal, name=f"layer_{i}")(x))
        return x


def look_up_row(
    module: nn.Module, init: nn.initializers.Initializer, shape: tuple[int, int], state: types.Array
) -> types.Array:
    """Row `state` of the table `ROWS` of a module, which has the given shape when it is made.

    A learner may later put a shorter table in its place, with only the rows that a batch asks for.
    """
    if module.has_variable("params", ROWS):  # any number of rows, so no check of its shape
        return module.get_variable("params", ROWS)[state]
    return module.param(ROWS, init, shape)[state]


class OneHot(nn.Module):
    """The one-hot code of an integer state, nothing learned: the features of the tabular analysis."""

    num_states: int

    def __call__(self, state: types.Array) -> types.Array:
        return nn.one_hot(state, self.num_states)


class OneHotMlp(nn.Module):
    """`Mlp` on the one-hot code of an integer state, without the one-hot.

    The first layer is a row lookup (see `look_up_row`); all other parameters have the shapes of `Mlp`.
    """

    num_states: int
    features: Sequence[int] = (64, 64)

    @nn.compact
    def __call__(self, state: types.Array) -> types.Array:
        row = look_up_row(self, xavier_normal, (self.num_states, self.features[0]), state)
        x = nn.relu(row + self.param("bias", nn.initializers.zeros, (self.features[0],)))
        for i, width in enumerate(self.features[1:], start=1):
            x = nn.relu(nn.Dense(width, kernel_init=xavier_normal, name=f"layer_{i}")(x))
        return x


class TransposedDense(nn.Module):
    """`nn.Dense` for one vector, with its kernel as [features, inputs].

    In this order the kernel's second derivatives, which a gradient penalty takes, come out as they are stored.
    """

    features: int

    @nn.compact
    def __call__(self, x: types.Array) -> types.Array:
        kernel = self.param("kernel", xavier_normal, (self.features, x.shape[0]))
        return kernel @ x + self.param("bias", nn.initializers.zeros, (self.features,))


class AtariConv(nn.Module):
    """The convolutional network of DQN on [height, width, channels] pixels in 0..255.

    As in the released code the pixels enter unscaled and the flat convolution outputs are scaled to
    [0, 1] per example before the dense layer. Height and width must be at least `SMALLEST_SIDE`.
    """

    SMALLEST_SIDE: ClassVar[int] = 36

    dense: int = 256

    @nn.compact
    def __call__(self, pixels: types.Array) -> types.Array:
        x = pixels.astype(jnp.float32)
        for channels, kernel, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
            x = nn.Conv(channels, (kernel, kernel), (stride, stride), padding="VALID", kernel_init=xavier_normal)(
                x
            )
            x = nn.relu(x)
        return nn.relu(TransposedDense(self.dense)(min_max_normalize(x.reshape(-1))))


def min_max_normalize(x: types.Array) -> types.Array:
    """Scales the entries of one example to [0, 1]; a constant example becomes all zeros."""
    low, high = jnp.min(x), jnp.max(x)
    return (x - low) / jnp.maximum(high - low, 1e-8)
