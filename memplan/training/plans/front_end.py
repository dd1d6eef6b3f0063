"""What is planned, of one process: the iteration traced to a program, measured to a graph.

Ranks that run one plan have front ends of their own (training/ranks): they trace together, rank 0 measures
and solves, and sends the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from ...devices.calls.collectives import groups_of
from ...devices.measuring.measure import Measurement
from ...graphs.errors import InputError
from ...graphs.graph import Graph
from ...graphs.machine import Machine
from ...model.iteration import Iteration
from ...profiling.profile.profile import graph_from, measure_program
from ...profiling.profile.rounds import busy_line, uncertainty
from ...program.program import Program
from ...torch_support.in_place_collectives import IN_DDP, CollectiveError
from ...torch_support.torch_collectives import ranks_of_group
from ...tracing.output_layouts import residents
from ...tracing.trace import trace
from ...updates.averages import with_talks
from .plan_cache import Plan
from .training_log import TrainingLog


class CollectivesFoundError(InputError):
    """Error: the module communicates with other ranks, so that all must plan together.

    groups: the ranks of each of its groups.
    """

    def __init__(self, line: str, groups: Sequence[list[int]] = ()) -> None:
        super().__init__(line)
        self.groups = groups


class Measured(NamedTuple):
    """A program with the times and bytes of its operations, and the graph of them."""

    program: Program
    measurements: list[Measurement]
    graph: Graph


class FrontEnd:
    """Trace and measurements of an iteration of one process, or of one of several that plan for themselves.

    explains: whether the error of a budget that is too small says what else would do.
    """

    explains = True

    def planning(self, _iteration: Iteration) -> AbstractContextManager[None]:
        """Return a context for trace and measurements."""
        return nullcontext()

    def traced(self, iteration: Iteration) -> Program:
        """Trace the iteration. Raises MemplanError."""
        program = self._traced_alone(iteration)
        if groups := groups_of(program):  # before anything runs: the others would have to run it too
            raise CollectivesFoundError(
                f"{next(iter(groups.values()))} communicates with other ranks, which must all run the "
                "same plan: give module and optimizer to memplan.optimize, on all of them",
                [ranks_of_group(name) for name in groups],
            )
        return program

    def _traced_alone(self, iteration: Iteration) -> Program:
        """Trace an iteration of one process. Raises InputError if others would have to communicate in it."""
        in_ddp = iteration.processes is not None
        try:
            program = trace(iteration)
        except CollectiveError as error:
            if in_ddp:
                raise InputError(f"{error.called}, and {IN_DDP}") from None
            raise
        if in_ddp and (groups := groups_of(program)):
            raise InputError(f"the module calls {next(iter(groups.values()))}, and {IN_DDP}")
        return program

    def asked(self, _iteration: Iteration) -> tuple[Any, ...]:
        """Return what plans depend on besides options and this process's program, once it is traced."""
        return ()

    def meet(self, iteration: Iteration, program: Program, book: TrainingLog) -> None:
        """Measure what takes all ranks, before one of them measures the rest."""

    def measured(
        self, iteration: Iteration, program: Program, book: TrainingLog, limit_seconds: float | None
    ) -> Measured:
        """Measure the program, on the rank that plans. Raises MemplanError.

        limit_seconds: seconds of measuring after the first round; None for as many as it takes.
        """
        with book.phase("measure"):
            tensors = residents(program, iteration)
            found = measure_program(program, tensors, book.measured, ran=True, limit_seconds=limit_seconds)
        if line := busy_line(uncertainty(found)):
            book.remark("measure", line)
        if iteration.processes is not None:
            found = with_talks(found, program, iteration.processes)
        return Measured(program, found, graph_from(program, found))

    def by_first(self, _iteration: Iteration, _program: Program, make: Callable[[], Plan]) -> Plan:
        """Return the plan that the rank that plans makes. Raises MemplanError."""
        return make()

    def place(self, iteration: Iteration) -> None:
        """Prepare the module for the plans of its iterations."""

    def check_room(self, iteration: Iteration, plan: Plan, machine: Machine | None, left: int) -> None:
        """Raise ShortageError if those that run the plan have no room for it together.

        left: bytes of host memory of each that another plan is about to release.
        """

    def local(self, _iteration: Iteration, program: Program) -> Program:
        """Return the program that this process runs of the one that is planned."""
        return program
