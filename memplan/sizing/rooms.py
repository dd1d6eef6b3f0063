"""GPUs to size for, each with the machine around it and the bytes to use there."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from ..graphs.errors import InputError
from ..graphs.machine import Machine
from ..graphs.machines.gpus import lacks
from ..graphs.machines.presets import Preset, described_preset, presets
from ..graphs.units import FEW_BYTES
from ..planner.budget import Budget, spelled
from .estimate_range import usable
from .question import Room
from .words import with_article

ALL = "all"
HOST = "64GB"
"""Memory of the host where the user says nothing: without a limit an answer would hide its condition."""

Note = Callable[[str], None]
"""A function that takes a line for the user."""


def chosen_presets(text: str, host: str | None, lanes: str | None) -> list[Preset]:
    """Return the machines of --gpu, as --host and --lanes say. Raises InputError, one line."""
    if text.strip().lower() == ALL:
        # --lanes is for PCIe: SXM modules have no lanes to choose.
        on_pcie = (name for name, one in presets().items() if one.gpu.lanes or lanes is None)
        return [described_preset(name, host, lanes, HOST) for name in on_pcie]
    found = (described_preset(name, host, lanes, HOST) for name in text.split(","))
    # A GPU named twice counts once.
    return list({one.name: one for one in found}.values())


def with_dtypes(
    chosen: list[Preset], dtypes: Collection[str | None], note: Note, *, every: bool
) -> list[Preset]:
    """Return the GPUs that have these dtypes. Raises InputError if one that was named has not.

    dtypes: of --dtype and --autocast.
    every: all GPUs were requested: those without it are left out, with a note.
    """
    for dtype in sorted(filter(None, dtypes)):
        lines = {one.name: lacks(one.gpu, dtype) for one in chosen}
        missing = [one.gpu.name for one in chosen if lines[one.name] is not None]
        if missing and not every:
            raise InputError("; ".join(filter(None, lines.values())))
        if missing:
            note(f"left out, since they have no {dtype}: {', '.join(dict.fromkeys(missing))}")
        chosen = [one for one in chosen if lines[one.name] is None]
    return chosen


def room_of(
    preset: Preset, machine: Machine | None, budget: Budget | None, reserve: Budget | None, note: Note
) -> tuple[Preset, Room]:
    """Return the preset with the requested machine, and the bytes to use there. Raises InputError."""
    from ..profiling.profile.workspace import constant_bytes

    there = machine or _allocatable(preset)
    if there.device_capacity is not None and there.device_capacity > preset.gpu.total:
        most = f"the most that {with_article(preset.gpu.name)} can allocate holds instead"
        note(f"the machine has {spelled(there.device_capacity)} of device memory: {most}")
        there = replace(there, device_capacity=preset.gpu.usable)
    limit = _limit(there, budget, note)
    if reserve is not None:
        reserve.check_reserve_meant(FEW_BYTES)
    # None is a default reserve of the capacity; of a budget that the user names nothing is taken.
    free = reserve.size if reserve is not None else None if budget is None else 0
    left = usable(limit, free)
    if not left:
        raise InputError(f"--reserve {free or 0:,} B leaves nothing of {spelled(limit)}")
    return replace(preset, machine=there), Room(left, constant_bytes(preset.gpu), limit - left)


def _allocatable(preset: Preset) -> Machine:
    """Return the preset's machine with no more device memory than a process can allocate there."""
    most = preset.gpu.usable
    return replace(preset.machine, device_capacity=min(preset.machine.device_capacity or most, most))


def _limit(machine: Machine, budget: Budget | None, note: Note) -> int:
    """Return the device bytes: the budget, or the device's capacity if that is less or no budget is given."""
    capacity = machine.device_capacity
    if budget is None:
        if capacity is None:
            raise InputError("the machine has no device capacity: give a --budget, like 12GB")
        return capacity
    budget.check_meant(FEW_BYTES, shares=False)
    if budget.size is None:
        raise InputError(
            f"{budget.text!r}: a percentage is of the baseline's peak, which each batch has another of"
        )
    if capacity is not None and budget.size > capacity:
        note(f"{budget.text} is above the device's capacity = {spelled(capacity)}, which holds instead")
        return capacity
    return budget.size
