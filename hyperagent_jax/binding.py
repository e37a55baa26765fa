"""Binds settings to functions, so that the functions returned by `make_*` are documented."""

from collections.abc import Callable
import functools
import inspect
from typing import Any, TypeVar

T = TypeVar("T")


def bind(function: Callable[..., T], /, **settings: Any) -> Callable[..., T]:
    """Returns `function` with some keyword arguments fixed; unlike a partial object, `help` describes it.

    Args:
        function: a function at module level, with a docstring.
        **settings: the arguments to fix.

    Returns:
        A function of the remaining arguments, with the same name and docstring.
    """
    signature = inspect.signature(function)
    signature.bind_partial(**settings)  # refuses names that `function` does not have

    @functools.wraps(function)
    def bound(*args: Any, **kwargs: Any) -> T:
        return function(*args, **settings, **kwargs)

    remaining = [p for name, p in signature.parameters.items() if name not in settings]
    bound.__signature__ = signature.replace(parameters=remaining)  # type: ignore[attr-defined]
    return bound
