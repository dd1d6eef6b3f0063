"""Recovery from an iteration that fails.

nothing was changed, or all was kept (`undo`)      as if it had not begun: it can be repeated
sums of gradients were changed, no weight          the sums are forgotten: the update begins anew
a weight was changed, or lost                      all that updates change is given up: nobody may have it

With other processes, which go on with their update, lost sums are as a lost weight. If collectives of the
iteration have begun (`Others`), none can be repeated: all end, and weights that are as before stay readable.
Only what all ranks raise together (OnAllRanksError) they repeat together.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NoReturn, Protocol

from torch import Tensor

from ...devices.calls.randomness import restore_generator, save_generator
from ...devices.device.device import Device
from ...devices.sharded.local_tensors import planned_local
from ...devices.sharded.ranks import OnAllRanksError
from ...devices.storage.copies import copy_common, own_bytes, raw
from ...devices.storage.journal import Journal
from ...devices.storage.offloaded import give_up
from ...graphs.errors import NOT_PUT_BACK, MemplanError
from ...program.program import Program
from ...program.state_blocks import whole_by_block
from ...updates.state import OptimizerState
from ...updates.sums import sums_of
from ...updates.updates import updates_weights
from .blocked_ownership import BlockedOwnership
from .cycle import LOST, LOST_AMONG_RANKS, Cycle
from .owners import Owners
from .ownership import Ownership
from .queues import forget_frames
from .spread_ownership import SpreadOwnership

UNDONE = "the iteration is as if it had not begun: it can be repeated"
"""A note of what it has raised."""

BACKWARD_LOST = "the gradients of this call are lost, nothing else has changed: call the module once more"
"""A note of what a second half has raised."""

BEGINS_ANEW = (
    "the sums of gradients are lost, no weight has changed: the update begins anew with the next batch"
)
"""Another."""


class Others(Protocol):
    """The other processes that train with this one.

    under_way: whether they can't repeat the present iteration: a collective of it has begun.
    """

    @property
    def under_way(self) -> bool: ...

    def leave(self, error: BaseException | None) -> None:
        """Leave for good: nobody waits for this process. error: what it has raised."""
        ...


class Recovery:
    """Recovery of a step's iterations.

    moved: the cycle that moves tensors, and their ownership, if any are moved.
    """

    def __init__(
        self,
        program: Program,
        owners: Owners,
        optimizer: OptimizerState | None,
        device: Device,
        journal: Journal,
        moved: tuple[Cycle, Ownership | BlockedOwnership | SpreadOwnership] | None,
        others: Others | None = None,
    ) -> None:
        """Prepare the recovery. others: the processes that train with this one."""
        self._others = others
        self._program, self._owners, self._optimizer = program, owners, optimizer
        self._device, self._journal = device, journal
        self._cycle, self._ownership = moved or (None, None)
        self._sums, self._wholes = sums_of(program), whole_by_block(program)
        self._random = any(operation.random for operation in program.operations)
        if self._cycle is not None:
            self._cycle.when_lost = _weakly(self._give_up)
            self._cycle.lost_line = self._lost_line()

    @contextmanager
    def around(self, residents: Sequence[Tensor]) -> Generator[None]:
        """Surround one iteration, which starts with these residents, and recover if it fails."""
        self._journal.begin()
        handled = sys.exception()  # by the caller: clearing its frames would destroy its state
        others = (each for each in self._program.random_sources if each != self._program.device)
        sources = (self._device, *others) if self._random else ()
        states = [(source, save_generator(source)) for source in sources]
        try:
            yield
        except BaseException as error:
            if self._cycle is not None:
                self._cycle.end_jobs()  # they may still copy from and to what the frames hold
            forget_frames(error, but=handled)  # else they hold the iteration's memory
            lost, together = self._left_changed(), isinstance(error, OnAllRanksError)
            # Lost sums alone can begin anew, unless other processes go on with theirs. Where all end anyway
            # (`ends`), the weights are whole and stay readable.
            ends = self._others is not None and self._others.under_way and not together
            if lost <= (self._sums if ends or self._others is None else set[int]()):
                self._put_back(residents)
                for source, state in states:
                    restore_generator(source, state)
                if lost:
                    self._forget_sums()
                note = BEGINS_ANEW if lost else UNDONE
            else:
                self._give_up()
                note = LOST
            if ends and self._others is not None:
                self._others.leave(error)
                note = "" if isinstance(error, MemplanError) else LOST_AMONG_RANKS  # else the error says it
            if note:
                error.add_note(note)
            if self._optimizer is not None:
                self._optimizer.undo()
            raise

    @contextmanager
    def after_handover(self) -> Generator[None]:
        """Surround the second half of an iteration, which changes no weights, and recover if it fails."""
        handled = sys.exception()
        try:
            yield
        except BaseException as error:
            if self._cycle is not None:
                self._cycle.end_jobs()
            forget_frames(error, but=handled)
            self._left_changed()
            error.add_note(BACKWARD_LOST)
            raise

    def _left_changed(self) -> set[int]:
        """Return the storages that a failed iteration has changed, or lost, and nobody has kept."""
        lost = set[int]() if self._cycle is None else self._cycle.salvage()
        self._device.synchronize()
        return lost | self._journal.overwritten

    def _put_back(self, residents: Sequence[Tensor]) -> None:
        """Copy what the journal has kept back to the residents that stay on the device."""
        moved = frozenset[int]() if self._cycle is None else self._cycle.moved
        for value, tensor in zip(self._program.residents, residents, strict=True):
            storage = self._program.values[value].storage
            if storage in self._journal.kept and storage not in moved:
                whole = self._wholes.get(value)
                bytes_ = raw(tensor) if whole is None else own_bytes(tensor[whole.blocks[value]])
                copy_common(self._device, self._journal.kept[storage].bytes, bytes_)
        self._device.synchronize()

    def _forget_sums(self) -> None:
        """Forget the sums of gradients, which alone are lost: others are made where the next iteration
        needs them.
        """
        assert self._optimizer is not None
        self._drop(self._sums)
        self._optimizer.forget_sums()

    def _give_up(self) -> None:
        """Give up weights and states, which are those neither before the iteration nor after it: nobody
        may have them.
        """
        updates = filter(updates_weights, self._program.operations)
        updated = self._sums | {storage for operation in updates for storage in operation.mutates}
        self._drop(updated)
        if self._others is not None and self._others.under_way:
            self._others.leave(sys.exception())
        if self._cycle is not None:
            updated -= self._cycle.moved
        for value, (_name, owner) in self._owners.of(updated).items():
            whole = self._wholes.get(value)
            form = self._program.values[value] if whole is None else whole.form
            give_up(planned_local(owner()), form, self._refusal())

    def _refusal(self) -> Callable[[], NoReturn]:
        return partial(_refuse, self._lost_line())

    def _lost_line(self) -> str:
        return LOST_AMONG_RANKS if self._others is not None and self._others.under_way else LOST

    def _drop(self, storages: set[int]) -> None:
        """Mark the moved ones of these storages as lost: they have a value nowhere any more."""
        if self._cycle is not None and self._ownership is not None:
            self._ownership.give_up(storages, self._refusal())
            self._cycle.lost.clear()


@contextmanager
def noted_as_undone() -> Generator[None]:
    """Surround iterations of which all is put back if they fail (guards/unchanged.py): the note of one that
    could not do so itself says so.
    """
    try:
        yield
    except BaseException as error:
        notes = getattr(error, "__notes__", [])
        if not any(note.startswith(NOT_PUT_BACK) for note in notes):
            notes[:] = [UNDONE if note in (LOST, BEGINS_ANEW) else note for note in notes]
        raise


def _weakly(method: Callable[[], None]) -> Callable[[], None]:
    """Return a function that calls the method of an object without holding the object."""
    weak = weakref.WeakMethod(method)

    def call() -> None:
        if (found := weak()) is not None:
            found()

    return call


def _refuse(line: str) -> NoReturn:
    raise MemplanError(line)
