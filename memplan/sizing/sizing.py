"""Will it fit: the search on each of several GPUs by itself, or on equal ranks of sharded training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ..graphs.errors import InputError
from ..graphs.machine import Machine
from ..graphs.machines.presets import Preset
from ..solvers.registry.catalogue import DEFAULT_SOLVER
from .estimate_range import Span
from .loops import Loops
from .question import QUICK, QUICK_OF_RANKS, QUICK_OF_SEVERAL, Question, Room
from .result import SizeResult
from .search import SizeSearch
from .subject import Subject
from .trial import Known


class Sizes(NamedTuple):
    """Results on each GPU by itself, or on ranks.

    several: GPUs, of which some have no result after an interruption.
    """

    subject: Subject
    results: list[SizeResult]
    several: bool


def size_model(
    subject: Subject,
    gpus: Sequence[tuple[Preset, Room]],
    *,
    rank: Machine | None = None,
    batches: list[int] | None = None,
    solver: str = DEFAULT_SOLVER,
    settings: Mapping[str, str] | None = None,
    time_limit: float | None = None,
    prices: Mapping[str, float] | None = None,
    report: Callable[[str], None] = lambda _line: None,
) -> Sizes:
    """Return per GPU which batches fit, which one to train with, and how fast.

    The GPUs with the least bytes are first: what is found for one is known to the next. After an interruption
    the others are left out. Raises MemplanError, one line.

    Args:
        subject: the model and the loop that trains it.
        gpus: at least one, each with the bytes to use there.
        rank: machine of a rank, with its network, if ranks train together; each has the one GPU of `gpus`.
        batches: those to try, of each rank; None: search.
        solver, settings, time_limit: for each question; None: seconds by the graph's size.
        prices: per hour, by the preset's name, in any currency.
        report: a function that takes lines of progress.
    """
    loop, several = subject.loop, len(gpus) > 1
    if rank is not None and (several or loop.accumulate > 1 or loop.total is not None):
        raise InputError("ranks have one kind of GPU, and one micro-batch per update")
    if loop.total is not None:
        batches = loop.divisors()
    quick = QUICK_OF_RANKS if rank else QUICK_OF_SEVERAL if several else QUICK
    optimizer = None if subject.optimizer == "none" else subject.optimizer
    peers = None if rank is None else rank.links.peers
    # Schedules, and bytes of the loop without a plan, are shared by GPUs.
    known, spans = Known(), dict[tuple[int, object], tuple[object, Span]]()
    results = list[SizeResult]()
    for preset, room in sorted(gpus, key=lambda pair: pair[1].limit):
        loops = Loops(subject.estimates, preset, loop.steps, peers, spans)
        machine = rank or preset.machine
        ask = Question(solver, time_limit, settings or {}, machine, report, quick_share=quick)
        search = SizeSearch(
            loops=loops,
            ask=ask,
            room=room,
            optimizer=optimizer,
            known=known,
            brief=several,
            one_update=loop.total is not None,
        )
        found = search.run(batches)
        found.price = (prices or {}).get(preset.name)
        results.append(found)
        if found.interrupted:
            break
    return Sizes(subject, results, several)
