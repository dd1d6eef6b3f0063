"""One tensor's life in two memories, the upper above the lower: which copies are where, and when they move.

Applied twice: the device above the host, then the host above the disk, with what the first call asks of the
host as the uses of the second. A version begins where the tensor changes; within it one copy downwards serves
all absences from above, and the copy below stays fresh until the next change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple


class Event(NamedTuple):
    """A use of the tensor. upper: of the copy above, else of the one below.

    changes: a new version begins with it.  anew: and it does not need the old one.
    """

    moment: int
    upper: bool
    changes: bool = False
    anew: bool = False


class Piece(NamedTuple):
    """A copy above from `start` to `end` (None: it stays). use: the one for which it is fetched from below
    at `start`; None where it is made there."""

    start: int
    end: int | None
    use: int | None

    @property
    def fetched(self) -> bool:
        return self.use is not None


@dataclass(frozen=True)
class Wish:
    """How a solver wants it, by the moments of uses above.

    away(a, b): the copy above leaves between the use at a and the next at b (None: there is none; -1, None:
    nobody uses the tensor). leave(a): when in a turn the copy down is made for that, at the earliest when the
    version begins; back(b): when the copy above is fetched for the use at b; None: at the nearest.
    """

    away: Callable[[int, int | None], bool]
    leave: Callable[[int], int | None]
    back: Callable[[int], int | None]


@dataclass
class Level:
    """pieces: the copies above. stored: when copies down are made. below: what is asked of the memory below,
    by moment. always_below: a copy lies there for ever."""

    pieces: list[Piece] = field(default_factory=list[Piece])
    stored: list[int] = field(default_factory=list[int])
    below: list[Event] = field(default_factory=list[Event])
    always_below: bool = False


@dataclass(frozen=True)
class _Version:
    """From the change that begins it to the one that ends it, None where the life ends instead."""

    source: Event
    uses: Sequence[Event]
    closing: Event | None

    def points(self, upper: bool) -> list[Event]:
        """The uses on one side, the changes at both ends included where they are on it and need a copy."""
        ends = [] if self.closing is None or self.closing.anew else [self.closing]
        return [event for event in (self.source, *self.uses, *ends) if event.upper == upper]


def level(events: Sequence[Event], wish: Wish, *, cycle: int | None, stays: bool) -> Level:
    """events: by moment. cycle: the turn's length for a persistent tensor. stays: there at the turn's end."""
    if cycle is not None and not any(event.changes for event in events):
        plan = _unchanging(events, wish, cycle)
    else:
        plan = Level()
        for version in _versions(events, cycle):
            _add(plan, version, wish, stays, cycle)
        plan.pieces = _joined(plan.pieces, cycle)
    plan.below += [event._replace(upper=True) for event in events if not event.upper]
    if cycle is not None:
        plan.below = [event._replace(moment=event.moment % cycle) for event in plan.below]
    plan.below.sort(key=lambda event: (event.moment, not event.changes))
    return plan


def _versions(events: Sequence[Event], cycle: int | None) -> Iterator[_Version]:
    changes = [index for index, event in enumerate(events) if event.changes]
    turn = list(events)
    if cycle is not None:
        first = changes[0]
        turn = turn[first:] + [event._replace(moment=event.moment + cycle) for event in turn[: first + 1]]
        changes = [*(index - first for index in changes), len(events)]
    for start, end in pairwise(changes):
        yield _Version(turn[start], turn[start + 1 : end], turn[end])
    if cycle is None:
        yield _Version(turn[changes[-1]], turn[changes[-1] + 1 :], None)


def _add(plan: Level, version: _Version, wish: Wish, stays: bool, cycle: int | None) -> None:
    """The copies above during one version, and what they ask of the memory below."""
    above = version.points(upper=True)
    if not above:
        return
    moments = [event.moment for event in above]
    away = [(a, b) for a, b in pairwise(moments) if wish.away(a, b)]
    last, end = version.closing is None, moments[-1]
    gone = last and stays and wish.away(end, None)
    stored = _stored(version, [*away, *([(end, None)] if gone else [])], wish, cycle)
    if stored is not None:
        plan.stored.append(stored)
        plan.below.append(Event(stored, True, changes=True, anew=True))
    start, use = moments[0], None if version.source.upper else moments[0]
    if use is not None:
        start = _fetched(plan, use, wish)
    for a, b in away:
        plan.pieces.append(Piece(start, _end(a, stored), use))
        start, use = _fetched(plan, b, wish), b
    if last and stays and not gone:
        plan.pieces.append(Piece(start, None, use))
    elif above[-1] is version.closing:
        plan.pieces.append(Piece(start, end, use))
    else:
        plan.pieces.append(Piece(start, _end(end, stored), use))


def _stored(
    version: _Version, away: Sequence[tuple[int, int | None]], wish: Wish, cycle: int | None
) -> int | None:
    """When the copy down is made; None where the version begins below or needs none.

    away: the uses before and after each absence; None: there is none after it.
    """
    if not version.source.upper:
        return None
    below = version.points(upper=False)
    reasons = [*away[:1], *([(version.source.moment, below[0].moment)] if below else [])]
    earliest = version.source.moment + 1

    def moment(use: int, following: int | None) -> int:
        wanted = wish.leave(use)
        if wanted is None:
            return use + 1
        wanted = max(earliest, wanted) if cycle is None else earliest + (wanted - earliest) % cycle
        return wanted if following is None else min(wanted, max(following - 1, earliest))

    return min((moment(*reason) for reason in reasons), default=None)


def _fetched(plan: Level, use: int, wish: Wish) -> int:
    """Fetch the copy for a use above. The copy below is held until then: its delete need not wait."""
    wanted = wish.back(use)
    moment = use - 1 if wanted is None else wanted
    plan.below += [Event(moment, True), Event(use, True)]
    return moment


def _end(use: int, stored: int | None) -> int:
    """A copy above ends after its use, and not before the copy down is on its way."""
    return use + 1 if stored is None else max(use + 1, stored)


def _unchanging(events: Sequence[Event], wish: Wish, cycle: int) -> Level:
    """A persistent tensor that never changes: a copy below, once there, stays fresh for ever."""
    above = [event.moment for event in events if event.upper]
    if not events:
        return Level(always_below=True) if wish.away(-1, None) else Level([Piece(0, None, None)])
    turn = [*above, above[0] + cycle] if above else []
    leaving = [index for index, (a, b) in enumerate(pairwise(turn)) if wish.away(a, b)]
    if not leaving:
        below = len(above) < len(events)
        return Level([Piece(0, None, None)] if above else [], always_below=below)
    plan = Level(always_below=True)
    for before, index in pairwise([leaving[-1] - len(above), *leaving]):
        use = turn[(before + 1) % len(above)] - (cycle if before + 1 < 0 else 0)
        plan.pieces.append(Piece(_fetched(plan, use, wish), turn[index] + 1, use))
    return plan


def _joined(pieces: Sequence[Piece], cycle: int | None) -> list[Piece]:
    """One copy serves two versions where it is changed in place; around the cycle, too."""
    joined: list[Piece] = []
    for piece in pieces:
        if joined and joined[-1].end == piece.start and not piece.fetched:
            joined[-1] = joined[-1]._replace(end=piece.end)
        else:
            joined.append(piece)
    if cycle is None or not joined or joined[0].fetched or joined[-1].end != joined[0].start + cycle:
        return joined
    if len(joined) == 1:
        return [Piece(0, None, None)]
    return [*joined[1:-1], joined[-1]._replace(end=_later(joined[0].end, cycle))]


def _later(moment: int | None, cycle: int) -> int | None:
    return None if moment is None else moment + cycle
