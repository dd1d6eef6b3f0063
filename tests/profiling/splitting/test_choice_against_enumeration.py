"""The choice of regions against all that can be chosen, by what the largest operation then needs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
from memplan.profiling.splitting.choice import Choice, counts
from memplan.profiling.splitting.split import Cut, split
from splitting_families import traced

MOST_WORSE = 1.05


def every_choice(choice: Choice) -> Iterator[list[Cut]]:
    """Yield sets of regions: one way or two that share no operation, each region in each number of pieces."""
    ways = {
        tuple(region.key for region in way): way
        for operation in range(len(choice.program.operations))
        for way in choice._ways(operation)  # pyright: ignore[reportPrivateUsage]
    }
    found = [*ways.values()]
    for place, first in enumerate(found):
        own = {i for region in first for i in region.members}
        apart = [way for way in found[place + 1 :] if all(own.isdisjoint(each.members) for each in way)]
        for regions in [first, *([*first, *second] for second in apart)]:
            # More pieces need no more than fewer: the most of each is the least.
            most = [[*counts(region)][-1:] for region in regions]
            for pieces in product(*most):
                yield [Cut(region, count) for region, count in zip(regions, pieces, strict=True)]


@pytest.mark.scripts
@pytest.mark.parametrize("name", ["loss mean", "images"])
def test_nothing_else_needs_much_less(name: str) -> None:
    one = traced(name)
    choice = Choice(one.program, one.measured)
    assert choice.within(0) is not None
    chosen, best = choice.largest, choice.largest
    for cuts in [*every_choice(choice)]:
        choice.cuts = cuts
        if choice.largest < best and split(choice.program, cuts) is not None:
            best = choice.largest
    assert chosen <= MOST_WORSE * best, f"{chosen:,} B, {best:,} B by enumeration"
