"""Time that fused kernels would save if a plan updates weights on the host without them."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ...devices.device.threads import as_updates_run
from ...devices.measuring.update_rates import FUSED, UNFUSED, timed_step
from ...graphs.graph import Graph
from ...planner.schedule.schedule import DEFAULT_MODE, Schedule, Verb
from ...program.program import Program
from ...updates.catalogue import description
from ...updates.rules import is_fused
from ...updates.several import members_of
from ...updates.updates import updates_weights

_BYTES, _STEPS, _WORTH_SAYING = 2**24, 5, 1.2  # bytes of weights; steps timed; ratio


def fused_hint(
    program: Program, graph: Graph, schedule: Schedule, optimizer: torch.optim.Optimizer
) -> str | None:
    """Return one line if updates run on the host that fused kernels would run faster.

    Returns None if there are none.

    By how much is timed, on 16 MiB.
    """
    on_host = {
        operation
        for verb, operation, mode in schedule.rows()
        if verb == Verb.COMPUTE and mode != DEFAULT_MODE and graph.on_host(operation, mode)
    }
    updates = [one for o, one in enumerate(program.operations) if o in on_host and updates_weights(one)]
    slow = sum(not is_fused(one.call.target, one.call.keywords) for one in updates)
    optimizer = members_of(optimizer)[-1]  # of several, that of the rest
    described = description(optimizer)
    if not slow or described is None or not described.has_fused:
        return None
    make = type(optimizer)

    def seconds(way: Mapping[str, bool]) -> float:
        step = timed_step("cpu", _BYTES, way, make)
        # The fastest: what else the machine does only lengthens a step.
        return min(step() for _ in range(_STEPS))

    unfused, fused = as_updates_run(lambda: (seconds(UNFUSED), seconds(FUSED)))
    if unfused < _WORTH_SAYING * fused:
        return None
    return (
        f"{slow} weights are updated on the host: {make.__name__}(…, fused=True) does that "
        f"{unfused / fused:.1f} times as fast here, and rounds otherwise"
    )
