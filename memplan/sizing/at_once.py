"""Largest batches without a plan: the first answer for several GPUs, before a solver is asked.

    as it is                  PyTorch's own loop
    gradient checkpointing    the same with torch.utils.checkpoint around each layer
    8-bit optimizer           the loop as it is, with optimizer states of a byte an element
    LoRA                      adapters of rank 16 on all linear layers, all else frozen; with gradient
                              checkpointing too

No schedule is searched for: bytes and seconds are closed forms (outline.py). Bytes are the same on all GPUs
that run the same operations, so that those of a batch are computed once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..graphs.errors import MemplanError
from ..graphs.graph import Graph
from ..graphs.machines.presets import Preset
from ..planner.baseline import baseline_schedule
from ..planner.schedule.schedule import Schedule
from ..solvers.candidates import candidate_of_runs
from ..solvers.recomputation.checkpointing.layer_checkpoint import runs
from .eight_bit import NAMES
from .loops import Loops
from .question import Room
from .trial import STARTS, Known, largest_batch

if TYPE_CHECKING:
    from ..profiling.profile.demand_lines import DemandLine
    from .outline import Outline

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
    """Searches for the largest batches without a plan; what is computed for one GPU is known to the next.

    optimizer: its name, None without updates.
    """

    optimizer: str | None
    _outlines: dict[tuple[str, DemandLine, bool], Outline | None] = field(
        default_factory=dict[tuple[str, "DemandLine", bool], "Outline | None"]
    )
    _bytes: dict[tuple[Outline, int], int] = field(default_factory=dict[tuple["Outline", int], int])
    _refused: set[tuple[int, object]] = field(default_factory=set[tuple[int, object]])
    _made: dict[tuple[DemandLine, bool], Loops] = field(
        default_factory=dict[tuple["DemandLine", bool], Loops]
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
        outline, steps = self._outline(name, best, loops), loops.steps(best)
        assert outline is not None, "it fits"
        seconds = outline.seconds(best, loops.preset, steps)
        return WayAtOnce(name, best, steps * best / seconds if seconds else None)

    def _needed(self, name: str, batch: int, loops: Loops) -> float | None:
        """Return the device bytes that a batch takes, without what cuBLAS keeps.

        Returns inf if no layer can be checkpointed, None if the model refuses the batch.
        """
        estimates, preset = loops.estimates, loops.preset
        if (batch, estimates.demanded(preset)) in self._refused:
            return None
        try:
            outline = self._outline(name, batch, loops)
        except MemplanError:  # the second stage says why
            self._refused.add((batch, estimates.demanded(preset)))
            return None
        if outline is None:
            return inf
        if (outline, batch) not in self._bytes:
            self._bytes[outline, batch] = outline.peak(batch)
        return self._bytes[outline, batch]

    def _outline(self, name: str, batch: int, loops: Loops) -> Outline | None:
        """Return the way's closed forms for a batch, None if the model has no layers to checkpoint.

        Raises MemplanError if the model refuses the batch.
        """
        from .outline import Outline

        line = loops.estimates.demanded(loops.preset, batch).line(batch)
        summed = loops.steps(batch) > 1
        key = name, line, summed
        if key not in self._outlines:
            # Two stand for any number: sums are resident from the second micro-batch on.
            made = self._made.setdefault((line, summed), loops.with_steps(2 if summed else 1))
            graph = ordinary = made.ordinary(line.ends[0]).graph
            slower = np.ones(len(graph.operations))
            if name == EIGHT_BIT:
                graph = made.eight_bit(line.ends[0]).graph
                slower = graph.operations.time / ordinary.operations.time
            schedule = checkpointed(graph) if name in _CHECKPOINTED else baseline_schedule(graph)
            found = None if schedule is None else Outline(line, graph, schedule, slower.tolist())
            self._outlines[key] = found
        return self._outlines[key]


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
