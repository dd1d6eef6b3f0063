"""The place of a batch in an update over several, and the sums of gradients so far, for eager PyTorch.

    first ──▶ next ──▶ … ──▶ last        one update; a batch that is an update by itself is a last one

Each place has its own code (updates/parts.py). The sums are states of the optimizer, of which its own `step`
knows nothing; nor does it know states that a plan has made before its first step.
"""

from __future__ import annotations

from enum import Enum, auto

from torch import Tensor

from ...model.accumulated import SUM, Accumulated, accumulated, note_accumulated
from ...model.iteration import Iteration
from ...updates.state import OF_PLANS


class Place(Enum):
    """Place of a batch in its update."""

    FIRST = auto()
    NEXT = auto()
    LAST = auto()


def place_of(iteration: Iteration) -> Place:
    """Return the place of the batch that comes now."""
    if iteration.updates is None or not iteration.accumulates:
        return Place.LAST
    now = accumulated(iteration.updates.optimizer)
    if now is None:
        return Place.FIRST
    return Place.LAST if now.batches + 1 == iteration.accumulate else Place.NEXT


def places(iteration: Iteration, updates: int) -> list[Place]:
    """Return the places of the batches that show all that so many updates do differently."""
    if iteration.updates is None or not iteration.accumulates:
        return updates * [Place.LAST]
    # Of two batches none is between the first and the last.
    return [*([Place.NEXT] if iteration.accumulate > 2 else []), *updates * [Place.FIRST, Place.LAST]]


def take_sums(iteration: Iteration) -> dict[str, Tensor]:
    """Return the sums so far by parameter name, and make the optimizer what eager's is before it steps.

    States that were made in this update have done nothing yet, so they go. A stale sum goes too.
    """
    assert iteration.updates is not None
    optimizer, sums = iteration.updates.optimizer, dict[str, Tensor]()
    now = accumulated(optimizer)
    for name, parameter in iteration.module.named_parameters():
        row = optimizer.state.get(parameter, {})
        total = row.pop(SUM, None)
        if now is not None and total is not None:
            sums[name] = total
        # new: the optimizer had no states of its own when this update began.
        if now is not None and now.new:
            for state in row.keys() - {*OF_PLANS}:
                del row[state]
        if not row:
            optimizer.state.pop(parameter, None)
    note_accumulated(optimizer, None)
    return sums


def put_sums(iteration: Iteration, sums: dict[str, Tensor], before: Accumulated | None) -> None:
    """Note one more batch, with these sums.

    before: the progress of the update until then.
    """
    assert iteration.updates is not None
    optimizer = iteration.updates.optimizer
    new = not any(row.keys() - {*OF_PLANS} for row in optimizer.state.values())
    parameters = dict(iteration.module.named_parameters())
    for name, total in sums.items():
        optimizer.state[parameters[name]][SUM] = total
    batches = 0 if before is None else before.batches
    now = Accumulated(batches + 1, iteration.accumulate, new if before is None else before.new)
    note_accumulated(optimizer, now)


def without_passing_states(iteration: Iteration, made: dict[str, Tensor], place: Place) -> dict[str, Tensor]:
    """Return what an iteration makes without states that mean nothing at this place of an update.

    After the last batch these are the sums, before it the optimizer's own states, which have not changed.
    """
    if iteration.updates is None or not iteration.accumulates:
        return made
    of_parameters = dict(iteration.module.named_parameters())
    rows = {name: iteration.updates.optimizer.state.get(p, {}) for name, p in of_parameters.items()}
    last = place is Place.LAST
    passing = {f"{name}.{key}" for name, row in rows.items() for key in row if (key == SUM) == last}
    return {name: tensor for name, tensor in made.items() if name not in passing}
