"""The verdict whether a traced iteration equals eager PyTorch's: for the graph's `source`, and as a line
for the user.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...devices.device.host_capacity import available_bytes
from ...graphs.errors import DifferenceError
from ...graphs.graph import Graph
from ...model.iteration import Iteration
from ...planner.baseline import baseline, baseline_schedule
from ...program.program import Program
from ...steps.execute import PlannedStep
from ...steps.inputs import UsedValuesError
from ...torch_support.out_of_memory import is_out_of_memory
from ...torch_support.unsupported import TraceError
from .comparison import Comparison, compare
from .compiled import Compiled, compare_compiled, compare_traced
from .peaks import resident_bytes


def verdict(iteration: Iteration, program: Program, graph: Graph) -> dict[str, Any]:
    """Compare iterations of the trace with those of eager PyTorch, and return the verdict for the graph's
    `source`.

    Equal means: in loss, gradients and buffers, and if weights are updated in these and the optimizer's
    states; bitwise, or, if eager PyTorch differs from itself, within its spread. See `as_source`.
    """
    step = PlannedStep(iteration, program, baseline_schedule(graph))
    comparison = compared(iteration, step, graph)
    return as_source(comparison)


def as_source(comparison: Comparison | None) -> dict[str, Any]:
    """Return the verdict as a graph's `source` has it.

    equal: see `verdict`; None if memory did not suffice to compare.
    spread: largest difference of two iterations of eager PyTorch; only if they differ.
    compiling, apart, checkpoints_off: see `Comparison`; only if true.
    peak, seconds: cost of an iteration of eager PyTorch.
    """
    if comparison is None:
        return {"equal": None}
    found: dict[str, Any] = {"equal": True, "tensors": comparison.compared}
    if comparison.spread:
        found["spread"] = comparison.spread
    for key, holds in (("compiling", comparison.compiling), ("checkpoints_off", comparison.checkpoints_off)):
        if holds:
            found[key] = True
    if comparison.apart is not None:
        found["apart"] = comparison.apart
    if comparison.eager is not None:
        found |= {"peak": comparison.eager.peak_bytes, "seconds": comparison.eager.seconds}
    return found


def compared(
    iteration: Iteration,
    step: PlannedStep,
    graph: Graph,
    iterations: Sequence[PlannedStep] | None = None,
    compiled: Compiled | None = None,
) -> Comparison | None:
    """Compare an iteration with eager PyTorch's; None if there is not memory enough.

    iterations: see `compare`.
    compiled: if the step has compiled operations, what they were made of. That is compared with eager, and
        they with that.

    Raises DifferenceError if the two are not equal.
    """
    if not has_memory_for_eager(step.program, graph):
        return None
    compiled = None if compiled is None or compiled.exact else compiled
    comparison = _if_it_fits(lambda: _of_trace(iteration, step, iterations, compiled))
    if comparison is not None and not comparison.equal:
        raise DifferenceError(f"the traced iteration is not the model's: {comparison.difference}")
    if comparison is None or compiled is None:
        return comparison
    exact = compare_if_it_fits(iteration, step, iterations, compiled)
    if exact is not None and not exact.equal:
        raise DifferenceError(f"the iteration with kernels is not the model's: {exact.first}")
    return exact and comparison._replace(compiled=exact.compiled)


def _of_trace(
    iteration: Iteration,
    step: PlannedStep,
    iterations: Sequence[PlannedStep] | None,
    compiled: Compiled | None,
) -> Comparison:
    if compiled is not None:
        return compare_traced(iteration, step, compiled, iterations)
    return compare(iteration, step, iterations)


def compare_if_it_fits(
    iteration: Iteration,
    step: PlannedStep,
    iterations: Sequence[PlannedStep] | None = None,
    compiled: Compiled | None = None,
) -> Comparison | None:
    """Compare a plan with eager PyTorch; None if there is not memory enough for both.

    compiled: if the step has compiled operations, what they were made of.
    """
    if compiled is not None and not compiled.exact:
        return _if_it_fits(lambda: compare_compiled(iteration, step, compiled, iterations))
    return _if_it_fits(lambda: compare(iteration, step, iterations))


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
    """Return the line that the user of a verdict must see; None if all is well."""
    if eager.get("equal") is None:
        return NOT_COMPARED
    if eager.get("compiling"):
        apart = f" ({eager['apart']})" if "apart" in eager else ""
        return (
            "the model computes something else under torch.compile, and only that can be planned: results "
            f"are those, bit for bit, and differ from eager PyTorch's{apart}"
        )
    if eager.get("checkpoints_off") or eager.get("plain"):  # "plain" in files of older versions
        return "equal to eager PyTorch only without the model's own checkpoints, which change its results"
    if eager.get("spread"):
        return (
            "equal to eager PyTorch within what that differs from itself from run to run: "
            f"up to {eager['spread']:.3g}"
        )
    return None


NOT_COMPARED = "not compared with eager PyTorch: there is not memory enough for its iteration"


def has_memory_for_eager(program: Program, graph: Graph) -> bool:
    """Tell whether the host has memory available for an iteration of eager PyTorch.

    A process that takes more than there is would be ended, without an exception. A GPU says so itself.
    """
    if program.device.type != "cpu" or (there := available_bytes()) is None:
        return True
    # Eager keeps what the baseline keeps; what is resident is in memory already.
    return baseline(graph).peak - resident_bytes(program) <= there
