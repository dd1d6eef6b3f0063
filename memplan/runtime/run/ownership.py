"""Ownership of tensors that a schedule moves: a step takes a module's and an optimizer's, and gives them
back.

In between they are offloaded (devices/storage/offloaded.py): any use of one has it back first, by another
step that moves it too. The next iteration takes it once more, and whatever tensor has replaced it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor

from ...devices.storage.blocks import memory_of
from ...devices.storage.copies import raw, value
from ...devices.storage.offloaded import (
    Fill,
    Hold,
    bring_back,
    give_up,
    hold_anew,
    hold_of,
    offload_value,
    restore,
)
from ...graphs.errors import MemplanError, MismatchError
from ...graphs.machine import Memory
from ...program.forms import described, form_of
from ...program.program import Program, Value
from ...torch_support.interrupts import deferred_signals
from ...updates.buckets import buckets_of
from .cycle import Cycle
from .owners import Owner


class Ownership:
    """Ownership of the tensors that a schedule moves.

    owners: per resident value in a moved storage, its name, and a function that returns its tensor.
    """

    def __init__(self, program: Program, owners: Mapping[int, tuple[str, Owner]], cycle: Cycle) -> None:
        self._forms = {resident: program.values[resident] for resident in owners}
        self._sizes = [storage.bytes for storage in program.storages]
        self._owners = owners
        self._cycle, self._buckets = cycle, buckets_of(program)
        self._taken: dict[int, Tensor] = {}
        self._residents: dict[int, list[int]] = {}
        stays = {storage for memory, storage in cycle.places if memory == Memory.DEVICE}
        # False sorts first: what leaves the device is taken first, which makes room for the rest.
        for resident, form in sorted(self._forms.items(), key=lambda item: item[1].storage in stays):
            self._residents.setdefault(form.storage, []).append(resident)

    def take(self) -> None:
        """Take all tensors that are not here yet; first those that leave the device, for room for the
        rest.

        Raises MemplanError; whatever it is, no tensor is lost.
        """
        with deferred_signals():  # a tensor that is in neither place for a moment must not stay so
            for storage, residents in self._residents.items():
                tensors = {resident: self._owners[resident][1]() for resident in residents}
                if any(self._taken.get(resident) is not tensor for resident, tensor in tensors.items()):
                    self._give_back(storage)
                    self._take(storage, tensors)

    def note(self) -> None:
        """Do nothing: values that are loaded into a taken tensor have it back first."""

    def give_back(self) -> None:
        """Give back all tensors, on the device."""
        for storage in self._residents:
            self._give_back(storage)

    def give_up(self, storages: Container[int], refuse: Callable[[], NoReturn]) -> None:
        """Give up these storages: nothing of them is to be brought back, whichever memory it is in.

        refuse: raises the error that a later read of such a tensor gets.
        """
        for resident, form in self._forms.items():
            if form.storage in storages:
                tensor = self._taken.pop(resident, None)
                give_up(self._owners[resident][1]() if tensor is None else tensor, form, refuse)
                self._cycle.drop(form.storage)

    def _take(self, storage: int, tensors: Mapping[int, Tensor]) -> None:
        # Copies of one tensor, or of a bucket, can change hands; other tensors must stay one memory.
        together = len(tensors) == 1 or storage in self._buckets
        if together and (self._made(storage, tensors) or self._adopted(storage, tensors)):
            return
        bring_back(tensors.values())  # from whichever step has them
        if len(tensors) == 1:
            self._alone(storage, *tensors.values())
        if storage in self._buckets:
            self._pack(tensors)
        for resident, tensor in tensors.items():
            self._check(resident, tensor)
        memories = {memory_of(tensor) for tensor in tensors.values()}
        if len(memories) > 1:
            names = ", ".join(self._owners[resident][0] for resident in tensors)
            raise MismatchError(f"{names} lie in memories of their own; the plan is for one that they share")
        self._cycle.put(storage, raw(next(iter(tensors.values()))))
        kinds = [type(tensor) for tensor in tensors.values()]
        for resident, tensor in tensors.items():
            offload_value(tensor, self._forms[resident], *self._ways(storage)[:2])
        self._hold(storage, tensors, kinds)

    def _alone(self, storage: int, tensor: Tensor) -> None:
        """Give a tensor that lies in a larger memory (`vector_to_parameters`) separate memory."""
        offset, size = tensor.storage_offset(), tensor.untyped_storage().nbytes()
        (resident,) = self._residents[storage]
        form, device = self._forms[resident], self._cycle.device
        if (offset or size > self._sizes[storage]) and form.offset == 0 and form_of(tensor, form) == form:
            start, room = offset * tensor.element_size(), device.room(form.end)
            device.copy(raw(tensor.detach())[start : start + form.end], room)
            tensor.data = value(room, form)

    def _pack(self, tensors: Mapping[int, Tensor]) -> None:
        """Put the tensors of a bucket into one memory; those of another form than planned are refused later.

        tensors: by resident.
        """
        forms, device = self._forms, self._cycle.device
        if any(form_of(tensor, forms[resident]) != forms[resident] for resident, tensor in tensors.items()):
            return
        room = device.room(max(forms[resident].end for resident in tensors))
        for resident, tensor in tensors.items():
            there = value(room, forms[resident])
            device.copy(tensor.detach(), there)
            tensor.data = there

    def _values(self, storage: int, residents: Sequence[int]) -> list[Tensor]:
        """Return the values of a storage's tensors on the device; those of a bucket in separate memory."""
        bytes_, device = self._fetched(storage), self._cycle.device
        found = [value(bytes_, self._forms[resident]) for resident in residents]
        if storage not in self._buckets:
            return found
        apart: list[Tensor] = []
        for form, there in zip((self._forms[resident] for resident in residents), found, strict=True):
            alone = form._replace(offset=0)
            apart.append(value(device.room(alone.end), alone))
            device.copy(there, apart[-1])  # after the copy that fetches it
        return apart

    def _made(self, storage: int, tensors: Mapping[int, Tensor]) -> bool:
        """Take tensors that have no value yet: materialize them in the memories in which an iteration starts
        with them.

        Returns False, and takes nothing, if one is not such a tensor.
        """
        fills: list[tuple[Value, Fill]] = []
        kinds: list[type[Tensor]] = []
        for resident, tensor in tensors.items():
            hold, form = hold_of(tensor), self._forms[resident]
            if hold is None or hold.fill is None:
                return False
            if hold.form._replace(storage=storage, offset=form.offset) != form:
                return False
            fills.append((form, hold.fill))
            kinds.append(hold.kind)
        self._cycle.make(storage, max(form.end for form, _fill in fills), partial(_fill_all, fills))
        self._hold(storage, tensors, kinds)
        return True

    def _adopted(self, storage: int, tensors: Mapping[int, Tensor]) -> bool:
        """Take over another step's finished copies of tensors.

        Returns False, and takes nothing, if it has others in the same storage, or if they are not in the
        memories in which iterations of this step start.
        """
        holds = [hold for tensor in tensors.values() if (hold := hold_of(tensor)) is not None]
        forms = [self._forms[resident] for resident in tensors]
        if [hold.form._replace(storage=storage) for hold in holds] != forms:
            return False
        release = holds[0].release
        if release is None or holds[0].blocks is not None or holds[0].sharing != len(holds):
            return False
        if any(hold.release is not release for hold in holds):
            return False
        if not self._cycle.adopt(storage, holds[0].copies()):
            return False
        release()
        self._hold(storage, tensors, [hold.kind for hold in holds])
        return True

    def _hold(self, storage: int, tensors: Mapping[int, Tensor], kinds: Sequence[type[Tensor]]) -> None:
        """Note that this step holds the tensors of a storage. kinds: their classes."""
        give_back, copies, release = self._ways(storage)
        for (resident, tensor), kind in zip(tensors.items(), kinds, strict=True):
            form = self._forms[resident]
            hold = Hold(form, kind, give_back, copies, release=release, sharing=len(tensors))
            hold_anew(tensor, hold)
            self._taken[resident] = tensor

    def _ways(
        self, storage: int
    ) -> tuple[Callable[[], None], Callable[[], Sequence[Any]], Callable[[], None] | None]:
        """Return functions that give a storage's tensors back, read its copies, and let go of it.

        The last is None for tensors that share a storage and must stay in one memory.
        """
        together = len(self._residents[storage]) == 1 or storage in self._buckets
        release = partial(self._release, storage) if together else None
        return partial(self._give_back, storage), partial(self._cycle.copies, storage), release

    def _release(self, storage: int) -> None:
        for resident in self._residents[storage]:
            del self._taken[resident]
        self._cycle.drop(storage)

    def _give_back(self, storage: int) -> None:
        taken = [resident for resident in self._residents[storage] if resident in self._taken]
        if not taken:
            return
        with deferred_signals():  # a read in the user's code may be interrupted; half of this would lose it
            for resident, values in zip(taken, self._values(storage, taken), strict=True):
                restore(self._taken[resident], values)
                del self._taken[resident]
            self._cycle.drop(storage)

    def _fetched(self, storage: int) -> Tensor:
        try:
            return self._cycle.get(storage)
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise no_memory_for(self._owners[self._residents[storage][0]][0]) from error

    def _check(self, resident: int, tensor: Tensor) -> None:
        name, form = self._owners[resident][0], self._forms[resident]
        found = form_of(tensor, form)._replace(offset=int(tensor.storage_offset()))
        if found != form:
            raise MismatchError(f"{name} is {described(found)}; the plan is for {described(form)}")


def _fill_all(fills: Sequence[tuple[Value, Fill]], bytes_: Tensor) -> None:
    """Fill the bytes of a storage with the values of all tensors in it."""
    for form, fill in fills:
        start = form.offset * form.dtype.itemsize
        own = torch.empty(form.end - start, dtype=torch.uint8, device=bytes_.device)
        fill(own)
        bytes_[start : form.end].copy_(own)


def no_memory_for(name: str) -> MemplanError:
    """Return the error of a tensor that the device has no memory for."""
    return MemplanError(
        f"no memory on the device to bring {name} back: it stays where it is; step.save(folder), and "
        "what is saved within `with step.state_on_cpu():`, need none"
    )
