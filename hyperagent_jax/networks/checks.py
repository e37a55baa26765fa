"""Checks the arguments of functions that build networks."""

import numbers
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hyperagent_jax import checks


def require_num_actions(num_actions: Any) -> None:
    """Raises ValueError unless `num_actions` is a positive whole number."""
    if isinstance(num_actions, bool) or not isinstance(num_actions, numbers.Integral) or num_actions < 1:
        raise ValueError(f"num_actions must be a whole number of at least 1, got {num_actions!r}")


def require_finite(**scales: Any) -> None:
    """Raises ValueError unless all named scales are finite numbers; traced values are not checked."""
    for name, scale in scales.items():
        if isinstance(scale, jax.core.Tracer):
            continue
        is_number = isinstance(scale, numbers.Real) or (isinstance(scale, jax.Array) and scale.ndim == 0)
        if not is_number:
            raise ValueError(f"{name} must be a finite number, got {scale!r}")
        checks.finite_number(name, scale)


def require_widths(name: str, widths: Any) -> None:
    """Raises ValueError unless `widths` is one or more positive whole numbers."""
    is_list = isinstance(widths, tuple | list) and len(widths) > 0
    if not is_list or not all(isinstance(width, numbers.Integral) and int(width) >= 1 for width in widths):
        raise ValueError(f"{name} must be one or more positive widths, got {widths!r}")


def example_observation(observation: Any, num_states: int | None = None) -> Any:
    """Returns zeros with the shapes and dtypes of an example observation.

    Args:
        observation: an array, a number, nested lists of numbers, a jax.ShapeDtypeStruct, or a dict or tuple of
            these.
        num_states: number of states for integer observations; the example must then be a single integer.
    """

    def zeros(leaf: Any) -> jax.Array:
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            leaf = np.asarray(leaf)
        if leaf.dtype.kind in "OSUM":
            raise ValueError(f"the example observation must consist of numbers, got {observation!r}")
        return jnp.zeros(leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype))

    try:
        example = jax.tree.map(zeros, observation, is_leaf=lambda x: isinstance(x, list))
    except (TypeError, AttributeError) as error:
        raise ValueError(f"the example observation must consist of numbers, got {observation!r}") from error
    if num_states is not None:
        if isinstance(num_states, bool) or not isinstance(num_states, numbers.Integral) or num_states < 1:
            raise ValueError(f"num_states must be a whole number of at least 1, got {num_states!r}")
        is_integer = isinstance(example, jax.Array) and jnp.issubdtype(example.dtype, jnp.integer)
        if not is_integer or example.shape:
            raise ValueError(
                f"num_states is for observations that are a single integer, got an example {describe(example)}: "
                "omit num_states"
            )
    return example


def describe(tree: Any) -> str:
    """Returns the dtypes and shapes of a pytree of arrays in one line, such as float32[8]."""

    def text(leaf: Any) -> str:
        return f"{np.dtype(leaf.dtype).name}[{', '.join(map(str, leaf.shape))}]"

    return text(tree) if hasattr(tree, "shape") else str(jax.tree.map(text, tree)).replace("'", "")
