"""MemFerry: some weights come to the device, others are read in host memory.

Minimises the seconds of the forward and the backward part (estimate.py) over one treatment for each of L
layers, within the room that the budget leaves for weights; then the simulated period. Assumed: weights and
optimizer states live in host memory, the CPU updates them and gradients go there; reads of host memory do not
slow the link. To read weights there takes modes for it (`reads_host`, docs/formats.md); without such modes
every layer is fetched.

Reference: Z. Yao et al., MemFerry: a fast and memory efficient offload training framework with hybrid GPU
computation, INFOCOM 2025.

| paper                     | here                                                       |
|---------------------------|------------------------------------------------------------|
| GFGB, DHA, DFGB           | estimate.py: `Treatment`                                   |
| T_trans, T_FP, T^H_FP, …  | layers.py, the table                                       |
| P, T_all, T_res, tag      | greedy.py, the table                                       |
| T_GBP - T_CBP, D          | gradients.py, the table                                    |
| S_req, the reserve factor | `reserve`: share of the gradients' bytes that may stay     |
| GO-MemFerry               | `gradients = direct`                                       |

    layers.py     begin here: layers and what each treatment costs
    estimate.py   the model: what a choice of treatments costs
    greedy.py     `choice = published`: Algorithm 1 with backtracking, corrected; greedy DFGB; O(L²)
    exact.py      `choice = exact`, the default: the best of all choices; O(L S²) for S states per layer
    gradients.py  GO-MemFerry: which gradients operations write to the host, which are kept; O(n · units)
    plan.py       one way to run an iteration, and its schedule
    search.py     the options; choices validated by the simulator

With `exact` the simulator takes the fastest of it, the published choice and the same one for all layers, and
changes single layers while that helps (`flips` simulations): gradients and updates, which the model leaves
out, share the machine. Gradients leave right after what produces them, or never come to the device if
operations have modes that write them to the host (`writes_host`); by default both are tried. Activations
stay (keep), or only each layer's output does and the layer is recomputed (checkpoint, for chains); auto tries
both.
"""

from __future__ import annotations

from ....planner.bounds import time_bound
from ...problem import Options, Problem, SolverResult
from .search import NAME, MemFerrySearch, Settings

__all__ = ["NAME", "Settings", "solve"]


def solve(problem: Problem, options: Options) -> SolverResult:
    settings = options.chosen(Settings)
    search = MemFerrySearch(problem, settings, options)
    with search.clock.until_interrupted():
        for plan in search.plans:
            search.search(plan)
        search.flip()
    if search.best is None:
        search.clock.raise_if_interrupted()
        raise search.refused()
    options.report(search.best.line())
    return SolverResult.of_heuristic(search.best.schedule, search.clock, time_bound(problem.graph))
