"""The training of a decoder language model as a graph, computed from its configuration alone.

    tokens ─embed─▶ x0 ─ block 1 … block L ─▶ x_L ─head─▶ logits ─loss─▶ backward of all ─▶ updates

Times are FLOP over the device's attained FLOP/s, or the bytes touched over its bandwidth if that is longer.
An update takes its gradient's bytes over the update rate of the processor that runs it (execution variant
`host`: the CPU). With weights of less than four bytes Adam keeps a master copy of four in addition to
momentum and variance. What is counted and what not: transformer_parts.py.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..graphs.errors import InputError
from ..graphs.graph import Graph, Phase
from ..graphs.machine import Machine
from .models import Transformer
from .training import Rates, Training
from .transformer_parts import BACKWARD_FLOPS, block_parts
from .transformer_writer import Writer

__all__ = ["Rates", "Training", "Transformer", "model_flops", "timed", "transformer"]


def transformer(
    model: Transformer, training: Training, rates: Rates, machine: Machine | None = None
) -> Graph:
    """Return the graph of one training iteration."""
    return Writer(model, training, rates).graph(machine)


def model_flops(model: Transformer, training: Training) -> float:
    """Return the FLOP of one iteration without recomputation, the unit of throughput of language models."""
    parts = block_parts(model, training.batch, training.sequence, keep_scores=False)
    # The embedding looks rows up, without a FLOP.
    head = 2.0 * training.tokens * model.vocabulary * model.hidden
    return (1 + BACKWARD_FLOPS) * (model.layers * sum(part.flops for part in parts) + head)


def timed(graph: Graph, seconds: float) -> Graph:
    """Scale all times but those of updates, so that a baseline iteration takes `seconds`.

    Raises InputError if the updates alone take longer.
    """
    o = graph.operations
    update = o.phase == Phase.UPDATE
    rest = seconds - float(o.time[update].sum())
    if rest <= 0:
        raise InputError(f"the updates of {graph.name} alone take longer than {seconds} s")
    # Operations alone: their execution variants take the same factor.
    factor = rest / float(o.time[~update].sum())
    modes = {
        index: ways if update[index] else tuple(replace(way, time=way.time * factor) for way in ways)
        for index, ways in o.modes.items()
    }
    return replace(graph, operations=replace(o, time=np.where(update, o.time, o.time * factor), modes=modes))
