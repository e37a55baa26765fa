"""The error that is shown to the user as one line, without a traceback."""

from collections.abc import Iterator
import contextlib


class UserError(Exception):
    """Something the user can fix; the message says what is wrong and what to do, in one line."""

    def __init__(self, message: str):
        super().__init__(" ".join(message.splitlines()))  # file names may contain line breaks


@contextlib.contextmanager
def settings_are_the_users(prefix: str = "") -> Iterator[None]:
    """Converts the ValueError of a bad setting to a UserError."""
    try:
        yield
    except ValueError as error:
        raise UserError(f"{prefix}{error}") from error


@contextlib.contextmanager
def optional_library(name: str, extra: str) -> Iterator[None]:
    """Converts a failed import to a one-line error that says what to install."""
    try:
        yield
    except ImportError as error:
        raise UserError(f"{name} is not installed: pip install 'hyperagent_jax[{extra}]'") from error
