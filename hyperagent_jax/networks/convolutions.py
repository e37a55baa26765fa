"""Convolutional torsos of other systems, for pixels [height, width, channels] in 0..255.

`torsos.AtariConv` is HyperAgent's. All have an optional dense layer, without which they return the convolutions'
output.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp

from hyperagent_jax import types
from hyperagent_jax.networks import initializers
from hyperagent_jax.networks import torsos

# Channels, kernel size and stride of every convolution.
NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
DATA_EFFICIENT = ((32, 5, 5), (64, 5, 5))


class PlainConv(nn.Module):
    """Convolutions without padding, with ReLU and an optional dense layer, initialised as in PyTorch and dqn_zoo.

    With `NATURE` it is the network of DQN, with `DATA_EFFICIENT` that of DER.

    Attributes:
        layers: channels, kernel size and stride of every convolution.
        dense: width of the dense layer; None for none.
        divisor: pixels are divided by this.
        dtype: dtype of the convolutions' activations; None for float32.
    """

    SMALLEST_SIDE: ClassVar[int] = 36

    layers: Sequence[tuple[int, int, int]] = NATURE
    dense: int | None = None
    divisor: float = 255.0
    dtype: Any = None

    @nn.compact
    def __call__(self, pixels: types.Array) -> types.Array:
        x = pixels.astype(jnp.float32) / self.divisor
        for i, (channels, side, stride) in enumerate(self.layers):
            init = initializers.uniform_fan_in(side * side * x.shape[-1])
            conv = nn.Conv(
                channels,
                (side, side),
                stride,
                padding="VALID",
                kernel_init=init,
                bias_init=init,
                dtype=self.dtype,
                name=f"conv_{i}",
            )
            x = nn.relu(conv(x))
        x = x.reshape(-1).astype(jnp.float32)
        if self.dense is None:
            return x
        init = initializers.uniform_fan_in(x.shape[0])
        return nn.relu(nn.Dense(self.dense, kernel_init=init, bias_init=init, name="dense")(x))


class ImpalaConv(nn.Module):
    """BBF's residual network (IMPALA's, four times as wide), with its latent scaled to [0, 1] per example.

    A stage is a 3 x 3 convolution, 3 x 3 max pooling with stride 2, and two residual blocks.

    Attributes:
        channels: channels of the stages.
        dense: width of the dense layer; None for none.
        is_flat: whether to return features [H] rather than the latent [height, width, channels].
        dtype: dtype of the convolutions' activations; None for float32.
    """

    SMALLEST_SIDE: ClassVar[int] = 3

    channels: Sequence[int] = (64, 128, 128)
    dense: int | None = None
    is_flat: bool = True
    dtype: Any = None

    @nn.compact
    def __call__(self, pixels: types.Array) -> types.Array:
        xavier = nn.initializers.xavier_uniform()
        x = pixels.astype(jnp.float32)
        if pixels.dtype == jnp.uint8:
            x = x / 255.0
        for stage, channels in enumerate(self.channels):

            def conv(x: types.Array, name: str, stage: int = stage, channels: int = channels) -> types.Array:
                name = f"stage_{stage}_{name}"
                return nn.Conv(channels, (3, 3), kernel_init=xavier, dtype=self.dtype, name=name)(x)

            x = nn.max_pool(conv(x, "in"), (3, 3), (2, 2), padding="SAME")
            for block in range(2):
                y = conv(nn.relu(x), f"block_{block}_0")
                x = x + conv(nn.relu(y), f"block_{block}_1")
        x = torsos.min_max_normalize(nn.relu(x).astype(jnp.float32))
        if not self.is_flat:
            return x
        x = x.reshape(-1)
        return x if self.dense is None else nn.relu(nn.Dense(self.dense, kernel_init=xavier, name="dense")(x))
