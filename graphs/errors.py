"""The errors that a user can cause, each carried to the command line as one line."""

LONGEST_LINE = 1000
"""Characters; of a longer line the middle is left out."""


class MemplanError(Exception):
    """Base of every error that is the input's fault, not ours. `str()` is one plain line."""

    def __str__(self) -> str:
        line = super().__str__()
        if len(line) <= LONGEST_LINE:
            return line
        return f"{line[: LONGEST_LINE * 3 // 4]} … {line[-LONGEST_LINE // 5 :]}"


class InputError(MemplanError):
    """A file, a unit or an option that cannot be accepted: says where and why."""


class MismatchError(MemplanError):
    """Graph, model, schedule and machine do not belong together."""


class MissingPackageError(MemplanError):
    """A needed package or external solver is not installed."""
