"""Will it fit: the search on each of several GPUs by itself, or on equal ranks of sharded training.

Several GPUs have an answer in two stages: what fits without a plan, at once, then the plans, GPU by GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import NamedTuple

from ..graphs.errors import InputError
from ..graphs.machine import Machine
from ..graphs.machines.presets import Preset
from ..solvers.registry.catalogue import DEFAULT_SOLVER
from .at_once import ADAPTERS, AtOnce, AtOnceSearch
from .estimate_range import Span
from .in_pieces import search_in_pieces
from .lengths import Lengths
from .loops import Loops
from .question import QUICK, QUICK_OF_RANKS, QUICK_OF_SEVERAL, Question, Room
from .result import SizeResult
from .search import SizeSearch
from .subject import Subject
from .trial import Known
from .words import minutes

ASKED_FIRST = ("rtx3060", "rtx4060-ti-16gb", "rtx3090", "rtx4090", "rtx5090", "t4", "l4", "a100", "h100")
"""GPUs whose plans come first: those that people ask for most."""


class Sizes(NamedTuple):
    """Results on each GPU by itself, or on ranks.

    several: GPUs, of which some have no result after an interruption.
    at_once: of several GPUs, what fits without a plan.
    left: names of the GPUs without a result.
    """

    subject: Subject
    results: list[SizeResult]
    several: bool
    at_once: Sequence[AtOnce] = ()
    left: Sequence[str] = ()


@dataclass
class Sizing:
    """The question of `plan size`: which batches fit, which one to train with, and how fast.

    subject: the model and the loop that trains it.
    gpus: at least one, each with the bytes to use there.
    rank: machine of a rank, with its network, if ranks train together; each has the one GPU of `gpus`.
    lengths: of the samples, if they are padded to the longest of each batch; None: all have one.
    batches: those to try, of each rank; None: search.
    solver, settings, time_limit: for each question; None: seconds by the graph's size.
    prices: per hour, by the preset's name, in any currency.
    report: a function that takes lines of progress; it may be replaced between two results.

    Raises InputError, one line, for ranks of several GPUs, or with micro-batches.
    """

    subject: Subject
    gpus: Sequence[tuple[Preset, Room]]
    rank: Machine | None = None
    lengths: Lengths | None = None
    batches: list[int] | None = None
    solver: str = DEFAULT_SOLVER
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    time_limit: float | None = None
    prices: Mapping[str, float] = field(default_factory=dict[str, float])
    report: Callable[[str], None] = lambda _line: None
    _spans: dict[tuple[int, object], tuple[object, Span]] = field(
        default_factory=dict[tuple[int, object], tuple[object, Span]]
    )

    def __post_init__(self) -> None:
        loop = self.subject.loop
        if self.rank is not None and (self.several or loop.accumulate > 1 or loop.total is not None):
            raise InputError("ranks have one kind of GPU, and one micro-batch per update")
        if loop.split and (self.rank is not None or self.several):
            raise InputError("--split is of one GPU: name one, without --ranks")
        if loop.total is not None:
            self.batches = loop.divisors()

    @property
    def several(self) -> bool:
        return len(self.gpus) > 1

    def at_once(self) -> Iterator[AtOnce]:
        """Yield what fits each GPU without a plan, in the order of their bytes; Ctrl-C ends it early."""
        search, adapted = AtOnceSearch(self._optimizer), self._with_adapters()
        with suppress(KeyboardInterrupt):
            for done, (preset, room) in enumerate(self._by_room):
                self.report(f"{done} of {len(self.gpus)} GPUs: what fits without a plan")
                loops = self._loops(preset)
                lora = adapted and replace(loops, estimates=adapted.estimates)
                yield search.run(loops, room, self.batches, lora)

    def results(self) -> Iterator[SizeResult]:
        """Yield the results, those of the GPUs in ASKED_FIRST first, else those with the least bytes.

        What is found for one GPU is known to the next. After an interruption the others are left out. Raises
        MemplanError, one line.
        """
        known, begin = Known(), monotonic()
        waiting = sorted(self._by_room, key=lambda pair: pair[0].name not in ASKED_FIRST)
        for done, (preset, room) in enumerate(waiting):
            search = self._search(preset, room, known, self._prefix(done, monotonic() - begin))
            found = search.run(self.batches)
            found.price = self.prices.get(preset.name)
            if self.subject.loop.split and found.trials and not found.interrupted:
                found.in_pieces = search_in_pieces(search.loops, search.ask, found)
            yield found
            if found.interrupted:
                return

    def together(self, results: Sequence[SizeResult], at_once: Sequence[AtOnce] = ()) -> Sizes:
        """Return the results, those of the GPUs with the least bytes first."""
        names = [preset.name for preset, _room in self._by_room]
        ordered = sorted(results, key=lambda found: names.index(found.preset.name))
        there = {found.preset.name for found in results}
        left = [name for name in names if name not in there]
        return Sizes(self.subject, ordered, self.several, at_once, left)

    def notes(self) -> list[str]:
        """Return a line for each dtype that the model computes with and a GPU has no fast path for."""
        lines = (line for preset, _room in self.gpus for line in self.subject.estimates.notes(preset))
        return [*dict.fromkeys(lines)]

    def _with_adapters(self) -> Subject | None:
        """Return the model with LoRA; None if it has some already."""
        loop, with_loop = self.subject.loop, self.subject.with_loop
        if loop.lora is not None or with_loop is None:
            return None
        # Adapters are float32: none has a master.
        return with_loop(replace(loop, lora=ADAPTERS, master_weights=False))

    @property
    def _by_room(self) -> list[tuple[Preset, Room]]:
        # A schedule that was found for a smaller GPU fits on a larger one.
        return sorted(self.gpus, key=lambda pair: pair[1].limit)

    @property
    def _optimizer(self) -> str | None:
        return None if self.subject.optimizer == "none" else self.subject.optimizer

    def _loops(self, preset: Preset) -> Loops:
        peers = None if self.rank is None else self.rank.links.peers
        # Bytes of the loop without a plan are shared by GPUs.
        loop = self.subject.loop
        reduced = loop.param_dtype and (loop.reduce_dtype or loop.param_dtype)
        return Loops(
            self.subject.estimates,
            preset,
            loop.steps,
            peers=peers,
            reduce_dtype=reduced,
            expandable=loop.expandable_segments,
            of_length=self.subject.of_length,
            unplanned_spans=self._spans,
        )

    def _search(self, preset: Preset, room: Room, known: Known, prefix: str) -> SizeSearch:
        quick = QUICK_OF_RANKS if self.rank else QUICK_OF_SEVERAL if self.several else QUICK
        ask = Question(
            self.solver,
            self.time_limit,
            self.settings,
            self.rank or preset.machine,
            lambda line: self.report(prefix + line),
            quick_share=quick,
        )
        return SizeSearch(
            loops=self._loops(preset),
            ask=ask,
            room=room,
            optimizer=self._optimizer,
            known=known,
            lengths=self.lengths,
            brief=self.several,
            one_update=self.subject.loop.total is not None,
        )

    def _prefix(self, done: int, seconds: float) -> str:
        """Return what a line of progress begins with: '7 of 68 GPUs, some 3 minutes left: '."""
        if not self.several:
            return ""
        count = len(self.gpus)
        left = "" if not done else f", {minutes(seconds / done * (count - done))} left"
        return f"{done} of {count} GPUs{left}: "
