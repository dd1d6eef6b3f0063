"""Functional collectives in a traced program, on a group of one process."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, cast

import memplan
import pytest
import torch
import torch.distributed._functional_collectives as functional
from memplan.devices.calls.collectives import collectives_in, groups_of, is_collective
from memplan.model.iteration import Iteration
from memplan.tracing.output_layouts import trace_real_layouts
from memplan.tracing.trace import trace
from memplan.training.plans.front_end import CollectivesFoundError
from torch import Tensor, nn
from torch import distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.nn import functional as distributed_functions
from torch.distributed.tensor import Shard, distribute_tensor

operators: Any = torch.ops._c10d_functional


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Product(nn.Module):
    """A product, whose result a function has before it is summed up."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.weight, self.change = nn.Parameter(torch.ones(6, 8)), change

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight + self.change((x @ self.weight).detach().t()).t()).square().sum()


def summed(x: Tensor) -> Tensor:
    world: Any = dist.group.WORLD
    return functional.all_reduce(x, "sum", world)


def test_a_collective_and_its_wait_are_one_operation_that_may_be_recomputed() -> None:
    """What is sent is transposed; what comes back is not, as kernels have it."""
    program = trace_real_layouts(Iteration(Product(summed), (torch.ones(4, 6),)))
    (place,) = collectives_in(program)
    operation = program.operations[place]
    (result,) = operation.call.outputs
    assert operation.name == "all_reduce"
    assert not operation.once
    assert result is not None
    assert program.values[result].strides == (4, 1)
    assert list(groups_of(program).values()) == ["all_reduce"]
    targets = [str(one.target) for one in (*program.views.values(), *(o.call for o in program.operations))]
    assert not any("wait" in target for target in targets)


def test_a_wait_of_the_users_own_is_refused() -> None:
    def twice(x: Tensor) -> Tensor:
        made = operators.all_reduce(x, "sum", "0")
        return operators.wait_tensor(made) + operators.wait_tensor(made)

    with pytest.raises(memplan.TraceError, match="the result of a collective is waited for twice: use what"):
        trace(Iteration(Product(twice), (torch.ones(4, 6),)))


def test_what_is_sent_to_one_rank_alone_is_refused() -> None:
    def sent(x: Tensor) -> Tensor:
        return operators.isend(x.contiguous(), 0, 0, "0")

    with pytest.raises(memplan.TraceError, match="calls isend, which is between single ranks, or waits"):
        trace(Iteration(Product(sent), (torch.ones(4, 6),)))


IN_PLACE: dict[str, Callable[[Tensor], Any]] = {
    "all_reduce": dist.all_reduce,
    "broadcast": lambda x: dist.broadcast(x, 0),
    "all_gather_into_tensor": lambda x: dist.all_gather_into_tensor(torch.empty_like(x), x),
    "reduce_scatter_tensor": lambda x: dist.reduce_scatter_tensor(torch.empty_like(x), x),
    "all_to_all_single": lambda x: dist.all_to_all_single(torch.empty_like(x), x),
    "all_gather": lambda x: dist.all_gather([torch.empty_like(x)], x),
    "reduce_scatter": lambda x: dist.reduce_scatter(torch.empty_like(x), [x]),
    "all_to_all": lambda x: dist.all_to_all([torch.empty_like(x)], [x]),
    "nn.functional.all_reduce": distributed_functions.all_reduce,
}


@pytest.mark.sampled(8)
@pytest.mark.filterwarnings("ignore:.*deprecated")
@pytest.mark.parametrize("name", IN_PLACE)
def test_functions_that_change_tensors_are_refused_with_the_functional_one(name: str) -> None:
    """By the name that was called; the call that the line gives is planned."""

    def changed(x: Tensor) -> Tensor:
        x = x.contiguous()
        IN_PLACE[name](x)
        return x

    why = "whose autograd.Function communicates" if name.startswith("nn.") else "which changes a tensor"
    with pytest.raises(memplan.TraceError, match=rf"calls torch\.distributed\.{name}, {why}") as found:
        trace(Iteration(Product(changed), (torch.ones(4, 6),)))
    call = re.search(r"call y = (.*) of torch", str(found.value))
    assert call is not None
    assert "\n" not in str(found.value)
    scope = {**vars(functional), "group": dist.group.WORLD}
    own = Product(lambda x: eval(call[1], {**scope, "x": x.contiguous()}))
    with pytest.warns(UserWarning, match="eval"):
        program = trace(Iteration(own, (torch.ones(4, 6),)))
    assert collectives_in(program)


def test_others_are_refused_by_the_name_that_was_called() -> None:
    def gathered(x: Tensor) -> Tensor:
        dist.gather(x.contiguous(), [torch.empty_like(x)])
        return x

    with pytest.raises(memplan.TraceError, match=r"calls torch\.distributed\.gather, which is between sing"):
        trace(Iteration(Product(gathered), (torch.ones(4, 6),)))


def test_planning_alone_ends_before_a_collective_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a module whose part in a larger graph is to be planned, which no other rank would know of."""

    def runs(*_arguments: Any, **_named: Any) -> None:
        raise AssertionError("a collective ran")

    monkeypatch.setattr("memplan.devices.calls.collectives.Collective.__call__", runs)
    with pytest.raises(CollectivesFoundError, match="all_reduce communicates with other ranks"):
        memplan.optimize_module(Product(summed), (torch.ones(4, 6),), budget="100%", cache=False)


def test_dtensors_are_planned_with_their_local_tensors() -> None:
    mesh, x = init_device_mesh("cpu", (1,)), torch.ones(4, 6)
    modules = [Product(summed) for _ in range(2)]
    for module in modules:
        weight = distribute_tensor(module.weight.detach(), mesh, [Shard(0)])
        module.weight = nn.Parameter(weight)
        module.forward = lambda x, own=module: (x @ cast("Any", own.weight).to_local()).square().sum()
    planned, eager = modules
    optimizers = [torch.optim.AdamW(module.parameters(), lr=0.1) for module in modules]
    step = memplan.optimize(planned, (x,), budget="100%", optimizer=optimizers[0], cache=False)
    for _ in range(2):
        loss = step(x)
        known = eager(x)
        known.backward()
        optimizers[1].step()
        optimizers[1].zero_grad()
        assert torch.equal(loss, known)
    assert type(planned.weight) is type(eager.weight)
    assert torch.equal(planned.weight.full_tensor(), eager.weight.full_tensor())  # pyright: ignore
    program = step.plans[0].program
    assert not any(is_collective(operation.call) for operation in program.operations)
