"""The error that is shown to a user as one line, without a traceback."""


class UserError(Exception):
    """Something the user can mend; the message says what is wrong and what to do, in one line."""
