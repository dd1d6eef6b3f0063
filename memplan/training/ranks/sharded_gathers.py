"""Sharded training whose shares may lie on the host, and be updated there.

Gathers and scatters are operations of the plan, as a module's own collectives are (collectives.py): a share
is a tensor like any other, which is offloaded between its gathers, with its states, or updated on
the CPU. So a budget may be less than a rank's shares.
"""

from __future__ import annotations

from ...graphs.machine import Machine
from ...model.iteration import Iteration
from ..options import Options
from ..plans.buckets import Buckets
from ..plans.plan import Planner
from ..plans.training_log import TrainingLog
from ..step.executor import Executor
from .collectives import CollectiveFrontEnd


def gathering_executor(
    iteration: Iteration, options: Options, buckets: Buckets | None, machine: Machine, budget: int
) -> Executor:
    """Plan the iterations of a step that gathers its weights by operations. All ranks call it together.

    iteration: of a module whose weights are spread already or, if its shards are not, are spread here.
    machine: this rank's part of its node. budget: bytes.
    Raises MemplanError, on all ranks.
    """
    shards, optimizer = iteration.shards, options.optimizer
    assert shards is not None
    assert optimizer is not None
    undo = None if shards.are_spread else shards.spread(iteration.module, optimizer)
    shards.let_go()
    front_end = CollectiveFrontEnd(machine)
    planner = Planner(options, TrainingLog(options.progress), front_end, bytes=budget)
    iteration = iteration._replace(peers=shards.ranks)
    try:
        return Executor(iteration, planner, buckets)
    except BaseException:
        if undo is not None:
            undo()
        raise
