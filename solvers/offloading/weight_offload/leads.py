"""How far ahead of its use each fetch may stand, by list order alone: the memory that the others leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from ..cycles.cycle import Cycle


def leads_of(cycle: Cycle, chosen: Sequence[int], ranks: Mapping[int, int] | None) -> dict[int, int] | None:
    """Per chosen absence, by how many runs its fetch may stand ahead of its use, in the order of need."""
    runs = cycle.runs
    room = cycle.limit - sum(cycle.sizes)
    slack = [room - need + away for need, away in zip(cycle.need, cycle.away(chosen), strict=True)]
    if min(slack, default=0) < 0:
        return None
    leads: dict[int, int] = {}
    ahead = 0
    before = 0
    for number in _by_need(cycle, chosen, ranks):
        absence = cycle.absences[number]
        size = cycle.sizes[absence.weight]
        furthest = (absence.before - absence.after - 1) % runs
        if leads:
            furthest = max(0, min(furthest, ahead + absence.before - before))
        lead = 0
        while lead < furthest and slack[(absence.before - lead - 1) % runs] >= size:
            lead += 1
            slack[(absence.before - lead) % runs] -= size
        leads[number] = lead
        ahead, before = lead, absence.before
    return leads


def _by_need(cycle: Cycle, chosen: Sequence[int], ranks: Mapping[int, int] | None) -> list[int]:
    """By the run that needs the weight; where ranks are given, those needed at one instant by them."""
    busy = [*accumulate((seconds > 0.0 for seconds in cycle.seconds), initial=0)]

    def key(number: int) -> tuple[int, int, int, int]:
        absence = cycle.absences[number]
        if ranks is None:
            return (absence.before, 0, 0, number)
        return (busy[absence.before], ranks.get(absence.weight, -1), absence.before, number)

    return sorted(chosen, key=key)
