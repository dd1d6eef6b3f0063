"""The simulator against the second replay, which was written independently (reference_replay.py).

Both say valid with the same time and the same six byte figures, or both refuse at the same step for the
same rule. Within one step the rules may be checked in any order: the simulator's must be among those broken.
"""

from __future__ import annotations

import pytest
from memplan.planner.errors import InvalidScheduleError
from memplan.planner.simulator.simulate import Figures, simulate
from reference_replay import Accepted, Refused, replay
from strategies import Case

_MANY_TURNS = 480


def judged(case: Case) -> Figures | InvalidScheduleError:
    try:
        return simulate(case.graph, case.schedule, budget=case.budget, machine=case.machine).figures
    except InvalidScheduleError as refusal:
        return refusal


def disagreement(case: Case) -> str | None:
    """What the two replays say where they differ, None where they agree.

    Where a cycle settles slowly the reference, which only ever averages, gets more turns.
    """
    simulated = judged(case)
    for turns in (24, _MANY_TURNS):
        reference = replay(case.graph, case.schedule, budget=case.budget, machine=case.machine, turns=turns)
        if _agree(simulated, reference):
            return None
        if isinstance(reference, Refused):
            break
    return f"simulator: {simulated!r}\nreference: {reference!r}"


def _agree(simulated: Figures | InvalidScheduleError, reference: Accepted | Refused) -> bool:
    if isinstance(simulated, InvalidScheduleError):
        return (
            isinstance(reference, Refused)
            and simulated.step == reference.step
            and simulated.rule in reference.rules
        )
    if isinstance(reference, Refused):
        return False
    bytes_simulated, bytes_reference = (
        (one.peaks, one.least_budget, one.pinned_peak, one.least_pinned) for one in (simulated, reference)
    )
    return bytes_simulated == bytes_reference and simulated.time == pytest.approx(
        reference.time, rel=1e-9, abs=1e-9
    )
