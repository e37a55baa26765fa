"""Environments that run on device, by name."""

from typing import Any

from hyperagent_jax import errors
from hyperagent_jax.environments import base
from hyperagent_jax.environments import gymnax_adapter
from hyperagent_jax.environments import navix_adapter
from hyperagent_jax.environments import pgx_adapter

# What stands before the slash of a name, and the adapter of the library.
LIBRARIES: dict[str, Any] = {"minatar": pgx_adapter, "gymnax": gymnax_adapter, "navix": navix_adapter}


def make(name: str) -> base.Environment:
    """Makes an environment.

    Args:
        name: library/environment, such as "minatar/breakout", "gymnax/CartPole-v1" or "navix/Navix-Empty-5x5-v0".
    """
    library, _, environment = name.partition("/")
    if library not in LIBRARIES:
        known = ", ".join(f"{known}/NAME" for known in LIBRARIES)
        raise errors.UserError(f"unknown environment {name!r}: names are {known}; --env=list lists them")
    adapter = LIBRARIES[library]
    if environment not in adapter.names():
        raise errors.UserError(f"{library} has no {environment!r}; it has {', '.join(adapter.names())}")
    return adapter.make(environment)


def listing() -> str:
    """All environments of the libraries that are installed, a line each, and what is not installed."""
    lines = []
    for library, adapter in LIBRARIES.items():
        try:
            lines += [f"{library}/{name}" for name in adapter.names()]
        except errors.UserError as error:
            lines.append(f"{library}: {error}")
    return "\n".join(lines)
