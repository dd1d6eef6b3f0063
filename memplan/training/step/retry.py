"""Too little memory in spite of a plan: the iteration is repeated by a plan for fewer bytes.

The device may have less memory than the budget says: other processes use it, or it is fragmented. So may the
host or the disk. After most failures the iteration is as if it had not begun (steps/execute.py). Then nothing
is lost: the same graph is solved for fewer bytes of the memory that was full, and the same batch is trained
on, with the same random numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Protocol, TypeVar

from ...devices.storage.shortage import ShortageError
from ...graphs.graph import Graph
from ...graphs.machine import Memory
from ...graphs.units import duration, format_bytes
from ...planner.device_memory import DeviceMemory
from ...planner.simulator.simulate import simulate
from ...runtime.run.queues import forget_frames
from ...runtime.run.recovery import UNDONE
from ...solvers.problem import InfeasibleError
from ...steps.execute import PlannedStep
from ...torch_support.out_of_memory import is_out_of_memory
from ...torch_support.unsupported import warn_user

SHARES = (0.95, 0.9, 0.8)
"""Shares of the budget of the plan that failed first, in the order in which they are tried."""

SHARES_BELOW = (0.75, 0.5, 0.0)
"""Shares of what that plan has on the host, or on the disk, if that is full."""

Around = Callable[[Graph, int], DeviceMemory]
"""States the memory of the whole loop around so many bytes of a plan."""

Planned = TypeVar("Planned", bound=PlannedStep)
Result = TypeVar("Result")


class Smaller(Protocol[Planned]):
    """Makes a plan for the same iteration within so many bytes, and with so many below the device.

    Raises InfeasibleError, and ShortageError if the machine has not even these.
    """

    def __call__(
        self, step: Planned, budget: int, capacity: tuple[Memory, int] | None = None, /
    ) -> Planned: ...


def with_less(
    step: Planned, iterate: Callable[[Planned], Result], smaller: Smaller[Planned], around: Around
) -> Result:
    """Run an iteration, repeated with less and less of a memory if that is full.

    iterate: runs the iteration by the step, or by one that `smaller` made.
    Raises the error of the last try. Only errors that left the iteration as if it had not begun are retried.
    """
    first, handled = step, sys.exception()
    for number in range(len(SHARES)):
        try:
            return iterate(step)
        except Exception as error:
            # Without the note some weights may be updated already: a repeat would update them twice.
            undone = UNDONE in getattr(error, "__notes__", ())
            short = isinstance(error, ShortageError) and _kept_bytes(first, error.memory) > 0
            if first.budget is None or not undone or not (short or is_out_of_memory(error)):
                raise
            # What the iteration's own frames hold would take memory while it is repeated. All that is raised
            # and kept from here on has this error as its context, and with it these frames.
            forget_frames(error, but=handled)
            before = _seconds(step)
            try:
                step, line = (
                    _with_less_below(first, step, error, SHARES_BELOW[number], smaller)
                    if isinstance(error, ShortageError)
                    else _with_less_on_device(first.budget, step, SHARES[number], smaller, around)
                )
            except (InfeasibleError, ShortageError) as none:
                error.add_note(f"with less of that memory there is no plan either: {none}")
                raise error from None
        warn_user(f"{line}; {duration(_seconds(step))} are expected, {duration(before)} before")
    return iterate(step)


def _with_less_on_device(
    budget: int, step: Planned, share: float, smaller: Smaller[Planned], around: Around
) -> tuple[Planned, str]:
    """Return a step for a share of the budget, or for what is free if that is less, and what is said of it.

    If there is no such plan, and the device has room for the present one, it is that one: others have given
    the memory back, or it was fragmented, which releasing unused memory mends.
    """
    assert step.budget is not None
    room = step.device_room
    less = int(budget * share)
    if room is not None and room < step.budget:
        # At first all that is free: below it there may be no plan.
        less = room if share == SHARES[0] else min(less, room)
    if less >= step.budget:  # the plan that has just failed had no more
        less = int(SHARES[0] * step.budget)
    text = "out of memory in an iteration; it is repeated by"
    try:
        step = smaller(step, less)
    except InfeasibleError:
        if room is None or room < step.budget:
            raise
        return step, f"{text} the same plan, for which there is room now"
    assert step.graph is not None
    return step, f"{text} a plan for {less / budget:.0%} of its bytes, within {around(step.graph, less)}"


def _with_less_below(
    first: PlannedStep, step: Planned, error: ShortageError, share: float, smaller: Smaller[Planned]
) -> tuple[Planned, str]:
    """Return a step that has less on the host, or on the disk, and what is said of it."""
    assert step.budget is not None
    size, name = int(share * _kept_bytes(first, error.memory)), error.memory.name.lower()
    if error.available is not None:
        size = min(size, error.available)
    step = smaller(step, step.budget, (error.memory, size))
    return (
        step,
        f"{error}; the iteration is repeated by a plan with {format_bytes(size)} on the {name}",
    )


def _kept_bytes(step: PlannedStep, memory: Memory) -> int:
    """Return the bytes that the plan has in a memory below the device, of which another may have fewer."""
    figures = None if step.cycle is None else step.cycle.figures
    return 0 if figures is None else figures.host_peak if memory == Memory.HOST else figures.disk_peak


def _seconds(step: PlannedStep) -> float:
    """Return the predicted seconds of an iteration."""
    if step.cycle is not None:
        return step.cycle.figures.time
    assert step.graph is not None
    return simulate(step.graph, step.schedule).figures.time
