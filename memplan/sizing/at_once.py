"""What fits a GPU without a plan: the first answer for several GPUs, before a solver is asked.

    as it is                  PyTorch's own loop
    gradient checkpointing    the same with torch.utils.checkpoint around each layer
    8-bit optimizer           the loop as it is, with optimizer states of a byte an element

A batch is replayed, not searched for: some milliseconds. Bytes are the same on all GPUs that run the same
operations, so that a batch is replayed once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from ..graphs.errors import MemplanError
from ..graphs.graph import Graph
from ..graphs.machines.presets import Preset
from ..planner.baseline import baseline, baseline_schedule
from ..planner.replay.ranking import Replays
from ..planner.schedule.schedule import Schedule
from ..solvers.candidates import candidate_of_runs
from ..solvers.recomputation.checkpointing.layer_checkpoint import runs
from .accumulation import earlier_seconds
from .eight_bit import NAMES
from .loops import NO_LINKS, Loop, Loops
from .question import Room
from .trial import STARTS, Known, largest_batch

AS_IT_IS, CHECKPOINTING, EIGHT_BIT = "as it is", "gradient checkpointing", "8-bit optimizer"


class WayAtOnce(NamedTuple):
    """A way to train without a plan.

    batch: the largest that fits, of those tried; None if none does.
    samples_per_second: at that batch.
    """

    name: str
    batch: int | None = None
    samples_per_second: float | None = None


class AtOnce(NamedTuple):
    """The ways to train on a GPU without a plan."""

    preset: Preset
    room: Room
    ways: tuple[WayAtOnce, ...]


class _Tried(NamedTuple):
    batch: int
    fits: bool


@dataclass
class AtOnceSearch:
    """Searches for the largest batches without a plan; what is replayed for one GPU is known to the next.

    optimizer: its name, None without updates.
    """

    optimizer: str | None
    _bytes: dict[tuple[str, int, object], tuple[object, float]] = field(
        default_factory=dict[tuple[str, int, object], tuple[object, float]]
    )
    _checkpoints: dict[tuple[int, object], Schedule | None] = field(
        default_factory=dict[tuple[int, object], "Schedule | None"]
    )

    def run(self, loops: Loops, room: Room, batches: Sequence[int] | None) -> AtOnce:
        """Return what fits. batches: those to try, None: search. Raises MemplanError, one line."""
        names = [AS_IT_IS, CHECKPOINTING, *([EIGHT_BIT] if self.optimizer in NAMES else [])]
        return AtOnce(
            loops.preset, room, tuple(self._way(name, loops, room.unplanned, batches) for name in names)
        )

    def _way(self, name: str, loops: Loops, limit: int, batches: Sequence[int] | None) -> WayAtOnce:
        def attempt(batch: int) -> _Tried:
            return _Tried(batch, self._needed(name, batch, loops) <= limit)

        tried = map(attempt, batches) if batches else _searched(attempt)
        best = max((one.batch for one in tried if one.fits), default=None)
        if best is None:
            return WayAtOnce(name)
        graph, schedule = self._loop(name, best, loops).graph, self._schedule(name, best, loops)
        assert schedule is not None, "it fits"
        if name == CHECKPOINTING:
            last = Replays(graph, NO_LINKS).seconds(schedule, limit) or 0.0
        else:
            last = baseline(graph).time
        seconds = last + earlier_seconds(graph, schedule, None, NO_LINKS)
        return WayAtOnce(name, best, loops.steps(best) * best / seconds if seconds else None)

    def _loop(self, name: str, batch: int, loops: Loops) -> Loop:
        return loops.eight_bit(batch) if name == EIGHT_BIT else loops.ordinary(batch)

    def _schedule(self, name: str, batch: int, loops: Loops) -> Schedule | None:
        """Return the way's schedule, None if the model has no layers to checkpoint."""
        graph = self._loop(name, batch, loops).graph
        if name != CHECKPOINTING:
            return baseline_schedule(graph)
        # Batches differ in numbers alone: a schedule of one is a schedule of all. Kinds of GPUs differ in
        # operations, even where these are as many.
        key = len(graph.operations), loops.estimates.demanded(loops.preset)
        if key not in self._checkpoints:
            self._checkpoints[key] = checkpointed(graph)
        return self._checkpoints[key]

    def _needed(self, name: str, batch: int, loops: Loops) -> float:
        """Return the device bytes that a batch takes, without what cuBLAS keeps; inf if there is no such
        way."""
        demanded = loops.estimates.demanded(loops.preset)
        # Demands that were interpolated wrongly are replaced by other objects, and the bytes with them.
        demands, key = demanded.demands(batch), (name, batch, demanded)
        if key not in self._bytes or self._bytes[key][0] is not demands:
            self._bytes[key] = demands, self._replayed(name, batch, loops)
        return self._bytes[key][1]

    def _replayed(self, name: str, batch: int, loops: Loops) -> float:
        graph = self._loop(name, batch, loops).graph
        if name != CHECKPOINTING:
            return baseline(graph).peak
        schedule = self._schedule(name, batch, loops)
        if schedule is None:
            return inf
        least = Replays(graph, NO_LINKS).least_budget(schedule)
        assert least is not None, "it needs no memory but the device's"
        return least


def _searched(attempt: Callable[[int], _Tried]) -> Iterator[_Tried]:
    """Yield the batches of a search, which starts at the first batch that the model can have."""
    for start in STARTS:
        try:
            attempt(start)
        except MemplanError:
            if start == STARTS[-1]:
                raise
        else:
            yield from largest_batch(attempt, start)
            return


def checkpointed(graph: Graph) -> Schedule | None:
    """Return the schedule of a checkpoint around each layer, None if no layer has a number."""
    try:
        return candidate_of_runs(graph, list(runs(graph))).schedule
    except MemplanError:
        return None


def know_checkpoints(known: Known, graph: Graph) -> None:
    """Let checkpoints around each layer be known: then no plan is slower than what needs none."""
    if not known.has(graph, CHECKPOINTING) and (schedule := checkpointed(graph)) is not None:
        known.add(graph, schedule, CHECKPOINTING)
