"""LoHan: states on the disk, updates on the CPU alongside backward, and as many activations swapped as pay.

Minimises T_iter (costs.py) over A_G2M, how many activations are swapped, the rest being recomputed; then the
simulated period, within the device's budget. Assumed: a chain of layers whose updates all run on the CPU.
Weights come layer by layer from the disk (the host, if there is none), in forward and once more in
backward;
a gradient goes to the host once it is complete, where its update runs at once: reading states from the disk,
updating and writing back go on side by side for different weights (section IV-C).

Reference: C. Liao et al., LoHan: low-cost high-performance framework to fine-tune 100B model on a consumer
GPU, 2024, arXiv:2403.06504.

| paper                   | here                                              |
|-------------------------|---------------------------------------------------|
| FLOP, A_G2M, P, MEM, BW | costs.py, the table                               |
| T_iter                  | `Traffic.seconds`; `Prefix.seconds` of a prefix   |
| OB                      | `Swap.benefit`, seconds saved for each byte       |
| A_interBlock            | `SwapOrder.always`                                |

    costs.py     begin here: equations 1 to 5, corrected
    swap.py      Algorithm 1: the order of what is swapped, corrected; O(n log n) for n operations
    amounts.py   amounts around the estimate's, as schedules that are simulated; what is kept after all

From decisions to a schedule. The paper says how much is swapped, not what goes to the disk: the activations
of the first layers, with the longest offload intervals, go there once the host is full. When updates and
fetches run is worked out by planner/residency/prefetch_placement.py. The estimate assumes that everything
overlaps; so other amounts around it are simulated too (`amounts`), and the fastest schedule is the answer.
If nothing need move, nothing moves; of what would, some is kept on the device if that has room (in the
paper: keep=0).

Its variants (V-D, V-E): `updates=late` is LoHan+ZeRO, whose first update waits for the last gradient; there
is no barrier between iterations, so updates overlap the next forward, which the estimate leaves out. The
naive one reads, updates and writes a layer's states before the next one's: that an update waits for a write
is nothing that schedules can ask for, so it is refused. `swap` forces an amount of activations, as in
figure 9b: the report has both the estimate's time for it and the simulated one. `activations=host` is
LoHan+CpuAct, figure 8; the estimate still has the disk take what the host has no room for.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....graphs.errors import InputError
from ....planner.residency.prefetch_placement import LOOK_AHEADS
from ...candidates import baseline_candidate, device_limit
from ...links import linked_machine
from ...problem import Options, Problem, SolverResult, Status
from ...settings import SolverSettings, setting
from ..layers.cpu_updates import STATES, check_updates_wait, layers_updated_on_cpu, states_memory
from ..layers.refusals import refused
from .amounts import Amounts
from .swap import SwapOrder

NAME = "lohan"


def _refuse_naive(updates: str) -> None:
    if updates == "naive":
        raise InputError(
            "updates=naive makes each update wait for the disk's writes of the one before, which no "
            "schedule can ask for: take active or late"
        )


@dataclass(frozen=True)
class Settings(SolverSettings):
    """Settings of lohan."""

    states: str = setting(
        "auto",
        "where model states lie; auto: on the disk, if there is one and they would take more than half of "
        "the host (the paper: always the disk)",
        words=STATES,
    )
    amounts: int = setting(8, "amounts of swapped activations that are simulated at most", least=1)
    keep: float = setting(
        0.7,
        "share of the budget within which what would be swapped is kept on the device (the paper: 0)",
        least=0,
        most=1,
    )
    updates: str = setting(
        "active", "active: alongside backward; late: after it", words=("active", "late"), check=_refuse_naive
    )
    swap: float | None = setting(
        None,
        "share of the bytes that can be swapped, for this amount alone; empty: the best",
        least=0,
        most=1,
    )
    activations: str = setting(
        "auto",
        "where swapped activations lie; auto: on the host, then on the disk",
        words=("auto", "host"),
    )


def solve(problem: Problem, options: Options) -> SolverResult:
    settings = options.chosen(Settings)
    clock = options.clock()
    machine = linked_machine(NAME, problem, "weights, gradients, optimizer states and activations").machine
    layers = layers_updated_on_cpu(NAME, problem)
    states = states_memory(NAME, machine, settings.states, layers)
    late = settings.updates == "late"
    if late:
        check_updates_wait(NAME, layers)
    baseline = baseline_candidate(problem.graph)
    if settings.swap is None and baseline.peak <= device_limit(problem):
        return SolverResult(baseline.schedule, Status.HEURISTIC)
    amounts = Amounts(
        problem,
        machine,
        SwapOrder(layers),
        states,
        keep=settings.keep,
        late=late,
        forced=settings.swap,
        on_host=settings.activations == "host",
    )
    options.report(amounts.estimate_text())
    with clock.until_interrupted():
        # The clock is looked at after a try, so that there is at least one answer.
        while len(amounts.tried) < settings.amounts and (count := amounts.next_count()) is not None:
            amounts.try_count(count)
            if clock.expired:
                break
        if amounts.best is not None and clock.goes_on():
            # More look-aheads for the best amount alone: each is a simulation.
            amounts.try_count(amounts.best[2], LOOK_AHEADS)
    if amounts.best is None:
        clock.raise_if_interrupted()
        residencies = (residency for count in amounts.tried for residency in amounts.residencies(count))
        raise refused(NAME, problem, machine, residencies)
    options.report(amounts.best_text())
    return SolverResult.of_heuristic(amounts.best[1], clock)
