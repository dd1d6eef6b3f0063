"""Sharded training whose shares may lie on the host, and be updated there.

Gathers and scatters are operations of the plan, as a module's own collectives are (collectives.py): a share
is a tensor like any other, which is offloaded between its gathers, with its states, or updated on
the CPU. So a budget may be less than a rank's shares.
"""

from __future__ import annotations

from ...graphs.machine import Machine
from ...model.iteration import Iteration
from ..checkpoints.holding import Holding
from ..checkpoints.sharded_holding import ShardedHolding
from ..options import Options
from ..plans.buckets import Buckets
from ..plans.report import TrainingLog
from .collectives import CollectiveAccumulatingStep, CollectivePlanner, CollectiveStep


class GatheringStep(CollectiveStep):
    """A training step that gathers its weights by operations."""

    def _holding(self) -> Holding:
        """Return the shares that this rank holds of the tensors of a checkpoint."""
        shards = self._iteration.shards
        assert shards is not None
        return ShardedHolding(shards)


class GatheringAccumulatingStep(GatheringStep, CollectiveAccumulatingStep):
    """A GatheringStep of which several batches make one update."""


def gathering_step(
    iteration: Iteration, options: Options, buckets: Buckets | None, machine: Machine, budget: int
) -> GatheringStep:
    """Plan a step that gathers its weights by operations. All ranks call it together.

    iteration: of a module whose weights are spread already or, if its shards are not, are spread here.
    machine: this rank's part of its node. budget: bytes.
    Raises MemplanError, on all ranks.
    """
    shards, optimizer = iteration.shards, options.optimizer
    assert shards is not None
    assert optimizer is not None
    undo = None if shards.are_spread else shards.spread(iteration.module, optimizer)
    shards.let_go()
    planner = CollectivePlanner(options, TrainingLog(options.progress))
    planner.machine, planner.bytes = machine, budget
    iteration = iteration._replace(peers=shards.ranks)
    kind = GatheringStep if iteration.accumulate == 1 else GatheringAccumulatingStep
    try:
        return kind(iteration, planner, buckets)
    except BaseException:
        if undo is not None:
            undo()
        raise
