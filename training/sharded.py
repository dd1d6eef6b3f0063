"""Sharded training: the step of a module whose weights are spread over the ranks of a mesh.

    all ranks   trace the module, and compare what they have traced
    rank 0      measures, solves, and sends the plan
    all ranks   keep their shares of the weights, and run the plan

Whatever fails in this on one rank fails on all. A batch of another shape gets another plan in the same way;
ranks agree on the plan of each batch (agreement.py). Once weights are spread, a trace has their shapes alone:
of a module that fully_shard has wrapped, from the first plan on.
"""

from __future__ import annotations

import atexit
from contextlib import nullcontext
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from ..graphs.errors import InputError, MismatchError
from ..graphs.graph import Graph
from ..graphs.machine import Peers
from ..graphs.transformations.sharding import sharded
from ..planner.schedule.schedule import Schedule
from ..runtime.collector import collector_off
from ..runtime.model.iteration import Inputs, Iteration
from ..runtime.model.processes import Processes
from ..runtime.profile.profile import costs_of, measure_program, with_true_sizes
from ..runtime.program.graph import graph_of
from ..runtime.program.program import Program
from ..runtime.run.execute import PlannedStep
from ..runtime.run.queues import end_all
from ..runtime.sharded.fully_sharded import find_wrapped, precision_of, taken_out
from ..runtime.sharded.gradients import share_sizes, with_padding
from ..runtime.sharded.ranks import Ranks
from ..runtime.sharded.shards import Precision, Shards, check_module, checksums
from ..runtime.trace.output_layouts import residents, trace_real_layouts
from ..runtime.updates.catalogue import titles
from ..runtime.updates.clipping import clip
from ..runtime.updates.masters import MASTER
from .accumulating import AccumulatingStep
from .buckets import Buckets, check_ignored
from .holding import Holding
from .options import Options
from .plan import Planner
from .plan_cache import Plan
from .report import TrainingLog
from .sharded_holding import ShardedHolding
from .step import Step

_made: list[Ranks] = []


@atexit.register
def end_groups() -> None:
    """End the groups that collectives run in, once those under way have ended.

    Gloo's thread lets go of a collective's tensors some time after it. A tensor that Python has made needs
    Python for that, and if the interpreter is ending the process aborts.
    """
    end_all()
    while _made:
        _made.pop().end()


class ShardedPlanner(Planner):
    """Factory of the plans of a sharded step. All ranks call it together."""

    _network: Peers | None = None

    def _made_step(self, iteration: Iteration, less: int) -> PlannedStep:
        shards = iteration.shards
        assert shards is not None
        optimizer, ranks = self.options.optimizer, shards.ranks
        assert optimizer is not None
        first = not shards.are_spread
        with shards.whole(iteration.module, optimizer):
            with self.book.phase("trace"), collector_off():
                program = ranks.together(partial(_program, iteration, shards))
                if first:
                    _check_values(ranks, iteration.module)
                _check_equal(ranks, optimizer, program, self.options)
            with self.book.phase("measure"):
                network = self._network = self._network or ranks.network()
            size = self.bytes and max(0, self.bytes - less)
            plan = ranks.together(partial(self._first_plan, iteration, program, network, size))
        graph, schedule, budget = ranks.from_first(plan)
        made = Plan(program, graph, schedule, budget)
        self.bytes = self.bytes or budget
        if first:
            shards.spread(iteration.module, optimizer)
        step = ranks.together(partial(self._step, iteration, made))
        self._settled[step] = ""
        self._asked[step] = (budget,)
        self.book.opened(step, made, self.machine_of(made))
        return step

    def _first_plan(
        self, iteration: Iteration, program: Program, network: Peers, size: int | None
    ) -> tuple[Graph, Schedule, int] | None:
        """Return the plan on rank 0, None on others. size: the budget in bytes, None to ask the options."""
        shards = iteration.shards
        assert shards is not None
        if shards.ranks.rank:
            return None
        with self.book.phase("measure"):
            measured = measure_program(program, residents(program, iteration), self.book.measured, ran=True)
        true = with_true_sizes(program, measured)
        costs = [
            cost._replace(seconds=cost.seconds + network.latency) if one.call.target is clip else cost
            for one, cost in zip(true.operations, costs_of(true, measured), strict=True)
        ]
        unspread = graph_of(with_padding(true, shards), costs)
        graph = sharded(unspread, network, share_sizes(true, shards, MASTER))
        budget = self._first_budget(graph, program, iteration) if size is None else size
        plan = super()._solved(self._unsolved(program, graph, budget), iteration, budget)
        return plan.graph, plan.schedule, plan.budget

    def _solved(self, plan: Plan, iteration: Iteration, budget: int) -> Plan:
        """Solve the iteration's graph on rank 0, and return the plan on all."""
        shards = iteration.shards
        assert shards is not None

        def solved() -> Plan | None:
            return None if shards.ranks.rank else super(ShardedPlanner, self)._solved(plan, iteration, budget)

        made = shards.ranks.together(solved)
        schedule, budget = shards.ranks.from_first(made and (made.schedule, made.budget))
        return plan._replace(schedule=schedule, budget=budget)


class ShardedStep(Step):
    """A training step of which each rank holds a share of the weights."""

    def __call__(self, *arguments: Any, **keywords: Any) -> Tensor:
        """Run one iteration, as all ranks do; see Step.

        Raises:
            MemplanError: on all ranks if one has failed, has ended, or does not come to a collective within
                the process group's timeout.
        """
        assert self._iteration.shards is not None
        ranks = self._iteration.shards.ranks
        try:
            loss = super().__call__(*arguments, **keywords)
        except BaseException as error:
            ranks.note(error)
            raise
        ranks.note(None)
        return loss

    def _serving(self, inputs: Inputs) -> tuple[PlannedStep | None, Inputs]:
        """Return the plan for the inputs, the same one on all ranks, and the inputs as it takes them.

        No batch is trained on by eager PyTorch: the other ranks have their shares of its weights.
        """
        return self._plans.serving(inputs)

    def _holding(self) -> Holding:
        """Return the shares that this rank holds of the tensors of a checkpoint."""
        assert self._iteration.shards is not None
        return ShardedHolding(self._iteration.shards)


class ShardedAccumulatingStep(ShardedStep, AccumulatingStep):
    """A ShardedStep of which several batches make one update; each is scattered, and added to the sums."""

    def update(self) -> None:
        """Update the weights with what is accumulated; all ranks call it together."""
        self._plans.agree_on_update()
        super().update()


def sharded_step(
    iteration: Iteration,
    options: Options,
    processes: Processes | None,
    buckets: Buckets | None,
    *,
    planned: bool,
) -> ShardedStep:
    """Plan a sharded step. All ranks call it together. Raises MemplanError, on all of them."""
    module = iteration.module
    wrapped = find_wrapped(module, options.shard)
    mesh = options.shard if wrapped is None else wrapped.mesh
    assert mesh is not None
    word = "shard=" if wrapped is None else "fully_shard"
    if (weight := next(module.parameters(), None)) is None:
        raise InputError("shard=: the module has no parameters")
    if weight.is_meta:
        raise InputError(
            f"{word}: the module is on meta, without values: give it some first, by to_empty() and its own "
            "initialization, the same on all ranks"
        )
    ranks = Ranks(mesh, weight.device)
    _made.append(ranks)
    ranks.together(partial(_validate, module, options, processes, word, planned=planned))
    precision = dict[str, Precision]()
    if wrapped is None:
        ranks.together(partial(check_module, module, ranks.size))
    else:
        precision = ranks.together(partial(precision_of, wrapped))
    if buckets is not None and options.verify is not False:
        ranks.together(partial(check_ignored, iteration, buckets))
    iteration = iteration._replace(shards=(shards := Shards(ranks)))
    kind = ShardedStep if iteration.accumulate == 1 else ShardedAccumulatingStep
    with nullcontext() if wrapped is None else taken_out(wrapped):
        if wrapped is not None:
            shards.adopt(module, precision)
        return kind(iteration, ShardedPlanner(options, TrainingLog(options.progress)), buckets)


def _validate(
    module: nn.Module, options: Options, processes: Processes | None, word: str, *, planned: bool
) -> None:
    """Raise InputError, one line, for what does not go with shard=, or with a module that is spread already.

    word: what the user has given: `shard=` or `fully_shard`.
    """
    if processes is not None:
        raise InputError(f"{word} spreads weights itself: give the module inside of DistributedDataParallel")
    unsupported: dict[str, bool] = {
        "train=False": not options.train,
        "machine": options.machine is not None,
        "scaler": options.enabled_scaler is not None,
        "ema": options.ema is not None,
        "weights": options.weights is not None,
        "compile": options.compile,
        "cuda_graph": options.cuda_graph,
        "rollback_on_error": options.rollback_on_error,
        "verify=True": options.verify is True,
    }
    for name, given in unsupported.items():
        if given:
            raise InputError(f"{word} and {name} are not supported together: leave {name} out")
    if not planned or options.optimizer is None:
        raise InputError(
            f"{word} needs the optimizer, whose updates are in the plan: optimizer= of {titles()}"
        )
    if word == "fully_shard":
        return
    if any(options.optimizer.state.values()):
        raise InputError(
            "shard=: the optimizer has states of whole weights: make a new one, plan, and load the states "
            "afterwards, by torch.distributed.checkpoint"
        )
    for name, parameter in module.named_parameters():
        if isinstance(parameter, DTensor):
            raise InputError(
                f"shard=: {name} is a DTensor, so its parameters are spread over ranks already: make the "
                "module anew, and plan it before anything but fully_shard spreads it"
            )


def _program(iteration: Iteration, shards: Shards) -> Program:
    """Trace the module, whose weights are whole. Raises InputError for a gradient that no update uses up."""
    program = trace_real_layouts(iteration)
    if left := list(program.gradients):
        raise InputError(
            f"shard=: {left[0]} has a gradient and is none of the optimizer's parameters: give it to the "
            "optimizer, or freeze it with requires_grad_(False)"
        )
    return with_padding(program, shards)


def _check_values(ranks: Ranks, module: nn.Module) -> None:
    """Raise MismatchError, on all ranks, if one has another module, or other values in it, than rank 0."""
    found = ranks.gathered(dict(checksums(module)))
    for rank, values in enumerate(found):
        if values.keys() != found[0].keys():
            raise MismatchError(f"ranks 0 and {rank} have different parameters: make the same model on each")
        for name, known in found[0].items():
            if values[name] != known:
                raise MismatchError(
                    f"ranks 0 and {rank} have different values of {name}: make the model from one seed, load "
                    "the same weights on each rank, or broadcast them from rank 0"
                )


def _check_equal(ranks: Ranks, optimizer: Optimizer, program: Program, options: Options) -> None:
    """Raise MismatchError, on all ranks, if one has another optimizer, request or iteration than rank 0."""
    groups = [
        {name: repr(value) for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]
    mine = (groups, options.budget.text, options.solver, program.fingerprint)
    found = ranks.gathered(mine)
    what = ("the optimizer's settings", "budget=", "solver=", "the operations of an iteration")
    for rank, row in enumerate(found):
        for name, own, known in zip(what, row, found[0], strict=True):
            if own != known:
                raise MismatchError(f"ranks 0 and {rank} differ in {name}: they must run the same plan")
