"""Whether a traced iteration is plain PyTorch's: for the graph's `source`, and as a line for the user."""

from __future__ import annotations

from math import isfinite
from typing import Any

import torch

from ..graphs.graph import Graph
from ..planner.plain import plain_schedule
from .eager import Comparison, compare
from .execute import PlannedStep
from .iteration import Iteration
from .program import Program


def verdict(iteration: Iteration, program: Program, graph: Graph) -> dict[str, Any]:
    """One traced iteration beside one of plain PyTorch's, for the graph's `source`.

    equal: bitwise, in loss, gradients and buffers, and where weights are updated in these and the optimizer's
    states after several iterations; null where memory did not suffice to compare.
    """
    step = PlannedStep(iteration, program, plain_schedule(graph))
    comparison = compare_if_it_fits(iteration, step)
    if comparison is None:
        return {"equal": None}
    if comparison.equal:
        return {"equal": True, "tensors": comparison.compared}
    largest = comparison.largest if isfinite(comparison.largest) else None
    return {"equal": False, "first": comparison.first, "largest": largest}


def compare_if_it_fits(iteration: Iteration, step: PlannedStep) -> Comparison | None:
    """None where there is not memory enough for both."""
    try:
        return compare(iteration, step)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return None


def warning(graph: Graph) -> str | None:
    """The line that a profile's user must see; None where all is well."""
    eager = graph.source.get("eager", {})
    if eager.get("equal") is None:
        return "not compared with plain PyTorch: there is not memory enough for its iteration"
    if not eager["equal"]:
        by = "beyond measure" if eager["largest"] is None else f"by up to {eager['largest']:.3g}"
        return f"the traced iteration differs from plain PyTorch's: {eager['first']} {by}"
    if graph.source.get("compiling"):
        return "equal to plain PyTorch only under torch.compiler.is_compiling(), which the model asks for"
    return None


def is_out_of_memory(error: Exception) -> bool:
    """Whether torch or Python found no memory, on the CPU or on a GPU."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return "allocate memory" in str(error)
