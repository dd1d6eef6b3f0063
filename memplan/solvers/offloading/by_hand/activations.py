"""The runs of an iteration with activations kept, or with a checkpoint around each layer."""

from __future__ import annotations

from collections.abc import Iterator

from ....graphs.graph import Graph
from ....planner.schedule.sequence import Run, in_default_mode, prune
from ...recomputation.checkpointing.layer_checkpoint import numbered, runs
from ...settings import setting

KEEP, CHECKPOINT = "keep", "checkpoint"


def activations_setting() -> str:
    """Declare the setting of what becomes of activations."""
    return setting(
        "auto",
        "kept, or a checkpoint around each layer; auto: what is faster",
        words=("auto", KEEP, CHECKPOINT),
    )


def runs_by_activations(graph: Graph, chosen: str) -> Iterator[tuple[str, list[Run]]]:
    """Yield each treatment of activations that is to be tried, with its runs.

    chosen: the setting. Raises NotAcceptedError if checkpoints are chosen and no layer has a number.
    """
    if chosen != CHECKPOINT:
        yield KEEP, in_default_mode(range(len(graph.operations)))
    if chosen == CHECKPOINT or (chosen == "auto" and any(map(numbered, graph.operations.layer))):
        yield CHECKPOINT, prune(graph, list(runs(graph)))
