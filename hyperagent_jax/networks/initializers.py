"""Initialisers that several layers share."""

import flax.linen as nn
import jax
import jax.numpy as jnp


def uniform_fan_in(num_inputs: int) -> nn.initializers.Initializer:
    """Initialises weights and biases of a layer with so many inputs uniformly in +-1/sqrt(num_inputs)."""
    bound = num_inputs**-0.5
    return lambda key, shape, dtype=jnp.float32: jax.random.uniform(key, shape, dtype, -bound, bound)
