"""The errors that a user can cause, each carried to the command line as one line."""


class MemplanError(Exception):
    """Base of every error that is the input's fault, not ours. `str()` is one plain line."""


class InputError(MemplanError):
    """A file, a unit or an option that cannot be accepted: says where and why."""


class MismatchError(MemplanError):
    """Graph, model, schedule and machine do not belong together."""


class MissingPackageError(MemplanError):
    """A needed package or external solver is not installed."""
