"""Checks settings, with a clear one-line message for every value that a user may get wrong.

The values of jax arrays are not checked: they may be traced, so that settings can be vmapped over.
"""

from collections.abc import Sequence
import dataclasses
import math
import numbers
from typing import Any

import jax
import jax.numpy as jnp


def whole_number(name: str, value: Any, low: int) -> None:
    """Raises ValueError unless `value` is a whole number and at least `low`."""
    if isinstance(value, jax.Array):
        if not jnp.issubdtype(value.dtype, jnp.integer):
            raise ValueError(f"{name} must be a whole number, got an array of {value.dtype}")
        return
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    if value < low:
        raise ValueError(f"{name} must be at least {low}, got {value}")


def real_number(name: str, value: Any, low: float, high: float = math.inf, *, is_open: bool = False) -> None:
    """Raises ValueError unless `value` is a finite number in [low, high], or in (low, high] if `is_open`."""
    if isinstance(value, jax.Array):
        return
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value!r}")
    number = float(value)
    if not low <= number <= high or (is_open and number == low):
        above = f"greater than {low}" if is_open else f"at least {low}"
        below = "" if high == math.inf else f" and at most {high}"
        raise ValueError(f"{name} must be {above}{below}, got {value}")


def flag(name: str, value: Any) -> None:
    """Raises ValueError unless `value` is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}")


def one_of(name: str, value: Any, choices: Sequence[str]) -> None:
    """Raises ValueError unless `value` is one of the names in `choices`."""
    if value not in choices:
        raise ValueError(f"unknown {name} {value!r}; choose one of {', '.join(choices)}")


def finite(config: Any) -> None:
    """Raises ValueError if a field of a dataclass is a number that is not finite."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{field.name} must be a finite number, got {value}")


def not_empty(config: Any, *names: str) -> None:
    """Raises ValueError if one of these fields of a dataclass is an empty list."""
    for name in names:
        if not getattr(config, name):
            raise ValueError(f"{name} must not be empty")


def positive(config: Any, *names: str) -> None:
    """Raises ValueError if one of these fields of a dataclass is less than 1; None is allowed."""
    for name in names:
        if (value := getattr(config, name)) is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")


def counts(config: Any, *names: str) -> None:
    """Raises ValueError unless these fields of a dataclass are at least 1 and fit the int32 that jax counts in."""
    positive(config, *names)
    for name in names:
        if (value := getattr(config, name)) >= 2**31:
            raise ValueError(f"{name} must be less than 2**31, got {value}")
