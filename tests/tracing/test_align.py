"""A program in the order of a graph: names are looked up in time linear in their number."""

from __future__ import annotations

from collections.abc import Iterator

from memplan.tracing import align


class Counted(list[str]):
    """Names that count how often they are walked through."""

    walks = 0

    def __iter__(self) -> Iterator[str]:
        self.walks += 1
        return super().__iter__()


def test_names_are_walked_through_a_few_times_however_many_they_are() -> None:
    own = [str(number) for number in range(100)]
    theirs = Counted(reversed(own))
    assert align._places(own, theirs, "tensor") == [*reversed(range(100))]
    assert theirs.walks <= 3
