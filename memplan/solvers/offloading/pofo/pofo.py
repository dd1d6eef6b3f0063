"""POFO: recomputation and activation offload together on a chain of blocks.

Minimises the seconds of an iteration within the device's budget: per block, what is kept, recomputed, or
offloaded. Weights, gradients and optimizer states stay on the device. The program's assumptions on memory
and links, and where it is a reading rather than the paper's recurrence, are in table.py; what the paper
claims of its answers is checked in benchmarks/results/.

Reference: O. Beaumont, L. Eyraud-Dubois, A. Shilova, Efficient combination of rematerialization and
offloading for training DNNs, NeurIPS 34, 2021, pp. 23844-23857.

| table.py     | in code                                                       |
|--------------|---------------------------------------------------------------|
| L, M         | `len(costs)`; `slots`, the memory besides what is resident     |
| x_i, x̄_i     | `rotor.input[i]`, `rotor.saved[i]`, slots                     |
| K, Q         | `Transition.kept`, `Transition.backlog`, slots                |
| β            | `rate`, bytes/s of the slower link, latencies included         |
| f            | `Input`: where a segment's input is counted                   |
| V_f(i, K, Q) | `values[i][f][K, Q]`, seconds                                 |
| C(i, j, m)   | `rotor.seconds(i, j)[m]`                                      |

    table.py      begin here: the program, on the costs of chains/costs.py and Rotor's table
    segments.py   what it chooses among
    search.py     its answers for all amounts of memory, simulated

From decisions to a schedule. The program's memory is continuous, a tensor's is not, and it rounds sizes up:
so it goes on beyond the budget, and of its answers for all amounts of memory the largest that fits is found
by bisection. That and its neighbours are simulated, Rotor's own answer too, and the fastest is taken. An
offloaded tensor leaves between the two uses that lie farthest apart. If none fits, three that save
memory first are tried. Complexity: the table's (table.py), and `tries` residencies that are simulated.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....graphs.graph import Kind
from ...candidates import baseline_candidate, fitting_baseline
from ...chains.problem import chain_problem
from ...links import linked_machine
from ...problem import Options, Problem, SolverResult
from ...settings import SolverSettings, setting
from ..layers.refusals import refused
from .search import PofoSearch

NAME = "pofo"


@dataclass(frozen=True)
class Settings(SolverSettings):
    """Settings of pofo."""

    slots: int = setting(100, "parts into which the memory is divided", least=1)
    blocks: int = setting(60, "a chain with more blocks is cut less finely", least=2)
    tries: int = setting(12, "uses of that memory that are simulated at most", least=1)


def solve(problem: Problem, options: Options) -> SolverResult:
    settings = options.chosen(Settings)
    clock = options.clock()
    linked = linked_machine(NAME, problem, "activations", (Kind.ACTIVATION,))
    chained = chain_problem(NAME, problem, settings.blocks)
    if baseline_candidate(problem.graph).peak <= chained.limit:
        return fitting_baseline(problem)
    search = PofoSearch(problem, chained, linked, settings.tries, clock)
    with clock.until_interrupted():
        search.run(settings.slots, options)
    if search.best is None:
        search.try_memory_saving()
    if search.best is None:
        clock.raise_if_interrupted()
        raise refused(NAME, problem, linked.machine, search.memory_saving())
    return SolverResult.of_heuristic(search.best[0], clock, search.bound)
