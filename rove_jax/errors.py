"""The two errors a person can cause, and the exit code each one becomes."""


class UsageError(ValueError):
    """A wrong argument, config field or input: one line saying what, which value, and what to do. Exit code 2."""


class RunError(RuntimeError):
    """Work that began and could not be finished: one line saying what happened and what is left. Exit code 1."""
