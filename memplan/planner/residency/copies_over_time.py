"""Copies of one tensor in two neighbouring memories over time, and their transfers.

Applied to each pair of neighbouring memories, from the device down: what the copies in the upper memory ask
of the lower one are the accesses of the next pair. A version begins when the tensor changes; within it one
copy downwards serves all offload intervals, and the copy below stays fresh until the next change.

Copies up (fetches) come just before their uses here: prefetch_placement.py moves them ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple


class Event(NamedTuple):
    """An access to the tensor.

    upper: to the copy in the upper memory; else to that in the lower.
    changes: a new version begins. anew: and it does not need the old one.
    """

    moment: int
    upper: bool
    changes: bool = False
    anew: bool = False


class Interval(NamedTuple):
    """A copy in the upper memory from `start` to `end`; None: it stays.

    use: the moment of the use for which it is fetched from below at `start`; None if it is made there.
    """

    start: int
    end: int | None
    use: int | None

    @property
    def fetched(self) -> bool:
        return self.use is not None


@dataclass(frozen=True)
class Requests:
    """A solver's decisions about one tensor, by the moments of its uses in the upper memory.

    offloads(a, b): whether the upper copy leaves between the use at a and the next at b. b is None if there
    is none; (-1, None) asks for a tensor without uses.
    copy_down(a): moment within an iteration of the copy down for that, at the earliest when the version
    begins; None: right after the use.
    fetch(b): moment of the copy up for the use at b; None: just before the use.
    """

    offloads: Callable[[int, int | None], bool]
    copy_down: Callable[[int], int | None]
    fetch: Callable[[int], int | None]


@dataclass
class Copies:
    """The copies in the upper memory, and what they ask of the lower.

    upper: intervals with a copy in the upper memory.
    stored: moments of the copies down.
    below: accesses to the lower memory, by moment.
    always_below: a copy stays in the lower memory for ever.
    """

    upper: list[Interval] = field(default_factory=list[Interval])
    stored: list[int] = field(default_factory=list[int])
    below: list[Event] = field(default_factory=list[Event])
    always_below: bool = False


@dataclass(frozen=True)
class _Version:
    """A version from the change that begins it to the one that ends it; None if the lifetime ends instead."""

    source: Event
    uses: Sequence[Event]
    closing: Event | None

    def accesses(self, *, upper: bool) -> list[Event]:
        """Return the accesses to one memory, with the changes at both ends if they are there and need a
        copy."""
        ends = [] if self.closing is None or self.closing.anew else [self.closing]
        return [event for event in (self.source, *self.uses, *ends) if event.upper == upper]


def derive_copies(
    events: Sequence[Event],
    requests: Requests,
    *,
    period: int | None,
    survives: bool,
    stays_below: bool = False,
) -> Copies:
    """Derive the copies in the upper memory that these accesses need.

    events: by moment.
    period: moments of an iteration, for a persistent tensor; else None.
    survives: the tensor is in the upper memory when the iteration ends.
    stays_below: a persistent tensor never leaves the lower memory.
    """
    if period is not None and not any(event.changes for event in events):
        copies = _unchanging(events, requests, period, stays_below=stays_below)
    else:
        copies = Copies()
        for version in _versions(events, period):
            _add(copies, version, requests, survives=survives, period=period)
        copies.upper = _joined(copies.upper, period)
    copies.below += [event._replace(upper=True) for event in events if not event.upper]
    if period is not None:
        copies.below = [event._replace(moment=event.moment % period) for event in copies.below]
    copies.below.sort(key=lambda event: (event.moment, not event.changes))
    return copies


def _versions(events: Sequence[Event], period: int | None) -> Iterator[_Version]:
    changes = [index for index, event in enumerate(events) if event.changes]
    line = list(events)
    if period is not None:
        # Begin with the first change, so that each version is one stretch, the last across the end.
        first = changes[0]
        line = line[first:] + [event._replace(moment=event.moment + period) for event in line[: first + 1]]
        changes = [*(index - first for index in changes), len(events)]
    for start, end in pairwise(changes):
        yield _Version(line[start], line[start + 1 : end], line[end])
    if period is None:
        yield _Version(line[changes[-1]], line[changes[-1] + 1 :], None)


def _add(
    copies: Copies, version: _Version, requests: Requests, *, survives: bool, period: int | None
) -> None:
    """Add the upper copies of one version, and what they ask of the lower memory."""
    above = version.accesses(upper=True)
    if not above:
        return
    moments = [event.moment for event in above]
    offloaded = [(a, b) for a, b in pairwise(moments) if requests.offloads(a, b)]
    last, end = version.closing is None, moments[-1]
    # Persistent tensors have no end: for them the last version closes with the first change of the next
    # iteration.
    leaves_at_end = last and survives and requests.offloads(end, None)
    intervals = [*offloaded, *([(end, None)] if leaves_at_end else [])]
    stored = _copy_down(version, intervals, requests, period)
    if stored is not None:
        copies.stored.append(stored)
        copies.below.append(Event(stored, True, changes=True, anew=True))
    start, use = moments[0], None if version.source.upper else moments[0]
    if use is not None:
        start = _fetch(copies, use, requests)
    for a, b in offloaded:
        copies.upper.append(Interval(start, _end(a, stored), use))
        start, use = _fetch(copies, b, requests), b
    if last and survives and not leaves_at_end:
        copies.upper.append(Interval(start, None, use))
    elif above[-1] is version.closing:
        copies.upper.append(Interval(start, end, use))
    else:
        copies.upper.append(Interval(start, _end(end, stored), use))


def _copy_down(
    version: _Version, offloaded: Sequence[tuple[int, int | None]], requests: Requests, period: int | None
) -> int | None:
    """Find the moment of the copy down; None if the version begins below or needs none.

    offloaded: the uses before and after each offload interval; None: there is none after it.
    """
    if not version.source.upper:
        return None
    below = version.accesses(upper=False)
    # The copy serves whichever needs it first: the first offload interval, or the first access below.
    reasons = [*offloaded[:1], *([(version.source.moment, below[0].moment)] if below else [])]
    earliest = version.source.moment + 1

    def moment(use: int, following: int | None) -> int:
        wanted = requests.copy_down(use)
        if wanted is None:
            return use + 1
        wanted = max(earliest, wanted) if period is None else earliest + (wanted - earliest) % period
        # Later than just before the next use the interval would be over when it begins.
        return wanted if following is None else min(wanted, max(following - 1, earliest))

    return min((moment(*reason) for reason in reasons), default=None)


def _fetch(copies: Copies, use: int, requests: Requests) -> int:
    """Fetch the upper copy for a use. The lower copy is held until then: its delete need not wait."""
    wanted = requests.fetch(use)
    moment = use - 1 if wanted is None else wanted
    copies.below += [Event(moment, True), Event(use, True)]
    return moment


def _end(use: int, stored: int | None) -> int:
    """Return the end of an upper copy: after its use, and not before the copy down has been started."""
    return use + 1 if stored is None else max(use + 1, stored)


def _unchanging(events: Sequence[Event], requests: Requests, period: int, *, stays_below: bool) -> Copies:
    """Derive the copies of a persistent tensor that never changes: a lower copy stays fresh for ever."""
    above = [event.moment for event in events if event.upper]
    if not events:
        below = stays_below or requests.offloads(-1, None)
        return Copies(always_below=True) if below else Copies([Interval(0, None, None)])
    around = [*above, above[0] + period] if above else []
    leaving = [index for index, (a, b) in enumerate(pairwise(around)) if requests.offloads(a, b)]
    if not leaving:
        below = stays_below or len(above) < len(events)
        return Copies([Interval(0, None, None)] if above else [], always_below=below)
    copies = Copies(always_below=True)
    # Each copy lasts from a fetch to the next departure; the first fetch is for the use after the last
    # departure of the iteration before, hence below 0.
    for before, index in pairwise([leaving[-1] - len(above), *leaving]):
        use = around[(before + 1) % len(above)] - (period if before + 1 < 0 else 0)
        copies.upper.append(Interval(_fetch(copies, use, requests), around[index] + 1, use))
    return copies


def _joined(intervals: Sequence[Interval], period: int | None) -> list[Interval]:
    """Join intervals that meet: one copy serves two versions if it is changed in place, also across the end
    of the iteration."""
    joined: list[Interval] = []
    for interval in intervals:
        # A fetched copy is another one, even if it starts where the one before ends.
        if joined and joined[-1].end == interval.start and not interval.fetched:
            joined[-1] = joined[-1]._replace(end=interval.end)
        else:
            joined.append(interval)
    if period is None or not joined or joined[0].fetched or joined[-1].end != joined[0].start + period:
        return joined
    if len(joined) == 1:
        return [Interval(0, None, None)]
    return [*joined[1:-1], joined[-1]._replace(end=_later(joined[0].end, period))]


def _later(moment: int | None, period: int) -> int | None:
    return None if moment is None else moment + period
