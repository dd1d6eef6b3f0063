"""Sharded training: the step of a module whose weights are spread over the ranks of a mesh.

    all ranks   trace the module, and compare what they have traced
    rank 0      measures, solves, and sends the plan
    all ranks   keep their shares of the weights, and run the plan

Whatever fails in this on one rank fails on all. A batch of another shape gets another plan in the same way;
ranks agree on the plan of each batch (agreement.py). Once weights are spread, a trace has their shapes alone:
of a module that fully_shard has wrapped, from the first plan on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from ...devices.sharded.direct_calls import refuse_direct_calls
from ...devices.sharded.fully_sharded import Wrapped, find_wrapped, precision_of, taken_out
from ...devices.sharded.gradients import share_sizes, with_local_states, with_padding
from ...devices.sharded.meshes import check_dimensions
from ...devices.sharded.network import measure_network
from ...devices.sharded.ranks import OnAllRanksError, Ranks
from ...devices.sharded.shards import Precision, Shards, check_module, checksums
from ...graphs.errors import InputError, MismatchError
from ...graphs.machine import Machine, Peers
from ...graphs.transformations.sharding import sharded
from ...model.iteration import Iteration, tensors_in
from ...model.processes import Processes
from ...profiling.profile.profile import costs_of, measure_program, with_true_sizes
from ...program.graph import graph_of
from ...program.program import Program
from ...solvers.problem import InfeasibleError
from ...tracing.output_layouts import residents, trace_real_layouts
from ...updates.catalogue import check_by_element
from ...updates.clipping import clip
from ...updates.masters import MASTER
from ..checkpoints.sharded_weights import spread_from_files
from ..checkpoints.weights import check_weights
from ..options import Options
from ..plans.buckets import Buckets, check_ignored
from ..plans.front_end import Measured
from ..plans.plan import Planner
from ..plans.plan_cache import Plan
from ..plans.training_log import TrainingLog
from ..step.executor import Executor
from .rank_checks import check_options
from .sharded_gathers import gathering_executor
from .together import (
    JointFrontEnd,
    made_ranks,
    part_of_this_node,
    ranks_of,
    validate_together,
    with_sizes,
)


class ShardedFrontEnd(JointFrontEnd):
    """Trace and measurements of a sharded step.

    gathers: if the first plan does not fit, one with gathers as operations may (sharded_gathers.py).
    """

    gathers = False
    _network: Peers | None = None

    def __init__(self, machine: Machine | None, optimizer: Optimizer) -> None:
        super().__init__(machine)
        self._optimizer = optimizer

    @property
    def explains(self) -> bool:
        return not self.gathers

    def planning(self, iteration: Iteration) -> AbstractContextManager[None]:
        return shards_of(iteration).whole(iteration.module, self._optimizer)

    def _traced(self, iteration: Iteration) -> Program:
        shards = shards_of(iteration)
        program = self._trace_one_path(iteration, partial(_program, shards=shards))
        _check_values(shards, iteration.module)
        self._check_form(iteration, program)
        return program

    def meet(self, iteration: Iteration, program: Program, book: TrainingLog) -> None:
        with book.phase("measure"):
            # Once per step: all of its plans have the same ranks.
            self._network = self._network or measure_network(ranks_of(iteration))

    def measured(
        self, iteration: Iteration, program: Program, book: TrainingLog, limit_seconds: float | None
    ) -> Measured:
        shards, network = shards_of(iteration), self._network
        assert network is not None
        with book.phase("measure"):
            measured = measure_program(program, residents(program, iteration), book.measured, ran=True)
        true = with_sizes(with_true_sizes(program, measured), self._sizes)
        costs = [
            cost._replace(seconds=cost.seconds + network.latency) if one.call.target is clip else cost
            for one, cost in zip(true.operations, costs_of(true, measured), strict=True)
        ]
        unspread = graph_of(with_padding(true, shards), costs, machine=self._machine)
        graph = sharded(unspread, network, share_sizes(true, shards, MASTER))
        return Measured(program, measured, graph)

    def by_first(self, iteration: Iteration, program: Program, make: Callable[[], Plan]) -> Plan:
        """Return rank 0's plan. Raises _TooSmallError if none fits that has its shares on the device."""
        if not self.gathers:
            return super().by_first(iteration, program, make)
        ranks, too_small = ranks_of(iteration), None

        def fitting() -> Plan | None:
            nonlocal too_small
            try:
                return None if ranks.rank else make()
            except InfeasibleError as error:
                too_small = error.budget
                return None

        made = ranks.together(fitting)
        if (budget := ranks.from_first(too_small)) is not None:
            raise _TooSmallError(budget)
        return self._sent(ranks, program, made)

    def place(self, iteration: Iteration) -> None:
        self.gathers = False  # plans of one step have one kind
        shards = shards_of(iteration)
        if not shards.are_spread:
            shards.spread(iteration.module, self._optimizer)

    def local(self, iteration: Iteration, program: Program) -> Program:
        return with_local_states(program, shards_of(iteration), MASTER)


class _TooSmallError(OnAllRanksError):
    """Error: no plan that has its shares on the device fits the budget, in bytes. Nobody sees it."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        super().__init__(f"{budget} B")


def sharded_executor(
    iteration: Iteration,
    options: Options,
    processes: Processes | None,
    buckets: Buckets | None,
    *,
    planned: bool,
) -> Executor:
    """Plan the iterations of a sharded step. All ranks call it together. Raises MemplanError, on all."""
    ranks, wrapped = _met(iteration, options)
    module, word = iteration.module, "shard=" if wrapped is None else "fully_shard"
    reads = wrapped is None and options.weights is not None
    with ranks.beating():
        check_options(ranks, options, module)
        ranks.together(partial(_validate, module, options, processes, word, planned=planned))
        machine = part_of_this_node(ranks, options.machine)
        assert options.optimizer is not None
        front_end = ShardedFrontEnd(machine, options.optimizer)
        planner = Planner(options, TrainingLog(options.progress), front_end)
        precision = dict[str, Precision]()
        if wrapped is None:
            ranks.together(partial(check_module, module, ranks.shards))
        else:
            precision = ranks.together(partial(precision_of, wrapped))
        if buckets is not None and options.verify is not False and not reads:
            ranks.together(partial(check_ignored, iteration, buckets))
        iteration = iteration._replace(shards=(shards := Shards(ranks)))
        front_end.gathers = machine is not None
        around: AbstractContextManager[None] = nullcontext()
        if wrapped is not None:
            around = taken_out(wrapped)
        elif options.weights is not None:
            around = spread_from_files(module, options.optimizer, shards, options.weights)
        with around:
            if wrapped is not None:
                shards.adopt(module, precision)
            try:
                executor = Executor(iteration, planner, buckets)
            except _TooSmallError as error:
                assert machine is not None
                executor = gathering_executor(iteration, options, buckets, machine, error.budget)
        refuse_direct_calls(module)
        return executor


def _met(iteration: Iteration, options: Options) -> tuple[Ranks, Wrapped | None]:
    """Return the ranks of the mesh, once all have met, and what fully_shard has made of the module, if it
    has. Raises InputError.
    """
    module = iteration.module
    wrapped = find_wrapped(module, options.shard)
    mesh = options.shard if wrapped is None else wrapped.mesh
    assert mesh is not None
    word = "shard=" if wrapped is None else "fully_shard"
    if wrapped is None:
        check_dimensions(mesh)
    if (weight := next(module.parameters(), None)) is None:
        raise InputError("shard=: the module has no parameters")
    reads = wrapped is None and options.weights is not None
    if weight.is_meta and not reads:
        raise InputError(
            f"{word}: the module is on meta, without values: give it some first, by to_empty() and its own "
            "initialization, the same on all ranks"
            + (", or give weights=, files of which each rank reads its rows" if wrapped is None else "")
        )
    device = next(iter(tensors_in(iteration.inputs).values())).device if reads else weight.device
    return made_ranks(mesh, device), wrapped


def _validate(
    module: nn.Module, options: Options, processes: Processes | None, word: str, *, planned: bool
) -> None:
    """Raise InputError, one line, for what does not go with shard=, or with a module that is spread already.

    word: what the user has given: `shard=` or `fully_shard`.
    """
    if processes is not None:
        raise InputError(f"{word} spreads weights itself: give the module inside of DistributedDataParallel")
    if options.optimizer is not None:
        check_by_element(options.optimizer, word)
    validate_together(options, word, planned=planned)
    assert options.optimizer is not None
    if word == "fully_shard":
        return
    if options.weights is not None:
        check_weights(module, options.weights)
    for name, parameter in module.named_parameters():
        if isinstance(parameter, DTensor):
            raise InputError(
                f"shard=: {name} is a DTensor, so its parameters are spread over ranks already: make the "
                "module anew, and plan it before anything but fully_shard spreads it"
            )
    if any(options.optimizer.state.values()):
        raise InputError(
            "shard=: the optimizer has states of whole weights: make a new one, plan, and load the states "
            "afterwards, by torch.distributed.checkpoint"
        )


def shards_of(iteration: Iteration) -> Shards:
    """Return the shares that this rank holds."""
    assert iteration.shards is not None
    return iteration.shards


def _program(iteration: Iteration, shards: Shards) -> Program:
    """Trace the module, whose weights are whole. Raises InputError for a gradient that no update uses up."""
    program = trace_real_layouts(iteration)
    if left := list(program.gradients):
        raise InputError(
            f"shard=: {left[0]} has a gradient and is none of the optimizer's parameters: give it to the "
            "optimizer, or freeze it with requires_grad_(False)"
        )
    return with_padding(program, shards)


def _check_values(shards: Shards, module: nn.Module) -> None:
    """Raise MismatchError, on all ranks, if one has another module than rank 0, or other values in it.

    Values of weights that are spread can't differ: each rank has its own rows.
    """
    shapes = {name: list(each.shape) for name, each in module.named_parameters()}
    found = shards.ranks.gathered((shapes, None if shards.are_spread else dict(checksums(module))))
    first, known = found[0]
    for rank, (others, values) in enumerate(found):
        if others.keys() != first.keys():
            raise MismatchError(f"ranks 0 and {rank} have different parameters: make the same model on each")
        for name, shape in first.items():
            if others[name] != shape:
                raise MismatchError(
                    f"ranks 0 and {rank} differ in the shape of {name}, {shape} and {others[name]}: make the "
                    "same model on each"
                )
            if known is not None and values[name] != known[name]:
                raise MismatchError(
                    f"ranks 0 and {rank} have different values of {name}: make the model from one seed, load "
                    "the same weights on each rank, or broadcast them from rank 0"
                )
