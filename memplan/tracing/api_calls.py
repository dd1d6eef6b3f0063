"""Calls of torch's functions that the code of a traced iteration makes, each under what it is made of.

A key is the function with its arguments, tensors by their numbers. The same key has the same result, so that
the code can run once more without computing anything: host_part.py.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import takewhile
from math import inf
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..guards.captured import users_line
from ..torch_support.torch_autograd import functions_applied
from ..torch_support.torch_fakes import FakeTensor, no_dispatch_modes, no_function_modes
from ..torch_support.torch_tensors import version_of
from ..torch_support.torch_trees import tensors_among, tree_map
from ..torch_support.unsupported import is_value_dependent, note_frames
from .layers import traced_graph

MOST_ELEMENTS = 2**22
"""Elements of a tensor whose values code may ask for; a larger one is data, not a figure for a log."""

VARIED = inf
"""Stands for numbers that differ from element to element: code that sorts or picks feels the difference."""

_SHOWS_VALUES = {"numpy", "__array__", "__format__", "__repr__"}
"""Names of functions whose answer is the values, though a fake tensor would give one too."""


class UnknownTensorError(Exception):
    """Error of a key: an argument is a tensor that the trace has not seen."""


class Made(NamedTuple):
    """The result of a call.

    number: which of all calls it is.
    nests: whether tensors are in a container that it returned.
    asked: which of the questions for values it is, None if it is none; its result is not kept then.
    changes: whether it changed a tensor among its arguments.
    """

    number: int
    result: Any = None
    nests: bool = False
    asked: int | None = None
    changes: bool = False


class Question(NamedTuple):
    """A call whose answer depends on the values of tensors.

    place: the user's line.
    error: what the trace would have raised there.
    """

    place: str
    error: Exception


class Calls:
    """All calls of a trace.

    tensors: those among arguments and results, by number. They are held: no other gets their identity.
    versions: how often each had been changed when it was last a result.
    questions: calls that ask for values, in their order.
    """

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.versions: list[int] = []
        self.numbers: dict[int, int] = {}
        self.questions: list[Question] = []
        self.changing: set[int] = set()
        self._made: dict[Any, list[Made]] = {}
        self._count = 0

    def number(self, tensor: Tensor) -> int:
        """Return the number of a tensor, a new one if it has none yet."""
        found = self.numbers.setdefault(id(tensor), len(self.tensors))
        if found == len(self.tensors):
            self.tensors.append(tensor)
            self.versions.append(version_of(tensor))
        return found

    def add(self, key: Any, result: Any, *, changes: bool) -> None:
        leaves = tensors_among(result)
        for leaf in leaves:
            self.versions[self.number(leaf)] = version_of(leaf)
        nests = bool(leaves) and not isinstance(result, Tensor)
        self._add(key, Made(self._count, result, nests, changes=changes))

    def add_question(self, key: Any, question: Question) -> int:
        """Note a call that asks for values, and return its number among these."""
        self.questions.append(question)
        self._add(key, Made(self._count, asked=len(self.questions) - 1))
        return len(self.questions) - 1

    def find(self, key: Any, before: int) -> Made | None:
        """Return the call with this key before which there were as many; the last if there were fewer."""
        found = self._made.get(key)
        return None if found is None else found[min(before, len(found) - 1)]

    def _add(self, key: Any, made: Made) -> None:
        self._made.setdefault(key, []).append(made)
        self._count += 1
        if made.changes:
            self.changing.add(made.number)


def key_of(thing: Any, number: Callable[[Tensor], int]) -> Any:
    """Return what a function and its arguments are found under.

    number: of a tensor; may raise UnknownTensorError.
    """
    kind = type(thing)
    if issubclass(kind, Tensor):
        return Tensor, number(thing)
    if kind is float or kind is complex:
        return kind, repr(thing)  # nan is not equal to itself
    if issubclass(kind, tuple | list):  # a torch.Size is as good as a tuple
        return tuple, *[key_of(part, number) for part in thing]
    if kind is dict:
        return kind, *[(name, key_of(part, number)) for name, part in thing.items()]
    if kind is slice:
        return kind, key_of((thing.start, thing.stop, thing.step), number)
    try:
        hash(thing)
    except TypeError:
        return kind, id(thing)
    return kind, thing  # the type too: True and 1 are equal


class Recorder(TorchFunctionMode):
    """Mode that notes the calls of the code within, and answers questions for values with those of a guess.

    What follows from a guess is computed on it, apart from the trace. Whether it leads to the loss is for
    host_part.py to find out.
    """

    def __init__(self, guess: float) -> None:
        """Start without calls. guess: the value of every element that is asked for."""
        super().__init__()
        self.guess = guess
        self.calls = Calls()
        self.needed: set[int] = set()
        self._inside = False
        self._guessed: dict[int, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.call(func, func, args, kwargs or {})

    def applied(self) -> AbstractContextManager[Any]:
        """Return a context in which each `torch.autograd.Function` is applied as one call."""
        return functions_applied(self.call)

    def call(self, name: Any, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Make a call and note it. name: what it is found under."""
        if self._inside:
            return func(*args, **kwargs)
        tensors = tensors_among((args, kwargs))
        if any(id(tensor) in self._guessed for tensor in tensors):
            return self._guess(func, args, kwargs)
        if not tensors:
            made = func(*args, **kwargs)
            if tensors_among(made):
                self.calls.add(key_of((name, args, kwargs), self.calls.number), made, changes=False)
            return made
        key = key_of((name, args, kwargs), self.calls.number)
        before = [version_of(tensor) for tensor in tensors]
        last = next(reversed(traced_graph().nodes))
        shows = getattr(func, "__name__", "") in _SHOWS_VALUES
        self._inside = True
        try:
            made = func(*args, **kwargs)
            if shows and isinstance(args[0], FakeTensor):
                raise TypeError("the text of a tensor is asked for")  # what it made is that of a fake one
        except Exception as error:
            if not (shows or is_value_dependent(error)) or max(map(torch.numel, tensors)) > MOST_ELEMENTS:
                raise
            for node in list(takewhile(lambda node: node is not last, reversed(traced_graph().nodes))):
                traced_graph().erase_node(node)  # what has failed is no part of the program
            note_frames(error)
            self.calls.add_question(key, Question(users_line(), error))
            return self._guess(func, args, kwargs)
        finally:
            self._inside = False
        changes = before != [version_of(tensor) for tensor in tensors]
        self.calls.add(key, made, changes=changes)
        return made

    def _guess(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        def value(leaf: Tensor) -> Tensor:
            if not isinstance(leaf, FakeTensor):
                return leaf
            self.needed.add(self.calls.number(leaf))
            return filled(leaf, self.guess)

        made = on_values(func, args, kwargs, value)
        self._guessed.update((id(leaf), leaf) for leaf in tensors_among(made))
        return made


def on_values(func: Callable[..., Any], args: Any, kwargs: Any, value: Callable[[Tensor], Tensor]) -> Any:
    """Make a call with other tensors, past all modes. value: what each is replaced by."""

    def replaced(leaf: Any) -> Any:
        return value(leaf) if isinstance(leaf, Tensor) else leaf

    with no_dispatch_modes(), no_function_modes():
        return func(*tree_map(replaced, args), **tree_map(replaced, kwargs))


def filled(like: Tensor, number: float, seed: int = 0) -> Tensor:
    """Return a tensor on the CPU of the same form, each element this number, as its dtype has it.

    number: VARIED for elements that differ.
    seed: of these.
    """
    with no_dispatch_modes(), no_function_modes():
        if number == VARIED:
            drawn = torch.rand(tuple(like.shape), generator=torch.Generator().manual_seed(seed), device="cpu")
            return drawn > 0.5 if like.dtype == torch.bool else (8 * drawn).to(like.dtype)
        return (
            torch.full((), number, dtype=torch.float64, device="cpu")
            .to(like.dtype)
            .expand(tuple(like.shape))
            .clone()
        )
