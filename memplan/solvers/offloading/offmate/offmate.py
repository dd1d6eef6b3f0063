"""Offmate: weights, gradients, optimizer states, activations on device, host or disk; updates on the CPU.

Minimises the time of an iteration within the device's budget and the memory of host and disk. A program over
the steps of an iteration (O-ILP: ../o_ilp, with its assumptions and the thesis' symbols) decides which
fractions of what are where; whole tensors follow, then copies operation by operation, which the simulator
validates. Takes any training graph: its blocks are those of its chain.

References: X. Zhao, Optimizing memory usage when training deep neural networks, thesis, 2024, tel-04890912,
chapter 4; X. Zhao, L. Eyraud-Dubois, T. Le Hellard, J. Gusak, O. Beaumont, Offmate: full fine-tuning of LLMs
on a single GPU by re-materialization and offloading, 2024.

| thesis | here, in the order to read                                                          |
|--------|-------------------------------------------------------------------------------------|
| 4.3.3  | graph.py: steps, groups of weights, from the graph                                  |
| 4.4    | options.py: options of a block                                                      |
| 4.5    | o_ilp/model.py: the program, with what had to be corrected                          |
| 4.5.3  | `batch`: the best batch, reported                                                   |
| 4.6    | o_ilp/round.py, tensors.py; offload_intervals.py: of whole tensors                 |
| 4.6    | schedule.py: runs, the order of CPU updates, intervals; planner/residency places    |
| –      | search.py: the loop around all this; least.py, its last resort                      |

Beyond the thesis: more options a block; activations leave and return over any steps, by parts; copies start
inside blocks; a disk. The program's time is of steps with a barrier after each: without barriers a schedule
can be faster than the program says, with whole tensors slower. Both are reported. Nothing is claimed but the
time of all operations as a bound.

Complexity: up to eight times, each with more or less of the device in reserve, programs of O(blocks²) rows
and some simulations; programs with integers are exponential at worst, stopped after `seconds`.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic

from ....graphs.structure.chain import Chain, chain_of
from ....planner.bounds import time_bound
from ....planner.residency.prefetch_placement import place_prefetches
from ....planner.simulator.clock import lanes_of
from ...candidates import device_limit, require_backward
from ...chains.problem import coarser
from ...links import LinkedMachine, linked_machine
from ...milp.result import Settings as MilpSettings
from ...problem import Options, Problem, SolverResult, Status
from ...settings import gap_setting, setting
from ..layers.refusals import refused
from ..o_ilp.iteration import Iteration, Limits
from ..o_ilp.model import OIlpProgram
from .graph import iteration_of
from .least import min_memory_residencies
from .options import Asked
from .search import COARSE_RESERVES, OffmateResult, OffmateSearch, relaxed

NAME = "offmate"

COARSE = (20,)
"""Numbers of blocks for which a program is solved in little time."""

LARGEST_BATCH = 16
"""Limit of the batch factor, which is between 1 / this and this."""


@dataclass(frozen=True)
class Settings(MilpSettings):
    """Settings of offmate, after those of its MILP backend."""

    gap: float = gap_setting(1e-3, "relative gap at which an integer program may stop")
    options: int = setting(6, "schedules per block; 3 in the thesis", least=1)
    programs: int = setting(0, "further schedules per kind of block, from integer programs", least=0)
    blocks: int = setting(40, "a chain with more blocks is cut less finely", least=1)
    management: float = setting(
        0.0, "seconds per step in which the CPU can't update (H; 0.05 in the thesis)", least=0
    )
    batch: bool = setting(False, "also find the best batch size")
    disk: bool = setting(True, "use the machine's disk")
    seconds: float = setting(5.0, "seconds that one integer program may take at most", least=0)


def solve(problem: Problem, options: Options) -> SolverResult:
    settings = options.chosen(Settings)
    graph, linked = problem.graph, linked_machine(NAME, problem, "weights, states and activations")
    require_backward(NAME, graph)
    clock = options.clock()

    def remaining() -> float:
        return 0.0 if clock.expired else clock.left

    bound = time_bound(graph)
    search = OffmateSearch(
        graph=graph,
        machine=linked.machine,
        limits=_limits(problem, linked, settings),
        settings=settings,
        integer_seconds=settings.seconds,
        remaining=remaining,
        report=options.report,
    )
    search.try_baseline()
    # The bound is the sum of all operations: no copy or recomputation could make it faster.
    if search.best is not None and search.best.figures.time <= bound:
        return SolverResult(search.best.schedule, Status.OPTIMAL, bound)
    finest = chain_of(graph)
    # Without repeats: a short chain has one number, the finest.
    counts = dict.fromkeys(min(c, settings.blocks, len(finest.blocks)) for c in (*COARSE, settings.blocks))
    *coarse, fine = (coarser(graph, finest, count) for count in counts)
    copy_seconds = sum(1.0 / rate for rate in linked.rates(graph))

    def iteration(chain: Chain, programs: int) -> Iteration:
        until = monotonic() + remaining() / 4  # options get a quarter of what is left
        asked = Asked(settings.options, programs, settings.seconds, settings)
        return iteration_of(graph, chain, copy_seconds, asked, lambda: monotonic() < until)

    with clock.until_interrupted():
        for chain in coarse:
            search.run(iteration(chain, 0), COARSE_RESERVES)
        last = iteration(fine, settings.programs)
        search.run(last)
        if settings.batch:
            options.report(_batch_line(last, search.limits, remaining()))
    best = search.best or _least(problem, linked, search.limits, iteration(fine, 0))
    relaxation = "unknown" if search.relaxation is None else f"{search.relaxation:.6g} s"
    options.report(
        f"{relaxation} by the program with fractions, {best.planned:.6g} s with options and updates chosen, "
        f"{best.figures.time:.6g} s simulated"
    )
    return SolverResult.of_heuristic(best.schedule, clock, bound)


def _batch_line(iteration: Iteration, limits: Limits, seconds: float) -> str:
    """Return a line about the batch with the highest throughput (4.5.3), by the program with fractions."""
    program = OIlpProgram(iteration, limits, smallest_share=1.0 / LARGEST_BATCH)
    written = program.program()
    x = relaxed(written, seconds)
    if x is None:
        return "batch: no size found"
    factor = 1.0 / program.share.value(x)
    each = written.objective(x) * program.second
    return f"batch: {factor:.3g} times this one's size is best, {each:.6g} s for as much as this one's"


def _limits(problem: Problem, linked: LinkedMachine, settings: Settings) -> Limits:
    machine, links = linked.machine, linked.machine.links
    read, write = (links.disk_read, links.disk_write) if settings.disk else (None, None)
    disk = read and write and (linked.rate(problem.graph, read), linked.rate(problem.graph, write))
    return Limits(
        device_limit(problem),
        machine.crossing_capacity,
        *linked.rates(problem.graph),
        settings.management,
        machine.disk_capacity if disk else 0,
        *(disk or (None, None)),
        lanes=lanes_of(machine.hierarchy),
    )


def _least(problem: Problem, linked: LinkedMachine, limits: Limits, iteration: Iteration) -> OffmateResult:
    """Return the schedule of least memory, the last resort.

    Raises InfeasibleError; NotAcceptedError if the host is too small.
    """
    residencies = list(min_memory_residencies(problem.graph, iteration, disk=limits.has_disk))
    for residency in residencies:
        found = place_prefetches(problem.graph, linked.machine, limits.device_bytes, residency)
        if found is not None:
            # No program made it: its planned time is the simulated one.
            return OffmateResult(*found, found[1].time, 0.0)
    raise refused(NAME, problem, linked.machine, residencies)
