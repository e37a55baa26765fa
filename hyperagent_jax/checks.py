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

# What jax has room for, by default.
_MOST_COUNT = 2**31
_LARGEST = float(jnp.finfo(jnp.float32).max)


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
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ValueError(f"{name} must be a finite number, got {value!r}")
    finite_number(name, value)
    number = float(value)
    if not low <= number <= high or (is_open and number == low):
        above = f"greater than {low}" if is_open else f"at least {low}"
        below = "" if high == math.inf else f" and at most {high}"
        raise ValueError(f"{name} must be {above}{below}, got {value}")


def finite_number(name: str, value: Any) -> None:
    """Raises ValueError unless a number is finite in the 32 bits that jax computes with."""
    if not -_LARGEST <= value <= _LARGEST:
        size = " of 32 bits" if abs(value) < math.inf else ""
        raise ValueError(f"{name} must be a finite number{size}, got {value!r}")


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
        if isinstance(value := getattr(config, field.name), float):
            finite_number(field.name, value)


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
        if (value := getattr(config, name)) >= _MOST_COUNT:
            raise ValueError(f"{name} must be less than 2**31, got {value}")


def seeds(config: Any, name: str, number: int = 1) -> None:
    """Raises ValueError unless this field of a dataclass can be the first of `number` consecutive seeds."""
    value = getattr(config, name)
    whole_number(name, value, 0)
    if value > (most := _MOST_COUNT - number):
        raise ValueError(f"{name} must be at most {most}, got {value}")
