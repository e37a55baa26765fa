"""The error that is shown to a user as one line, without a traceback."""

from collections.abc import Iterator
import contextlib


class UserError(Exception):
    """Something the user can fix; the message says what is wrong and what to do, in one line."""

    def __init__(self, message: str):
        super().__init__(" ".join(message.splitlines()))  # names of files may have line breaks


@contextlib.contextmanager
def settings_are_the_users(prefix: str = "") -> Iterator[None]:
    """Turns the ValueError of a bad setting into a UserError."""
    try:
        yield
    except ValueError as error:
        raise UserError(f"{prefix}{error}") from error


@contextlib.contextmanager
def optional_library(name: str, extra: str) -> Iterator[None]:
    """Turns a failed import into a line that says what to install."""
    try:
        yield
    except ImportError as error:
        raise UserError(f"{name} is not installed: pip install 'hyperagent_jax[{extra}]'") from error
