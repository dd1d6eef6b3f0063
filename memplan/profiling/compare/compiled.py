"""An iteration with compiled operations: the plan's bits are those without a plan, and as exact as
eager's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...graphs.errors import DifferenceError
from ...graphs.graph import Graph
from ...model.iteration import Iteration
from ...planner.baseline import baseline_schedule
from ...program.graph import Cost, graph_of
from ...program.program import Program
from ...steps.execute import PlannedStep
from ...updates.parts import adding
from ..fusion.choice import as_in
from ..fusion.fused import Kernels
from ..splitting.split import EXACT, SPLIT, split_as_in
from .accuracy import accuracy
from .comparison import Comparison, between, compare, compared_iterations


class Compiled(NamedTuple):
    """A program with compiled operations and what it was made of.

    uncompiled: the program before it was compiled.
    kernels: of the compiled one.
    exact: whether these have eager's bits, so that the iteration is compared as one without them.
    """

    uncompiled: Program
    kernels: Kernels
    exact: bool = False


def compiled_as_in(graph: Graph, program: Program) -> tuple[Program, Compiled | None]:
    """Return the program with what the graph has instead of some operations: compiled ones, or pieces.

    Raises InputError if nothing can be compiled here, MismatchError if they are not the model's.
    """
    pieces: Any = graph.source.get(SPLIT)
    exact = graph.source.get(EXACT) is True
    made = as_in(graph, program) if pieces is None else split_as_in(pieces, program, exact=exact)
    return made.program, Compiled(program, made.kernels, exact) if made.kernels else None


def compare_compiled(
    iteration: Iteration,
    step: PlannedStep,
    compiled: Compiled,
    iterations: Sequence[PlannedStep] | None = None,
) -> Comparison:
    """Compare the plan with the same kernels without a plan, bit by bit, and these with eager's, see
    `accuracy`.

    iterations: see `compare`.
    """
    iterations = compared_iterations(step) if iterations is None else iterations
    found = between(iteration, _in_traced_order(iteration, step.program, step, iterations), iterations)
    if not found.equal:
        return found
    try:
        exact = accuracy(iteration, compiled.uncompiled, step.program, compiled.kernels)
    except DifferenceError as error:
        # nan: there is no size to report.
        return found._replace(first=str(error), largest=float("nan"))
    return found._replace(compiled=str(exact))


def compare_traced(
    iteration: Iteration,
    step: PlannedStep,
    compiled: Compiled,
    iterations: Sequence[PlannedStep] | None = None,
) -> Comparison:
    """Compare the traced program, uncompiled and in traced order, with eager PyTorch, bit by bit.

    iterations: iterations of the compiled step.
    """
    iterations = compared_iterations(step) if iterations is None else iterations
    uncompiled = _in_traced_order(iteration, compiled.uncompiled, step, iterations)
    return compare(iteration, uncompiled[iterations.index(step)], uncompiled)


def _in_traced_order(
    iteration: Iteration, program: Program, step: PlannedStep, iterations: Sequence[PlannedStep]
) -> list[PlannedStep]:
    """Return the iterations with this program, kept whole and in traced order.

    step: the one that updates; the others are of batches that do not.
    """

    def made(program: Program) -> PlannedStep:
        # Costs of 0: the baseline schedule does not depend on times.
        graph = graph_of(program, [Cost(0.0)] * len(program.operations))
        return type(step)(iteration, program, baseline_schedule(graph))

    by_step = {each: made(program if each is step else adding(program).program) for each in {*iterations}}
    return [by_step[each] for each in iterations]
