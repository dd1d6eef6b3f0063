"""Ownership of the optimizer states of which a schedule moves blocks of rows, each by itself.

    the optimizer's tensor      ┌─ rows 0..4095 ─┬─ rows 4096..8191 ─┬ …      while no step has it: one memory
    while a step has it         host              device              host     a storage per block

All blocks of a state are taken and given back together, those that stay on the device too: the tensor is one.
What else a schedule moves is owned as without blocks (ownership.py).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from ...devices.storage.copies import value
from ...devices.storage.lazy_init import zeros
from ...devices.storage.offloaded import (
    Fill,
    HeldBlock,
    Hold,
    bring_back,
    give_up,
    hold_anew,
    hold_of,
    offload_value,
    restore,
)
from ...graphs.errors import MismatchError
from ...program.forms import described, form_of
from ...program.program import Program, Value
from ...program.state_blocks import bytes_of_rows, whole_states
from ...torch_support.interrupts import deferred_signals
from .cycle import Cycle
from .owners import Owner
from .ownership import Ownership, no_memory_for


class _Block(NamedTuple):
    """A block of rows. form: in its storage."""

    rows: slice
    form: Value


class _State(NamedTuple):
    """A state in blocks. form: of the whole. owner: returns the optimizer's tensor."""

    name: str
    form: Value
    blocks: Sequence[_Block]
    owner: Owner


class BlockedOwnership:
    """Ownership of the tensors that a schedule moves, of which some are states in blocks of rows.

    owners: per resident value in a moved storage, its name, and a function that returns its tensor.
    """

    def __init__(self, program: Program, owners: Mapping[int, tuple[str, Owner]], cycle: Cycle) -> None:
        self._cycle = cycle
        wholes = {
            key: each for key, each in whole_states(program).items() if owners.keys() >= each.blocks.keys()
        }
        self._states = [
            _State(
                ".".join(key),
                whole.form,
                [_Block(rows, program.values[resident]) for resident, rows in whole.blocks.items()],
                owners[next(iter(whole.blocks))][1],
            )
            for key, whole in wholes.items()
        ]
        blocks = {resident for whole in wholes.values() for resident in whole.blocks}
        self._others = Ownership(program, {v: o for v, o in owners.items() if v not in blocks}, cycle)
        self._taken: dict[str, Tensor] = {}

    def take(self) -> None:
        """Take all tensors that are not here yet. Raises MemplanError; whatever it is, no tensor is lost."""
        with deferred_signals():  # a tensor that is in neither place for a moment must not stay so
            for state in self._states:
                tensor = state.owner()
                if self._taken.get(state.name) is not tensor:
                    self._give_back(state)
                    self._take(state, tensor)
        self._others.take()

    def note(self) -> None:
        """Do nothing: values that are loaded into a taken tensor have it back first."""

    def give_back(self) -> None:
        """Give back all tensors, on the device."""
        self._others.give_back()
        for state in self._states:
            self._give_back(state)

    def give_up(self, storages: Container[int], refuse: Callable[[], NoReturn]) -> None:
        """Give up these storages, and all of a state of which they are blocks."""
        self._others.give_up(storages, refuse)
        for state in self._states:
            if any(block.form.storage in storages for block in state.blocks):
                tensor = self._taken.pop(state.name, None)
                give_up(state.owner() if tensor is None else tensor, state.form, refuse)
                self._drop(state)

    def _take(self, state: _State, tensor: Tensor) -> None:
        hold = hold_of(tensor)
        if hold is not None and _like(hold.form, state.form):
            if hold.fill is not None:
                self._make(state, hold.fill)
                self._hold(state, tensor, hold.kind)
                return
            if self._adopted(state, hold):
                self._hold(state, tensor, hold.kind)
                return
        bring_back([tensor])  # from whichever step has it
        found = form_of(tensor, state.form)
        if not _like(found, state.form):
            raise MismatchError(
                f"{state.name} is {described(found)}; the plan is for {described(state.form)}"
            )
        for rows, form in state.blocks:
            there = self._cycle.device.room(form.end)  # in separate memory: `put` takes all of a storage
            self._cycle.device.copy(tensor.detach()[rows], value(there, form))
            self._cycle.put(form.storage, there)
        kind = type(tensor)
        offload_value(tensor, state.form, *self._ways(state))
        self._hold(state, tensor, kind)

    def _make(self, state: _State, fill: Fill) -> None:
        """Materialize the blocks of a state that has no value yet, in the memories in which iterations start
        with them.
        """
        whole: Tensor | None = None
        if fill is not zeros:  # the rows of a master are its weight's
            whole = torch.empty(state.form.end, dtype=torch.uint8, device="cpu")
            fill(whole)
        for rows, form in state.blocks:
            own = zeros if whole is None else partial(_fill, whole[bytes_of_rows(state.form, rows)])
            self._cycle.make(form.storage, form.end, own)

    def _adopted(self, state: _State, hold: Hold) -> bool:
        """Take over another step's finished copies of equal blocks.

        Returns False if it has others, or if they are not in the memories in which iterations of this step
        start; the step has them still then.
        """
        if hold.blocks is None or hold.release is None:
            return False
        there = hold.blocks()
        equal = [(each.rows, each.form._replace(storage=0)) for each in there] == [
            (rows, form._replace(storage=0)) for rows, form in state.blocks
        ]
        if not equal or not all(
            self._cycle.adopts(own.form.storage, each.copies)
            for own, each in zip(state.blocks, there, strict=True)
        ):
            return False
        for own, each in zip(state.blocks, there, strict=True):
            self._cycle.adopt(own.form.storage, each.copies)
        hold.release()
        return True

    def _hold(self, state: _State, tensor: Tensor, kind: type[Tensor]) -> None:
        give_back, copies = self._ways(state)
        release, blocks = partial(self._release, state), partial(self._held, state)
        hold_anew(tensor, Hold(state.form, kind, give_back, copies, release=release, blocks=blocks))
        self._taken[state.name] = tensor

    def _ways(self, state: _State) -> tuple[Callable[[], None], Callable[[], Sequence[Any]]]:
        """Return functions that give a tensor back, and return all copies of its blocks."""
        return partial(self._give_back, state), partial(self._copies, state)

    def _held(self, state: _State) -> list[HeldBlock]:
        return [HeldBlock(rows, form, self._cycle.copies(form.storage)) for rows, form in state.blocks]

    def _copies(self, state: _State) -> list[Any]:
        return [copy for block in self._held(state) for copy in block.copies]

    def _release(self, state: _State) -> None:
        del self._taken[state.name]
        self._drop(state)

    def _drop(self, state: _State) -> None:
        for block in state.blocks:
            self._cycle.drop(block.form.storage)

    def _give_back(self, state: _State) -> None:
        if state.name not in self._taken:
            return
        device = self._cycle.device
        with deferred_signals():  # a read in the user's code may be interrupted; half of this would lose it
            try:
                room = device.room(state.form.end)
                values = value(room, state.form)
                for rows, form in state.blocks:
                    device.copy(value(self._cycle.get(form.storage), form), values[rows])
            except (torch.OutOfMemoryError, MemoryError) as error:
                raise no_memory_for(state.name) from error
            restore(self._taken.pop(state.name), values)
            self._drop(state)


def _like(form: Value, other: Value) -> bool:
    """Tell whether tensors have one form, wherever they lie."""
    return form._replace(storage=0, offset=0) == other._replace(storage=0, offset=0)


def _fill(values: Tensor, bytes_: Tensor) -> None:
    bytes_.copy_(values)
