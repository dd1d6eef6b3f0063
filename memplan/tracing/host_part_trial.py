"""A host part, tried before anyone relies on it: with several answers to its questions, often in a row."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from math import nan

import torch

from ..devices.absent_gpu.devices import is_absent_gpu
from ..devices.calls.randomness import restore_generator, save_generator
from ..graphs.collector import collect_youngest, collector_off
from ..guards.python_state import PythonState
from ..guards.reads.carried import Counter as StateCounter
from ..torch_support.torch_fakes import FakeTensor
from ..torch_support.unsupported import TraceError
from .api_calls import VARIED, Question, filled
from .host_part import DecidingError, HostPart

GUESSES = (1.0, 0.0, 2.0**40, -1.0, nan, VARIED)
"""Answers to questions for values with which a trace tries whether the loss depends on them."""

COUNTS = (0, 1, 2, 3, 4, 7, 9, 99, 499, 999, 10**4, 10**6)
"""Numbers of a counter with which a trace tries whether the loss depends on it."""

_IN_A_ROW = 9
"""Rounds of three iterations after which a state that counts has shown what it leads to."""

_OTHER_AFTER_ONE = (
    "computes something else in a second iteration, by what the first has left in attributes or containers: "
    "make it a buffer (register_buffer) or an input, or count in the training loop"
)


class HostPartTrial:
    """Runs of the code whose changes are undone.

    Its tensors are those of a trace, its values made up.
    """

    def __init__(self, part: HostPart) -> None:
        self._part = part
        self._before = PythonState(part.iteration, tensors=False)  # put back after each run

    def explore(self, counters: Sequence[StateCounter]) -> set[int]:
        """Run the code with several answers to its questions, and return which tensors it asks about.

        Those are among them that it keeps in lists or attributes.

        counters: numbers that it counts up and reads; it is run with others, too.

        Raises DecidingError if an answer leads to another loss, TraceError if a number does.
        """
        part = self._part
        needed: set[int] = set()
        with self._undone(), collector_off():
            counts = self._references()
            replay = part.guessing(lambda _question: part.first_guess)
            if not part.same(replay, raises=True):
                raise DecidingError(part.calls.questions)
            needed |= replay.needed
            del replay
            needed |= self._held_since(counts)
        for guess in GUESSES:
            needed |= self._tried(lambda _question, guess=guess: guess)
        for counter in counters:
            needed |= self._counted(counter)
        self._run_in_a_row(needed)
        return needed

    def _run_in_a_row(self, needed: set[int]) -> None:
        """Run the code as after planned iterations. Raises TraceError if one feels what another has left."""
        for guess in GUESSES:
            with self._undone():
                first, other = (
                    {name: filled(fake, guess) for name, fake in self._part.inputs.items()} for _ in range(2)
                )
                many = _IN_A_ROW if guess == self._part.first_guess else 1
                for batch in (first, other, other) * many:  # the same objects once more, too
                    shown = {n: filled(self._part.calls.tensors[n], guess) for n in needed}
                    replay = self._part.on(batch, shown)
                    if not self._part.same(replay):
                        raise TraceError(f"{replay.place or 'the iteration '}{_OTHER_AFTER_ONE}")

    def _counted(self, counter: StateCounter) -> set[int]:
        """Run the code with several numbers of a counter, and return which tensors it asks about."""
        needed: set[int] = set()
        for number in COUNTS if counter.entries() is not None else ():
            replay = self._part.guessing(lambda _question: self._part.first_guess)
            with self._undone():
                entries = counter.entries()
                assert entries is not None
                entries[counter.key] = number
                if not self._part.same(replay):
                    raise TraceError(counter.refusal)
            needed |= replay.needed
        return needed

    def _tried(self, guess: Callable[[int | None], float]) -> set[int]:
        """Run the code with these answers, and return which tensors it asks about. Raises DecidingError."""
        replay = self._part.guessing(guess)
        with self._undone():
            if self._part.same(replay):
                return replay.needed
        questions, found = self._part.calls.questions, dict[str, Question]()
        for number, question in enumerate(questions):
            # The error names lines alone, and a loop may ask a thousand questions at one line.
            if question.place not in found and self._decides(number):
                found[question.place] = question
        raise DecidingError([*found.values()] or questions)

    def _decides(self, number: int) -> bool:
        """Tell whether the answer to one question changes the loss."""
        for guess in GUESSES:
            replay = self._part.guessing(
                # Calls that follow only then, too: they may ask once more, about what decides with it.
                lambda question, guess=guess: guess if question in (number, None) else self._part.first_guess
            )
            with self._undone():
                if not self._part.same(replay):
                    return True
        return False

    def _references(self) -> list[int]:
        return [sys.getrefcount(tensor) for tensor in self._part.calls.tensors]

    def _held_since(self, counts: Sequence[int]) -> set[int]:
        """Return the numbers of tensors to which there are more references now."""
        for last in (False, True):
            now = self._references()
            found = {n for n, (one, other) in enumerate(zip(counts, now, strict=False)) if other > one}
            if not found or last:
                break
            collect_youngest()  # circles that the run has made, and that nobody has any more
        return {number for number in found if isinstance(self._part.calls.tensors[number], FakeTensor)}

    @contextmanager
    def _undone(self) -> Generator[None]:
        """Put back what the code changes, and keep from the user what it prints, noting whether it prints."""
        text, device = io.StringIO(), next(iter(self._part.parameters.values())).device
        drawing = {torch.device("cpu")} if is_absent_gpu() else {torch.device("cpu"), device}
        generators = {each: save_generator(each) for each in drawing}
        try:
            with (
                redirect_stdout(text),
                redirect_stderr(text),
            ):
                yield
        finally:
            self._before.put_back()
            self._part.printed = self._part.printed or bool(text.getvalue())
            for each, numbers in generators.items():
                restore_generator(each, numbers)
