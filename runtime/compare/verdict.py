"""Whether a traced iteration is plain PyTorch's: for the graph's `source`, and as a line for the user."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ...graphs.errors import DifferenceError
from ...graphs.graph import Graph
from ...planner.plain import baseline, plain_schedule
from ..device.host_room import available_bytes
from ..model.iteration import Iteration
from ..program.program import Program
from ..refusals import TraceError
from ..run.execute import PlannedStep
from ..run.inputs import UsedValuesError
from .comparison import Comparison, compare
from .compiled import Compiled, compare_compiled, compare_traced
from .peaks import resident_bytes


def verdict(iteration: Iteration, program: Program, graph: Graph) -> dict[str, Any]:
    """Iterations of the trace beside those of plain PyTorch, for the graph's `source`.

    equal: in loss, gradients and buffers, and where weights are updated in these and the optimizer's states;
    bitwise, or, where plain PyTorch differs from itself, within its `spread`. null where memory did not
    suffice to compare. compiling, plain: see `Comparison`; there only where true. peak, seconds: what an
    iteration of eager takes.
    """
    step = PlannedStep(iteration, program, plain_schedule(graph))
    comparison = compared(iteration, step, graph)
    return as_source(comparison)


def as_source(comparison: Comparison | None) -> dict[str, Any]:
    """The verdict as a graph's `source` has it."""
    if comparison is None:
        return {"equal": None}
    found: dict[str, Any] = {"equal": True, "tensors": comparison.compared}
    if comparison.spread:
        found["spread"] = comparison.spread
    for word in ("compiling", "plain"):
        if getattr(comparison, word):
            found[word] = True
    if comparison.eager is not None:
        found |= {"peak": comparison.eager.peak_bytes, "seconds": comparison.eager.seconds}
    return found


def compared(
    iteration: Iteration,
    step: PlannedStep,
    graph: Graph,
    turns: Sequence[PlannedStep] | None = None,
    compiled: Compiled | None = None,
) -> Comparison | None:
    """None where there is not memory enough. turns: see `compare`. compiled: where the step has compiled
    operations; what they were made of is compared with eager, they with that. Raises DifferenceError where
    the two are not equal."""
    if step.program.device.type == "cpu" and _host_lacks(baseline(graph).peak - resident_bytes(step.program)):
        return None
    comparison = _if_it_fits(lambda: _of_trace(iteration, step, turns, compiled))
    if comparison is not None and not comparison.equal:
        raise DifferenceError(f"the traced iteration is not the model's: {comparison.difference}")
    if comparison is None or compiled is None:
        return comparison
    exact = compare_if_it_fits(iteration, step, turns, compiled)
    if exact is not None and not exact.equal:
        raise DifferenceError(f"the compiled iteration is not the model's: {exact.first}")
    return exact and comparison._replace(compiled=exact.compiled)


def _of_trace(
    iteration: Iteration,
    step: PlannedStep,
    turns: Sequence[PlannedStep] | None,
    compiled: Compiled | None,
) -> Comparison:
    if compiled is not None:
        return compare_traced(iteration, step, compiled, turns)
    return compare(iteration, step, turns)


def compare_if_it_fits(
    iteration: Iteration,
    step: PlannedStep,
    turns: Sequence[PlannedStep] | None = None,
    compiled: Compiled | None = None,
) -> Comparison | None:
    """None where there is not memory enough for both. compiled: where the step has compiled operations."""
    if compiled is not None:
        return _if_it_fits(lambda: compare_compiled(iteration, step, compiled, turns))
    return _if_it_fits(lambda: compare(iteration, step, turns))


def _if_it_fits(comparing: Callable[[], Comparison]) -> Comparison | None:
    try:
        return comparing()
    except UsedValuesError as error:  # on one batch: the iterations change what decides
        raise TraceError(
            f"{error}, since the iteration itself changes them. If they settle in the first iteration, as in "
            "data-dependent initialisation (ActNorm), run the model once before it is planned; a count or "
            "a pointer must stay a tensor (index_copy, torch.where), or be kept by the training loop"
        ) from error
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return None


def warning(eager: Mapping[str, Any]) -> str | None:
    """The line that the user of a verdict must see; None where all is well."""
    if eager.get("equal") is None:
        return NOT_COMPARED
    if eager.get("compiling"):
        return "equal to plain PyTorch only under torch.compiler.is_compiling(), which the model asks for"
    if eager.get("plain"):
        return "equal to plain PyTorch only without the model's own checkpoints, which change its results"
    if eager.get("spread"):
        return (
            "equal to plain PyTorch within what that differs from itself, run again: "
            f"up to {eager['spread']:.3g}"
        )
    return None


NOT_COMPARED = "not compared with plain PyTorch: there is not memory enough for its iteration"


def _host_lacks(size: int) -> bool:
    """A process that takes more than there is would be ended, without an exception."""
    there = available_bytes()
    return there is not None and size > there


def is_out_of_memory(error: Exception) -> bool:
    """Whether torch or Python found no memory, on the CPU or on a GPU."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return "allocate memory" in str(error)
