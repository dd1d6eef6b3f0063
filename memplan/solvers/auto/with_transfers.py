"""The portfolio on a machine with links: joint from its own starts, and from other solvers' best.

    first schedule       as much stays as fits, the rest is offloaded: in a second, before any other
    joint                from its own starts, for as long as there is time
    policies             alongside it, the others' first: a few simulations each, for which they have the time
    the others           one after the other, for half of the time at most
    joint from others    from the fastest of theirs, or of the start that the caller has, if that is near the
                         best, in the time that is left
    joint, more          with other random numbers, one for each core beyond two

So the answer is never slower than any of theirs, nor than a policy that ends within the time limit: with one
core policies come before joint. In sharded training FSDP2's policies come first, before a time limit begins,
so that the answer is never slower than they are, tuned by hand; the others there are fsdp-prefetch and
sharded-search. All members end once the best is proven to be within the gap: the offloading bound for any
order is computed alongside the first members. Code that members need is compiled once on a machine, by other
processes, alongside the other members or before a time limit begins. With one core the members take turns,
and joint has half of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from math import inf
from threading import Event

from ...graphs.machine import Machine
from ...planner.bounds import minimum_memory
from ...planner.simulator.simulate import figures_of
from ..bounds.lower_bounds import prove
from ..candidates import device_limit
from ..clock import Clock
from ..offloading.joint import compiling, joint
from ..offloading.joint.first import first_schedule
from ..offloading.weight_offload import compiling as greedy_compiling
from ..problem import Bound, Options, Problem, SolverResult, Status
from ..recomputation.search import compiling as search_compiling
from ..registry.catalogue import entry, module_of
from ..settings import parse_settings
from ..workers.precompile import precompile
from . import members as portfolio
from .members import Awaited, Cancelled, Found, Member, Outcomes
from .smallest import refusal_of
from .stopping import default_seconds, ending
from .workers import SolverWorkers

POLICIES = (
    "paged-optimizer",
    "l2l",
    "zero-infinity",
    "zero-offload",
    "block-swap",
    "checkpoint-offload",
    "activation-offload",
    "greedy-star",
    "stronghold",
    "optimizer-offload",
)
"""Solvers that simulate a few schedules of a fixed form. They have no share: what is cut short has nothing.

On a graph of 8,700 operations they take from 0.1 to 16 s.
"""

OTHERS = {
    "lohan": 0.1,
    "offmate": 0.25,
    "offload-greedy": 0.1,
    "search": 0.1,
    "pofo": 0.05,
    "memferry": 0.02,
}
"""Other solvers than these, and the share of all time that each may take with two cores and more."""

FIRST = "first schedule"
"""The name of what is found before any member begins."""

SHARDED_FIRST = "fsdp-tuned"
"""The solver that comes first for graphs of sharded training, and has the time that it takes."""

SHARDED_OTHERS = {"fsdp-prefetch": 0.05, "sharded-search": 0.15}
"""Others for graphs of sharded training, and their shares of all time."""

CODES = {
    "joint": compiling.CODES,
    "offload-greedy": greedy_compiling.CODES,
    "search": search_compiling.CODES,
    "sharded-search": search_compiling.CODES,
}
"""Functions that members need compiled."""

_SECONDS = 100.0
"""Seconds of which the shares are taken without a time limit."""

_OTHERS_SHARE, _JOINT_SHARE = 0.5, 0.97
"""Shares of a time limit at which the others end, and joint ends, as all do once there is a schedule."""

_ALONE_SHARE, _ALONE_OTHERS_SHARE = 0.5, 0.8
"""Shares of a time limit with one core, at which joint ends, which is first, and then the others."""

_GRACE_SECONDS = 1.0
"""Seconds after its time limit at which one of the others is asked to end, once there is a schedule."""

_NEAR = 1.25
"""Factor on the best known time up to which joint goes on from the others' fastest; else it starts anew."""

_BOUND_SHARE = 0.1
"""Share of all time that bounds may take alongside the members."""

_PROCESSES = 500
"""Operations from which on members are processes: threads would wait for each other's Python."""


def solve(
    problem: Problem, options: Options, name: str, workers: int, moves: int, seed: int, gap: float
) -> SolverResult:
    """Run the portfolio for a machine with links, and return the fastest answer.

    name: the solver that its errors name.
    moves: of search.
    seed: of all members that draw random numbers.
    gap: to the bound for any schedule, at which all members end.

    Raises NotFoundError or InfeasibleError if no member finds a schedule.
    """
    baseline = joint.baseline_if_fastest(problem)
    if baseline is not None:
        return baseline
    if options.time_limit is None and gap:
        default = default_seconds(len(problem.graph.operations))
        options = replace(options, time_limit=default, by_default=True)
    stop, race, total, bounds = Event(), options.race, options.time_limit, list[Bound]()
    if total is not None:  # compiling is not to take from it
        precompile((*CODES["joint"], *CODES["offload-greedy"]), options.report, options.cancelled)

    def tell(bound: Bound) -> None:
        bounds.append(bound)
        race.proved(bound.seconds, bound.name)

    proving = partial(prove, problem, tell, _BOUND_SHARE * (_SECONDS if total is None else total))
    with ExitStack() as opened:
        run = partial(_run, problem, options)
        if len(problem.graph.operations) >= _PROCESSES and workers > 1:
            run = opened.enter_context(SolverWorkers(problem, race=race, by_default=options.by_default)).solve
        outcomes, clock = Outcomes(), options.clock()
        if options.by_default:
            race.clock = clock
        if problem.graph.tensors.spread:
            first = Member(SHARDED_FIRST, partial(run, SHARDED_FIRST, {}, inf))
        else:
            first = Member(FIRST, partial(first_schedule, problem))
        with suppress(portfolio.PortfolioError):  # one that fails costs its own answer alone
            portfolio.run(problem, [first], 1, stop, race=race, outcomes=outcomes)
        if not problem.graph.tensors.spread:
            options = replace(options, time_limit=clock.limit)
        if not outcomes.interrupted:
            known = [*_start(problem, options), *outcomes.answers]
            portfolio.run(
                problem,
                _lines(problem, options, found=known, run=run, workers=workers, moves=moves, seed=seed),
                workers,
                stop,
                race=race,
                gap=gap,
                prove=proving,
                clock=options.clock().part(_JOINT_SHARE),
                outcomes=outcomes,
            )
    if not outcomes.answers:
        raise refusal_of(name, problem, outcomes.refusals, outcomes.faults)
    cut_short = any(answer.status == Status.FEASIBLE for answer, _figures in outcomes.answers)
    status = Status.FEASIBLE if cut_short else Status.HEURISTIC
    fastest, proven = outcomes.fastest, race.enough(outcomes.seconds, gap)
    return replace(
        fastest,
        status=Status.WITHIN_GAP if proven else status,
        ending="" if proven else ending(race),
        interrupted=outcomes.interrupted,
        bounds=(*fastest.bounds, *bounds),
        notes=_notes(outcomes),
    )


Solve = Callable[[Cancelled], SolverResult]
Run = Callable[[str, Mapping[str, str], float, Cancelled], SolverResult]
"""Function that runs a solver by its name, with settings as text and seconds."""


def _lines(
    problem: Problem, options: Options, found: Sequence[Found], run: Run, workers: int, moves: int, seed: int
) -> list[Member]:
    """Return the portfolio's members, in the order in which they start.

    found: answers that are there already.
    run: runs any solver other than `joint` from others' answers.
    """
    clock, total, race = options.clock(), options.time_limit, options.race
    unit = (_SECONDS if total is None else total) * min(1.0, workers / 2)
    alone, known = workers == 1, Awaited(found)
    annealed = {"moves": str(moves), "seed": str(seed)}
    settings = {
        "offload-greedy": {"seed": str(seed)},
        "search": annealed,
        "sharded-search": annealed,
    }

    def left(share: float) -> float:
        """Return the seconds until this share of a time limit is over."""
        return inf if total is None else max(0.0, clock.left - (1.0 - share) * total)

    def own(number: int) -> Solve:
        def solve(cancelled: Cancelled) -> SolverResult:
            precompile(CODES["joint"], options.report, cancelled)
            seconds = left(_ALONE_SHARE if alone else _JOINT_SHARE)
            return run("joint", {"seed": str(seed + number)}, seconds, cancelled)

        return solve

    def policy(solver: str) -> Solve:
        return lambda cancelled: run(solver, {}, left(_JOINT_SHARE), cancelled)

    def other(solver: str, share: float) -> Solve:
        def solve(cancelled: Cancelled) -> SolverResult:
            precompile(CODES.get(solver, ()), options.report, cancelled)
            seconds = min(share * unit, left(_ALONE_OTHERS_SHARE if alone else _OTHERS_SHARE))
            clock = Clock(None if total is None else seconds + _GRACE_SECONDS)

            def late() -> bool:
                return cancelled() or (clock.over and race.best < inf)

            return run(solver, settings.get(solver, {}), seconds, late)

        return solve

    def from_others(cancelled: Cancelled) -> SolverResult:
        found = known.all(cancelled)
        if cancelled():  # another member has it
            raise KeyboardInterrupt
        if not found or found[0][1].time > _NEAR * race.best:
            return own(workers)(cancelled)
        precompile(CODES["joint"], options.report, cancelled)
        schedules = [(answer.schedule, figures.time) for answer, figures in found]
        chosen = joint.Settings(seed=seed)
        rest = replace(
            options, time_limit=left(_JOINT_SHARE), settings=chosen, cancelled=cancelled, start=None
        )
        return joint.improved(problem, rest, schedules)

    spread = problem.graph.tensors.spread
    lines = [known.line("joint", own(0)) if alone else Member("joint", own(0))]
    policies = [] if spread else [known.line(solver, policy(solver)) for solver in POLICIES]
    lines = [*policies, *lines] if alone else [*lines, *policies]
    others = SHARDED_OTHERS if spread else OTHERS
    for solver, share in others.items():
        if solver != "search" or minimum_memory(problem.graph, Machine()) <= device_limit(problem):
            lines.append(known.line(solver, other(solver, share)))
    lines.append(Member("joint from others", from_others))
    return lines + [Member("joint, more", own(number)) for number in range(1, workers - 1)]


def _start(problem: Problem, options: Options) -> list[Found]:
    """Return the start that the caller has, none without one."""
    if options.start is None:
        return []
    limit, machine = device_limit(problem), problem.machine
    figures = figures_of(problem.graph, options.start, budget=limit, machine=machine)
    return [(SolverResult(options.start, Status.HEURISTIC), figures)]


def _run(
    problem: Problem,
    options: Options,
    solver: str,
    settings: Mapping[str, str],
    seconds: float,
    cancelled: Cancelled,
) -> SolverResult:
    module = module_of(entry(solver))
    chosen = parse_settings(solver, module.Settings, settings)
    own = Options(seconds, chosen, cancelled=cancelled, race=options.race, by_default=options.by_default)
    return module.solve(problem, own)


def _notes(outcomes: Outcomes) -> tuple[str, ...]:
    return (*(note for answer, _figures in outcomes.answers for note in answer.notes), *outcomes.faults)
