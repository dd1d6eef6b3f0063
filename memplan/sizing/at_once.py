"""Largest batches without a plan: the first answer for several GPUs, before a solver is asked.

    as it is                  PyTorch's own loop
    gradient checkpointing    the same with torch.utils.checkpoint around each layer
    8-bit optimizer           the loop as it is, with optimizer states of a byte an element
    LoRA                      adapters of rank 16 on all linear layers, all else frozen; with gradient
                              checkpointing too

A batch is replayed, not searched for. Bytes are the same on all GPUs that run the same operations, so that a
batch is replayed once for all of them, and few are: bytes between batches are taken from a line (lines.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, NamedTuple

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
from .lines import ConvexBytes
from .loops import NO_LINKS, Loop, Loops
from .question import Room
from .trial import STARTS, Known, largest_batch

if TYPE_CHECKING:
    from ..profiling.profile.estimates import Demanded

AS_IT_IS, CHECKPOINTING, EIGHT_BIT = "as it is", "checkpointing", "8-bit optimizer"
ADAPTERS = "r=16"
LORA, LORA_CHECKPOINTING = "LoRA", "LoRA, checkpointing"
_CHECKPOINTED = (CHECKPOINTING, LORA_CHECKPOINTING)


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
    _bytes: dict[tuple[str, object], ConvexBytes] = field(
        default_factory=dict[tuple[str, object], ConvexBytes]
    )
    _refused: set[tuple[int, object]] = field(default_factory=set[tuple[int, object]])
    _checkpoints: dict[tuple[int, object], Schedule | None] = field(
        default_factory=dict[tuple[int, object], "Schedule | None"]
    )

    def run(
        self, loops: Loops, room: Room, batches: Sequence[int] | None, adapted: Loops | None = None
    ) -> AtOnce:
        """Return what fits.

        batches: those to try, None: search. adapted: the loops with LoRA, None without these ways.
        """
        ways = [(AS_IT_IS, loops), (CHECKPOINTING, loops)]
        if self.optimizer in NAMES:
            ways.append((EIGHT_BIT, loops))
        if adapted is not None:
            ways += [(LORA, adapted), (LORA_CHECKPOINTING, adapted)]
        found = (self._way(name, there, room.unplanned, batches) for name, there in ways)
        return AtOnce(loops.preset, room, tuple(found))

    def _way(self, name: str, loops: Loops, limit: int, batches: Sequence[int] | None) -> WayAtOnce:
        def attempt(batch: int) -> _Tried | None:
            needed = self._needed(name, batch, loops)
            return None if needed is None else _Tried(batch, needed <= limit)

        best = max((one.batch for one in _tried(attempt, batches) if one.fits), default=None)
        if best is None:
            return WayAtOnce(name)
        graph, schedule = self._loop(name, best, loops).graph, self._schedule(name, best, loops)
        assert schedule is not None, "it fits"
        if name in _CHECKPOINTED:
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
        if name not in _CHECKPOINTED:
            return baseline_schedule(graph)
        # Batches differ in numbers alone: a schedule of one is a schedule of all. Kinds of GPUs differ in
        # operations, even where these are as many.
        key = len(graph.operations), loops.estimates.demanded(loops.preset)
        if key not in self._checkpoints:
            self._checkpoints[key] = checkpointed(graph)
        return self._checkpoints[key]

    def _needed(self, name: str, batch: int, loops: Loops) -> float | None:
        """Return the device bytes that a batch takes, without what cuBLAS keeps.

        Returns inf if no layer can be checkpointed, None if the model refuses the batch.
        """
        demanded = loops.estimates.demanded(loops.preset)
        if (batch, demanded) in self._refused:
            return None
        known = self._known(name, demanded)
        if (found := known.at(batch)) is not None:
            return found
        try:
            demanded.demands(batch)
        except MemplanError:  # the second stage says why
            self._refused.add((batch, demanded))
            return None
        found = self._replayed(name, batch, loops)
        self._known(name, demanded).add(batch, found)
        return found

    def _known(self, name: str, demanded: Demanded) -> ConvexBytes:
        """Return what is known of the batches."""
        known, line = self._bytes.setdefault((name, demanded), ConvexBytes()), demanded.family.held
        known.follow(None if line is None else line[0], demanded.family.traced)
        return known

    def _replayed(self, name: str, batch: int, loops: Loops) -> float:
        graph = self._loop(name, batch, loops).graph
        if name not in _CHECKPOINTED:
            return baseline(graph).peak
        schedule = self._schedule(name, batch, loops)
        if schedule is None:
            return inf
        least = Replays(graph, NO_LINKS).least_budget(schedule)
        assert least is not None, "it needs no memory but the device's"
        return least


def _tried(attempt: Callable[[int], _Tried | None], batches: Sequence[int] | None) -> Iterator[_Tried]:
    """Yield the batches that the model can have: those given, or of a search from the first of them."""
    if batches:
        yield from filter(None, map(attempt, batches))
        return
    start = next((one for one in STARTS if attempt(one)), None)
    if start is not None:
        yield from largest_batch(lambda batch: attempt(batch) or _Tried(batch, fits=False), start)


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
