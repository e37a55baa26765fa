"""Environments that run on device, by name."""

import importlib
import os
import sys
from typing import Any

from hyperagent_jax import errors
from hyperagent_jax.environments import base
from hyperagent_jax.environments import exploration
from hyperagent_jax.environments import gymnax_adapter
from hyperagent_jax.environments import navix_adapter
from hyperagent_jax.environments import pgx_adapter

# Prefixes of names (before the slash), and the modules that make these environments.
LIBRARIES: dict[str, Any] = {
    "explore": exploration,
    "minatar": pgx_adapter,
    "gymnax": gymnax_adapter,
    "navix": navix_adapter,
}


def make(name: str) -> base.Environment:
    """Makes an environment.

    Args:
        name: library/environment, such as "explore/mountain_car", "minatar/breakout", "gymnax/CartPole-v1" or
            "navix/Navix-Empty-5x5-v0"; or module:function, a function without arguments that returns an
            `Environment`. The module may be in the current directory.
    """
    if ":" in name:
        return _make_own(name)
    library, _, environment = name.partition("/")
    if library not in LIBRARIES:
        known = ", ".join(f"{known}/NAME" for known in LIBRARIES)
        raise errors.UserError(
            f"unknown environment {name!r}: use {known}, or your own module:function; --env=list shows all names"
        )
    adapter = LIBRARIES[library]
    if environment not in adapter.names():
        raise errors.UserError(f"{library} has no {environment!r}; choose one of {', '.join(adapter.names())}")
    return adapter.make(environment)


def _make_own(name: str) -> base.Environment:
    module, _, function = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        environment = getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise errors.UserError(
            f"cannot make {name!r} ({error}): it must be module:function, with an importable module and a "
            "function without required arguments"
        ) from error
    if not isinstance(environment, base.Environment):
        raise errors.UserError(
            f"{name} must return an environments.base.Environment, got {type(environment).__name__}"
        )
    return environment


def listing() -> str:
    """Returns all environments, one per line, and which libraries are not installed."""
    lines = []
    for library, adapter in LIBRARIES.items():
        try:
            lines += [f"{library}/{name}" for name in adapter.names()]
        except errors.UserError as error:
            lines.append(f"{library}: {error}")
    return "\n".join(lines)
