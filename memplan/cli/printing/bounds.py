"""Lower bounds as `plan solve` prints them, for people and as JSON."""

from __future__ import annotations

from math import inf
from typing import Any

from ...graphs.units import duration
from ...solvers.problem import Bound
from .output import Row


def bound_row(bound: Bound, time: float) -> Row:
    """Return the row of a bound that does not hold for all schedules: one that takes `time` may beat it."""
    scope = {"any": "any order", "file": "traced order"}[bound.order]
    scope += "" if bound.transfers else ", no transfers"
    scope += "" if bound.backward_again else ", backward once"
    scope += f", {bound.form}" if bound.form else ""
    scope += f", by {bound.by}, not checked" if bound.by else ""
    ways = ["in another order"] if bound.order == "file" else []
    ways += [] if bound.backward_again else ["with backward repeated"]
    ways += ["in another form"] if bound.form else []
    gap = f"beaten {' or '.join(ways)}"
    # Above the time it is no contradiction: the bound is of a narrower class of schedules.
    if bound.seconds <= time:
        gap = f"gap {(time - bound.seconds) / time:z.1%}"
    seconds = "no schedule" if bound.seconds == inf else duration(bound.seconds)
    return "", f"{seconds} ({scope}), {gap}"


def bound_document(bound: Bound, time: float) -> dict[str, Any]:
    """Return a bound for JSON.

    time: seconds of the schedule.
    seconds: null if no such schedule exists.
    """
    exists = bound.seconds < inf
    gap = (time - bound.seconds) / time if time and exists else 0.0
    return {
        "order": bound.order,
        "transfers": bound.transfers,
        "backward_again": bound.backward_again,
        "form": bound.form,
        "name": bound.name,
        "by": bound.by,
        "seconds": bound.seconds if exists else None,
        "gap": gap if exists else None,
    }
