"""The error that is shown to a user as one line, without a traceback."""

from collections.abc import Iterator
import contextlib


class UserError(Exception):
    """Something the user can fix; the message says what is wrong and what to do, in one line."""


@contextlib.contextmanager
def settings_are_the_users(prefix: str = "") -> Iterator[None]:
    """Turns the ValueError of a bad setting into a UserError."""
    try:
        yield
    except ValueError as error:
        raise UserError(f"{prefix}{error}") from error
