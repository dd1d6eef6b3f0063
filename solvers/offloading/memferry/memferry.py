"""MemFerry: some weights come to the device, others are read where they lie in host memory.

Yao, Liang, Xu, Zhao, Wang, Li, "MemFerry: a fast and memory efficient offload training framework with hybrid
GPU computation" (INFOCOM 2025). Weights and optimizer states live in host memory and the CPU updates them; a
layer's weights are used in one of three ways (estimate.py), which takes modes that read weights in
host memory (graphs/transformations/direct_access.py); without such modes every layer is fetched. Gradients go
to the host.

`choice = published` is Algorithm 1 with backtracking, corrected, and a greedy choice of DFGB
(greedy.py). `exact`, the default, is the best of all ways by a program over states
(exact.py), within the room that the budget leaves for weights; the simulator takes the fastest of
it, the published choice and the plain ways, and turns single layers while that helps: gradients and updates,
which the model leaves out, share the machine. `reserve` is GO-MemFerry's factor: the share of the gradients'
bytes that may stay on the device (gradients.py); 0 by default, since a gradient that leaves costs
no computation here.

Activations stay (keep), or only each layer's output does and the layer runs again (checkpoint, for chains);
auto tries both.
"""

from __future__ import annotations

from ....planner.bounds import time_bound
from ...candidates import infeasible
from ...problem import Answer, Options, Problem, Status
from .search import NAME, Search
from .settings import Settings

__all__ = ["NAME", "Settings", "solve"]


def solve(problem: Problem, options: Options) -> Answer:
    settings: Settings = options.settings or Settings()
    search = Search(problem, settings, options)
    try:
        for plan in search.plans:
            search.search(plan)
        search.flip()
    except KeyboardInterrupt:
        search.interrupted = True
        if search.best is None:
            raise
    if search.best is None:
        raise infeasible(NAME, problem, search.least())
    options.report(search.best.line())
    status = Status.FEASIBLE if search.stopped or search.interrupted else Status.HEURISTIC
    return Answer(search.best.schedule, status, time_bound(problem.graph), search.interrupted)
