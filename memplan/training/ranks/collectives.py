"""Training of modules whose own code communicates: DTensors of tensor or sequence parallelism, weights that
are gathered in forward, functional collectives on ordinary tensors.

Their collectives are operations of the plan, which all ranks run in one order (together.py). DTensors are
local at its edge (devices/sharded/local_tensors.py): parameters and states stay the DTensors that they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from ...devices.calls.collectives import collectives_in, groups_of, overlapping
from ...devices.measuring.measure import Measurement
from ...devices.sharded.meshes import RankGroups, default_group
from ...devices.sharded.ranks import Ranks
from ...graphs.errors import InputError, MismatchError
from ...model.iteration import Iteration, tensors_in
from ...model.processes import Processes
from ...profiling.profile.collectives import measure_around, measure_collectives
from ...profiling.profile.profile import costs_of, with_true_sizes
from ...program.graph import graph_of
from ...program.program import Program
from ...torch_support.torch_collectives import root_mesh
from ...tracing.output_layouts import residents, trace_real_layouts
from ...tracing.trace import trace
from ..options import Options
from ..plans.buckets import Buckets
from ..plans.front_end import CollectivesFoundError, Measured
from ..plans.plan import Planner
from ..plans.training_log import TrainingLog
from ..step.executor import Executor
from .rank_checks import check_options
from .together import (
    JointFrontEnd,
    made_ranks,
    part_of_this_node,
    ranks_of,
    validate_together,
    with_sizes,
)

WORD = "a module that communicates"


class CollectiveFrontEnd(JointFrontEnd):
    """Trace and measurements of a module that communicates: of collectives on all ranks."""

    _collectives: Mapping[int, Measurement]

    def _traced(self, iteration: Iteration) -> Program:
        ranks = ranks_of(iteration)
        program = self._trace_one_path(iteration, _program)
        self._check_form(iteration, program)
        self._check_groups(ranks, program)
        ranks.open(groups_of(program))
        with ranks.in_order():  # kernels run here, collectives among them: equally many on all ranks
            program = trace_real_layouts(iteration, program)
        self._check_form(iteration, program)
        return program

    def _check_groups(self, ranks: Ranks, program: Program) -> None:
        """Raise MismatchError, on all ranks, if the members of a collective's group call another's there.

        Each rank runs its collectives in one order, and those of all groups on one queue. So none waits for
        ever: all members of the earliest collective that has not ended come to it.
        """
        own = dict[str | int, list[int]]()
        for number, place in enumerate(collectives_in(program)):
            operation = program.operations[place]
            target: Any = operation.call.target
            # Orders that differ leave only names; in equal orders names may differ from rank to rank.
            key = operation.name if self._reordered else number
            own[key] = ranks.members_of(target.group_of(operation.call))
        found = ranks.gathered(own)
        for rank, row in enumerate(found):
            for key, members in row.items():
                for other in map(ranks.members.index, members):
                    if found[other].get(key) != members:
                        raise MismatchError(
                            f"ranks {rank} and {other} differ in the ranks of a collective, {members} and "
                            f"{found[other].get(key)}: they must run the same plan"
                        )

    def meet(self, iteration: Iteration, program: Program, book: TrainingLog) -> None:
        ranks = ranks_of(iteration)
        with book.phase("measure"), ranks.in_order():
            self._collectives = measure_collectives(program, residents(program, iteration), ranks)

    def measured(
        self, iteration: Iteration, program: Program, book: TrainingLog, limit_seconds: float | None
    ) -> Measured:
        with book.phase("measure"):
            tensors = residents(program, iteration)
            measured = measure_around(program, tensors, self._collectives, book.measured)
        true = with_true_sizes(program, measured)
        largest = with_sizes(true, self._sizes)
        graph = graph_of(largest, costs_of(true, measured), machine=self._machine)
        operations = replace(graph.operations, comm=overlapping(program))
        graph = replace(graph, operations=operations).share_structure(graph)
        return Measured(largest, measured, graph)


def joint_ranks(module: nn.Module, groups: Sequence[list[int]] = ()) -> RankGroups | None:
    """Return the ranks that plan a module together; None for one that has no DTensors and no such groups.

    They are those of a mesh, or of a group, that has all others in it; else all of the default group.

    groups: the ranks of each group in whose collectives the module is known to take part.
    Raises InputError if this process is none of them.
    """
    found = (each for each in (*module.parameters(), *module.buffers()) if isinstance(each, DTensor))
    meshes = dict.fromkeys(each.device_mesh for each in found)
    needed = [*({*members_of(mesh)} for mesh in meshes), *map(set, groups)]
    if not needed:
        return None
    roots = ({*members_of(root_mesh(mesh))} for mesh in meshes)
    # From small to large: a rank that no collective needs does not plan.
    possible = (*needed, *roots, {*range(dist.get_world_size())})
    members = sorted(next(each for each in possible if all(one <= each for one in needed)))
    if dist.get_rank() not in members:
        raise InputError(
            f"the module's DTensors are on the ranks {members}, and this process is none of them: call "
            "optimize on those alone"
        )
    return RankGroups(None, members, members, [dist.get_rank()], default_group())


def members_of(mesh: DeviceMesh) -> list[int]:
    """Return the ranks of a mesh, by their numbers in the default group."""
    return mesh.mesh.flatten().tolist()


def collective_executor(
    iteration: Iteration,
    options: Options,
    processes: Processes | None,
    buckets: Buckets | None,
    groups: RankGroups,
    *,
    planned: bool,
) -> Executor:
    """Plan the iterations of a module that communicates. All ranks call it together.

    Raises MemplanError, on all of them; CollectivesFoundError if other ranks must plan too.
    """
    given: tuple[Tensor, ...] = (*tensors_in(iteration.inputs).values(), *iteration.module.parameters())
    ranks = made_ranks(groups, given[0].device)
    with ranks.beating():
        check_options(ranks, options, iteration.module)
        ranks.together(partial(_validate, options, processes, buckets, planned=planned))
        front_end = CollectiveFrontEnd(part_of_this_node(ranks, options.machine))
        planner = Planner(options, TrainingLog(options.progress), front_end)
        iteration = iteration._replace(peers=ranks)
        try:
            return Executor(iteration, planner, buckets)
        except CollectivesFoundError:
            # More ranks must plan: their groups are made anew.
            ranks.end()
            raise


def _validate(
    options: Options, processes: Processes | None, buckets: Buckets | None, *, planned: bool
) -> None:
    if processes is not None:
        raise InputError(
            f"{WORD} is not supported in DistributedDataParallel: give the module inside, and average "
            "gradients in it, by weights that are DTensors"
        )
    validate_together(options, WORD, planned=planned)
    if buckets is not None and options.verify is not False:
        raise InputError(
            f"{WORD} and pad_values go together with verify=False alone: to compare padded batches eager "
            "PyTorch would communicate too"
        )


def _program(iteration: Iteration) -> Program:
    """Trace the module. Raises InputError for a gradient of no update, CollectivesFoundError for a collective
    of other ranks.
    """
    program, ranks = trace(iteration), ranks_of(iteration)
    found = groups_of(program)
    groups = [ranks.members_of(label) for label in found]
    for members, operation in zip(groups, found.values(), strict=True):
        if not set(members) <= set(ranks.members):
            raise CollectivesFoundError(f"{operation} is a collective of the ranks {members}", groups)
    if left := list(program.gradients):
        raise InputError(
            f"{left[0]} has a gradient and is none of the optimizer's parameters: give it to the optimizer, "
            "or freeze it with requires_grad_(False)"
        )
    return program
