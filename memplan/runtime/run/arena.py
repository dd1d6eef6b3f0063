"""The device's arena, while a planned step runs: each allocation at the address that the plan has for it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch
from torch import Tensor

from ...devices.device.device import Device
from ...devices.device.planned_arena import PlannedRooms, Request
from ...graphs.errors import InputError
from ...planner.addresses.layout import Layout
from ...planner.budget import spelled
from ...planner.schedule.schedule import Schedule
from ...program.program import Program
from ..codegen.placement import Placement


class Rooms:
    """The arena of one plan. Use `rooms_of`.

    Steps of one device share its arena: one at a time runs. If something of another step is still at an
    address, the allocation that would come there lies outside of the arena.
    """

    def __init__(self, device: Device, placement: Placement, arena: PlannedRooms) -> None:
        self.placement, self._device, self._arena = placement, device, arena

    @contextmanager
    def iteration(self) -> Generator[None]:
        self._arena = self._device.arena(self.placement.size) or self._arena
        try:
            yield
        finally:
            self._arena.expect()

    def expect(self, *requests: Request) -> None:
        self._arena.expect(*requests)

    def home(self, x: int, bytes_: Tensor) -> Tensor:
        """Return the bytes at the address at which a moved tensor's copy lies when an iteration starts,
        copied if need be.
        """
        size, offset = self.placement.initial(x)
        if not size or bytes_.data_ptr() == self._arena.address + offset:
            return bytes_
        self.expect((size, offset))
        made = self._device.room(bytes_.nbytes)
        self.expect()
        self._device.copy(bytes_, made)
        return made

    @property
    def missed(self) -> int:
        """Return the bytes whose planned addresses were in use by something else, of all steps."""
        return self._arena.missed


def rooms_of(device: Device, program: Program, schedule: Schedule, layout: Layout | None) -> Rooms | None:
    """Return the arena of a plan; None if nothing is planned, or the device can't place what it allocates.

    Raises InputError if the device has less memory than the arena.
    """
    if layout is None:
        return None
    placement = Placement(program, schedule, layout)
    try:
        arena = device.arena(placement.size)
    except torch.OutOfMemoryError:
        free = device.free_bytes() or 0
        raise InputError(
            f"the plan's addresses take {spelled(placement.size)} besides what is always there, the device "
            f"has {spelled(free)} free: plan for a smaller budget"
        ) from None
    return None if arena is None else Rooms(device, placement, arena)
