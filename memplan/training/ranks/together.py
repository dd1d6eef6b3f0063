"""Plans that several ranks run at the same time, and the steps that run them.

    all ranks   trace the module, and compare what they have traced
    rank 0      measures, solves, and sends the plan
    all ranks   run the plan

Whatever fails in this on one rank fails on all. A batch of another shape gets another plan in the same way;
ranks agree on the plan of each batch (agreement.py). Two kinds of training are planned so: ranks that hold
shares of the weights (sharded.py), and modules whose own code communicates (collectives.py).
"""

from __future__ import annotations

import atexit
import sys
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ...devices.calls.collectives import collectives_in
from ...devices.device.host_capacity import available_bytes
from ...devices.sharded.arrival import leave
from ...devices.sharded.meshes import Mesh, RankGroups
from ...devices.sharded.ranks import Ranks
from ...devices.sharded.store import StoreLostError
from ...devices.storage.shortage import ShortageError
from ...graphs.errors import InputError, MemplanError, MismatchError
from ...graphs.graph import Graph
from ...graphs.machine import Machine, Memory
from ...graphs.machines.nodes import part_of_node
from ...model.iteration import Iteration
from ...model.processes import end_processes
from ...planner.simulator.simulate import simulate
from ...program.program import Program
from ...program.structure import graph_form
from ...runtime.run.queues import end_all
from ...torch_support.unsupported import warn_user
from ...tracing.align import aligned
from ...updates.catalogue import titles
from ..options import Options
from ..plans.front_end import FrontEnd
from ..plans.plan_cache import Plan
from .rank_checks import check_operations

_made: list[Ranks] = []


@atexit.register
def end_groups() -> None:
    """End the groups that collectives run in, once those under way have ended.

    If the program ends by an error, wherever it was raised, the other ranks name it.

    Gloo's thread lets go of a collective's tensors some time after it. A tensor that Python has made needs
    Python for that, and if the interpreter is ending the process aborts.
    """
    end_all()
    error = getattr(sys, "last_value", None)  # of whatever no code has caught
    leave(error)
    end_processes(error)
    while _made:
        _made.pop().end(error)


def made_ranks(mesh: Mesh | RankGroups, device: torch.device) -> Ranks:
    """Create the groups of the ranks of a mesh, or of these, which end before the program does.

    All ranks call it together. Raises MemplanError if not all do, after the timeout of their group.
    """
    try:
        ranks = Ranks(mesh, device)
    except StoreLostError as error:
        raise MemplanError(str(error)) from None
    except (RuntimeError, ValueError) as error:
        raise MemplanError(
            f"the ranks can't plan together ({first_words(error)}): one has ended, or does not call "
            "memplan.optimize"
        ) from error
    _made.append(ranks)
    return ranks


def part_of_this_node(ranks: Ranks, machine: Machine | None) -> Machine | None:
    """Return this rank's part of its node, as rank 0 describes it. Raises MismatchError if one has none."""
    found = ranks.gathered(machine is None)
    if (other := next((rank for rank, one in enumerate(found) if one != found[0]), None)) is not None:
        raise MismatchError(f"ranks 0 and {other} differ in machine=: they must run the same plan")
    first: Machine | None = ranks.from_first(machine)
    return None if first is None else part_of_node(first, ranks.on_node)


def first_words(error: Exception) -> str:
    """Return what an error says, without the addresses and frames that follow."""
    return " ".join(str(error).split(". ")[0].split())[:200]


class JointFrontEnd(FrontEnd):
    """Trace and measurements of ranks that run the same plan. All ranks make the same calls together.

    machine: this rank's part of its node; None if nothing is offloaded.
    _reordered: whether a rank has traced independent operations in another order than others.
    _sizes: bytes of each of rank 0's storages, the most that they take on any rank.
    """

    _reordered = False
    _sizes: Sequence[int] = ()

    def __init__(self, machine: Machine | None) -> None:
        self._machine = machine

    def _trace_one_path(self, iteration: Iteration, trace: Callable[[Iteration], Program]) -> Program:
        """Trace on all ranks; once more, on a path that no values decide, if those of their batches decide
        otherwise what the code does, as with a mask that hides nothing in one of them.
        """
        ranks = ranks_of(iteration)
        program = ranks.together(partial(trace, iteration))
        found = ranks.gathered((graph_form(program), program.used is not None))
        if all(form == found[0][0] for form, _used in found) or not any(used for _form, used in found):
            return program
        try:
            program = ranks.together(partial(trace, iteration._replace(one_path=True)))
        except MemplanError:
            return program  # the check of their forms says how they differ
        warn_user(
            "values in the batches of the ranks decide otherwise what the model's code does, as an attention "
            "mask does that hides nothing on one rank: these batches are planned on the path for "
            "torch.compile, whose results may differ from eager PyTorch's by roundings"
        )
        return program

    def traced(self, iteration: Iteration) -> Program:
        program, ranks = self._traced(iteration), ranks_of(iteration)
        names = ranks.from_first([storage.name for storage in program.storages])
        sizes = [storage.bytes for storage in program.storages]
        if self._reordered:  # else they may have other names here, in the same order
            own = {storage.name: storage.bytes for storage in program.storages}
            sizes = [own[name] for name in names]
        self._sizes = [*map(max, zip(*ranks.gathered(sizes), strict=True))]
        return program

    @abstractmethod
    def _traced(self, iteration: Iteration) -> Program:
        """Trace the iteration on all ranks. Raises MemplanError, on all of them, if programs differ."""

    def asked(self, iteration: Iteration) -> tuple[Any, ...]:
        """Return what rank 0's plan depends on besides its program: other ranks' programs differ in bytes."""
        ranks, shards = ranks_of(iteration), iteration.shards
        sizes = (ranks.size, ranks.shards, ranks.replicas, ranks.on_node, *self._sizes)
        precision = () if shards is None else sorted(shards.precision.items())
        return (type(self).__name__, self._machine, *sizes, *precision)

    def by_first(self, iteration: Iteration, program: Program, make: Callable[[], Plan]) -> Plan:
        """Return the plan that rank 0 makes, with this rank's program."""
        ranks = ranks_of(iteration)
        made = ranks.together(lambda: None if ranks.rank else make())
        return self._sent(ranks, program, made)

    def _sent(self, ranks: Ranks, program: Program, made: Plan | None) -> Plan:
        """Return rank 0's plan on all. made: on rank 0 alone."""
        row = ranks.from_first(made and (made.graph, made.schedule, made.budget, made.policy))
        graph, schedule, budget, policy = row
        return Plan(self._in_order_of(program, graph), graph, schedule, budget, policy=policy)

    def check_room(self, iteration: Iteration, plan: Plan, machine: Machine | None, left: int) -> None:
        """Raise ShortageError if the ranks of this node together need more host memory than it has now."""
        figures = simulate(plan.graph, plan.schedule, budget=plan.budget, machine=machine).figures
        ranks, free = ranks_of(iteration).on_node, available_bytes()
        # Each rank sees the node's whole free memory, and all take theirs at once.
        if free is not None and ranks * (figures.host_peak - left) > free:
            line = (
                f"the plan needs {figures.host_peak:,} bytes of host memory for each of the {ranks} ranks of "
                f"this node, {free:,} are available to them here"
            )
            raise ShortageError.of(Memory.HOST, line, free // ranks + left)

    def _in_order_of(self, program: Program, graph: Graph) -> Program:
        """Return this rank's program in the order of rank 0's, of which the graph is."""
        return aligned(program, graph, same_bytes=False) if self._reordered else program

    def _check_form(self, iteration: Iteration, program: Program) -> None:
        """Raise MismatchError, on all ranks, unless their programs have one graph, but for bytes.

        A rank may have a batch with other strides than another, take another part of a tensor, or begin with
        another word: each runs its own operations. If one has traced independent operations in another order,
        it must have the same ones, with the same numbers.
        """
        ranks = ranks_of(iteration)
        forms = ranks.gathered(graph_form(program))
        self._reordered = any(form != forms[0] for form in forms)
        if self._reordered:
            order = [program.operations[place].name for place in collectives_in(program)]
            check_operations(ranks, f"{program.fingerprint} {order}", iteration.inputs, program)


def ranks_of(iteration: Iteration) -> Ranks:
    """Return the ranks that run the iteration's plan."""
    ranks = iteration.ranks
    assert ranks is not None
    return ranks


def validate_together(options: Options, word: str, *, planned: bool) -> None:
    """Raise InputError, one line, for options that do not go with plans of several ranks.

    word: what there is such a plan for: `shard=`, `fully_shard`, `a module that communicates`.
    planned: whether the optimizer's updates are part of the plan.
    """
    unsupported: dict[str, bool] = {
        "train=False": not options.train,
        "scaler": options.enabled_scaler is not None,
        "ema": options.ema is not None,
        "weights": options.weights is not None and word != "shard=",
        "compile": options.compile,
        "cuda_graph": options.cuda_graph,
        "rollback_on_error": options.rollback_on_error,
        "early_updates": options.early_updates,
        "bucket_size": options.bucket_size is not None,
        "block_size": options.block_size is not None,
        "verify=True": options.verify is True,
    }
    for name, given in unsupported.items():
        if given:
            raise InputError(f"{word} and {name} are not supported together: leave {name} out")
    if not planned or options.optimizer is None:
        raise InputError(
            f"{word} needs the optimizer, whose updates are in the plan: optimizer= of {titles()}"
        )


def with_sizes(program: Program, sizes: Sequence[int]) -> Program:
    """Return the program with storages of these sizes at least, in bytes."""
    both = zip(program.storages, sizes, strict=True)
    return replace(program, storages=[one._replace(bytes=max(one.bytes, size)) for one, size in both])
