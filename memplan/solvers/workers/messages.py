"""Messages between a program and its worker processes: one type, pickled on a private pipe."""

from __future__ import annotations

import pickle
from enum import IntEnum
from typing import IO, Any, NamedTuple

from ...graphs.errors import MemplanError


class MessageKind(IntEnum):
    """Kind of a message. The first two go to the worker, the others come from it."""

    CALL = 0
    """A call; value: the function's name as `module:function`, and its arguments."""
    STOP = 1
    """A request for the result of the call at once."""
    EVENT = 2
    """A report of the function on the way, as value."""
    RETURN = 3
    """The end of the call; value: the result."""
    RAISE = 4
    """The end of the call; value: the error that it raised."""
    ENDED = 5
    """The end of the process, noted by the program's side."""


class Message(NamedTuple):
    """A message about the call of this number. value: pickled apart from it, so that a thread can pass on
    what only the receiver can read."""

    kind: MessageKind
    number: int
    value: bytes

    @staticmethod
    def of(kind: MessageKind, number: int, value: object = None) -> Message:
        """Pickle a message's value."""
        return Message(kind, number, pickle.dumps(value, pickle.HIGHEST_PROTOCOL))

    def read(self) -> Any:
        """Return the value."""
        return pickle.loads(self.value)


class WorkerFaultError(MemplanError):
    """The function of a worker raised an error that is not a refusal: a bug of it, or of what it calls."""


def send(pipe: IO[bytes], message: Message) -> None:
    """Write a message. Raises OSError or ValueError if the other side is gone or the pipe is closed."""
    pickle.dump(tuple(message), pipe, pickle.HIGHEST_PROTOCOL)
    pipe.flush()


def receive(pipe: IO[bytes]) -> Message | None:
    """Read the next message; None once the other side is gone."""
    try:
        return Message(*pickle.load(pipe))
    except (EOFError, OSError, ValueError, pickle.UnpicklingError):
        return None  # the pipe is closed, or its last message is not whole


def portable(error: BaseException) -> BaseException:
    """Return the error as it goes through a pipe: errors of memplan as they are, all others as their line."""
    if isinstance(error, MemplanError | KeyboardInterrupt):
        return error
    return WorkerFaultError(f"{type(error).__name__}: {' '.join(str(error).split())}")
