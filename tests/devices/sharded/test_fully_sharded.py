"""Modules that fully_shard has wrapped: taken out of FSDP2, and trained with its bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import memplan
import pytest
import torch
from memplan.devices.measuring.live_bytes import live_peak
from ranks import ranks
from sharded_models import batch, make
from sharded_training import (
    COUNT,
    Trained,
    adamw,
    by_fsdp,
    differences,
    planned_step,
    share_bytes,
    wrapped,
)
from torch import Tensor, nn
from torch import distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

STEPS = 5


def train(step: Any, batches: list[dict[str, Tensor]]) -> list[Tensor]:
    return [step(**each).detach() for each in batches]


def taken(rank: int, size: int, kind: str, budget: str) -> tuple[dict[str, float], bool, int, int]:
    """Train by FSDP2, and by a plan of what fully_shard has made; return what differs, and the peaks."""
    batches = [batch(kind, rank, number) for number in range(STEPS)]
    known, module = by_fsdp(kind, size, batches), wrapped(make(kind), size)
    optimizer, parameters = adamw(module), list(module.parameters())
    step = planned_step(module, optimizer, batches[0], budget, shard=None, time_limit=3)
    losses: list[Tensor] = []

    def run() -> None:
        losses.extend(train(step, batches))
        cycle = step.plans[0].cycle
        assert cycle is not None
        cycle.end_jobs()

    held = share_bytes(module) + sum(each.nbytes for each in (*batches[0].values(), *module.buffers()))
    outside = COUNT * len([each for each in parameters if each.requires_grad])
    peak = live_peak(run).peak_bytes + held - outside - sum(each.nbytes for each in losses)
    same = all(own is known for own, known in zip(module.parameters(), parameters, strict=True))
    left = not any(isinstance(each, FSDPModule) for each in module.modules())
    apart = differences(known, Trained(module, optimizer, losses, []))
    return apart, same and left, peak, step.plan.figures.peak


@pytest.mark.scripts
@pytest.mark.parametrize(("kind", "budget"), [("gpt2", "70%"), ("lora", "80%"), ("titan", "85%")])
def test_a_wrapped_module_trains_as_by_fsdp2_bit_by_bit(tmp_path: Path, kind: str, budget: str) -> None:
    """Its parameters stay the objects that the optimizer has. `titan`: torchtitan's debug model."""
    for row in ranks(taken, tmp_path, 2, kind, budget):
        assert not isinstance(row, str), row
        apart, same, peak, planned = row
        assert apart == {}
        assert same
        assert peak <= planned


def midway(rank: int, size: int) -> dict[str, float]:
    """Train by FSDP2, and begin so too, with weights and states that a plan goes on with."""
    batches = [batch("llama", rank, number) for number in range(STEPS)]
    known, module = by_fsdp("llama", size, batches), wrapped(make("llama"), size)
    optimizer, losses = adamw(module), list[Tensor]()
    for each in batches[:2]:
        loss = module(**each).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    with torch.no_grad():
        module(**batches[0])  # leaves the root's weights whole
    step = planned_step(module, optimizer, batches[2], "70%", shard=None)
    losses += train(step, batches[2:])
    return differences(known, Trained(module, optimizer, losses, []))


@pytest.mark.scripts
def test_a_plan_goes_on_where_fsdp2_has_begun(tmp_path: Path) -> None:
    assert ranks(midway, tmp_path, 2) == [{}, {}]


def from_meta(rank: int, size: int) -> dict[str, float]:
    """Wrap a module on meta, and read each rank's shares into it: nowhere is it whole."""
    batches = [batch("gpt2", rank, number) for number in range(STEPS)]
    known, full = by_fsdp("gpt2", size, batches), make("gpt2").state_dict()
    with torch.device("meta"):
        module = make("gpt2")
    wrapped(module, size)
    module.to_empty(device="cpu")
    module.tie_weights()  # pyright: ignore
    for name, tensor in module.state_dict(keep_vars=True).items():
        with torch.no_grad():
            if isinstance(tensor, DTensor):
                rows = -(-len(full[name]) // size)
                tensor.to_local().copy_(full[name][rank * rows : (rank + 1) * rows])
            else:
                tensor.copy_(full[name])
    optimizer = adamw(module)
    step = planned_step(module, optimizer, batches[0], "70%", shard=None)
    return differences(known, Trained(module, optimizer, train(step, batches), []))


@pytest.mark.scripts
def test_a_module_on_meta_is_filled_by_shares(tmp_path: Path) -> None:
    """Uneven shapes: 101 words on 2 ranks. to_empty() makes memory without padding, which is then made."""
    assert ranks(from_meta, tmp_path, 2) == [{}, {}]


def too_little(rank: int, size: int) -> tuple[str, dict[str, float]]:
    """Train by FSDP2, and so after no plan was found."""
    batches = [batch("gpt2", rank, number) for number in range(STEPS)]
    known, module = by_fsdp("gpt2", size, batches), wrapped(make("gpt2"), size)
    optimizer, losses, said = adamw(module), list[Tensor](), ""
    try:
        planned_step(module, optimizer, batches[0], "1%", shard=None)
    except memplan.MemplanError as error:
        said = str(error)
    for each in batches:
        loss = module(**each).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return said, differences(known, Trained(module, optimizer, losses, []))


@pytest.mark.scripts
def test_without_a_plan_the_module_is_fsdp2s_as_before(tmp_path: Path) -> None:
    for said, apart in ranks(too_little, tmp_path, 2):
        assert "budget" in said
        assert apart == {}


# ── refusals, on one rank ───────────────────────────────────────────────────────────────────────────


@pytest.fixture
def group() -> Any:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4))


def shard(module: nn.Module, **options: Any) -> nn.Module:
    fully_shard(module, **{"mesh": init_device_mesh("cpu", (1,)), **options})
    return module


def mesh_of(shape: tuple[int, int], *names: str) -> DeviceMesh:
    return init_device_mesh("cpu", shape, mesh_dim_names=names)


def parallel(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return parallelize_module(module, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})


def told(call: Callable[[Any], Any]) -> nn.Module:
    module = shard(network())
    call(module)
    return module


LOW = torch.bfloat16
REFUSED: dict[str, tuple[Callable[[], nn.Module], dict[str, Any], str]] = {
    "tensor parallelism": (
        lambda: shard(parallel(network(), mesh := mesh_of((1, 1), "dp", "tp")), mesh=mesh["dp"]),
        {},
        r"0.weight is spread over a mesh of 2 dimensions, as .*, and a plan has replicas and ranks alone: "
        r"give fully_shard mesh=init_device_mesh\('cpu', \(ranks,\)\) or \(replicas, ranks\), without",
    ),
    "sums of replicas later": (
        lambda: told(lambda module: module.set_requires_all_reduce(False)),
        {},
        r"set_requires_all_reduce\(\) was called, which a plan does not do: leave it out",
    ),
    "columns": (
        lambda: shard(network(), shard_placement_fn=lambda p: Shard(p.ndim - 1)),
        {},
        r"0.weight is placed as S\(1\)|0.weight is placed as Shard\(dim=1\)",
    ),
    "a part alone": (lambda: nn.Sequential(shard(network()), nn.Linear(4, 4)), {}, "1.weight is not spread"),
    "compute in float16": (
        lambda: shard(network(), mp_policy=MixedPrecisionPolicy(param_dtype=torch.float16)),
        {},
        r"param_dtype=torch.float16\) is not supported for 0.weight in torch.float32: .* "
        r"give param_dtype=torch.bfloat16",
    ),
    "masters in float64": (
        lambda: shard(network().double(), mp_policy=MixedPrecisionPolicy(param_dtype=LOW)),
        {},
        r"param_dtype=torch.bfloat16\) is not supported for 0.weight in torch.float64: .*, by .float\(\)",
    ),
    "masters of masters": (
        lambda: shard(network(), mp_policy=MixedPrecisionPolicy(param_dtype=LOW)),
        {"master_weights": True},
        r"master_weights=True: no weight that is trained is bfloat16 or float16",
    ),
    "sums in float64": (
        lambda: shard(network(), mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float64)),
        {},
        r"reduce_dtype=torch.float64\) is not supported for 0.weight: its gradients are summed up in "
        r"torch.float32; leave reduce_dtype= out",
    ),
    "another divisor": (
        lambda: told(lambda module: module.set_gradient_divide_factor(3.0)),
        {},
        r"set_gradient_divide_factor\(\) was called, which a plan does not do: leave it out",
    ),
    "no scatter": (
        lambda: told(lambda module: module.set_requires_gradient_sync(False)),
        {},
        r"set_requires_gradient_sync\(\) was called",
    ),
    "no optimizer": (lambda: shard(network()), {"optimizer": None}, "fully_shard needs the optimizer"),
    "averages": (lambda: shard(network()), {"ema": 0.9}, "fully_shard and ema are not supported together"),
    "no values": (lambda: shard(network().to("meta")), {}, "the module is on meta, without values"),
}


def plan(module: nn.Module, **options: Any) -> Any:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    quick: dict[str, Any] = {"budget": "100%", "cache": False, "loss_fn": torch.sum, "optimizer": optimizer}
    return memplan.optimize(module, torch.ones(4, 6), **{**quick, **options})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REFUSED)
def test_what_a_plan_does_not_do_is_refused(group: None, name: str) -> None:
    make_module, options, line = REFUSED[name]
    module = make_module()
    with pytest.raises(memplan.InputError, match=line) as refused:
        plan(module, **options)
    assert "\n" not in str(refused.value)
    assert any(isinstance(each, FSDPModule) for each in module.modules())


def test_another_mesh_is_refused(group: None) -> None:
    other = init_device_mesh("cpu", (1,), mesh_dim_names=("other",))
    with pytest.raises(memplan.InputError, match="shard= has another mesh than fully_shard was given"):
        plan(shard(network()), shard=other)


def test_the_mesh_may_be_given_too(group: None) -> None:
    mesh = init_device_mesh("cpu", (1,))
    step = plan(shard(network(), mesh=mesh), shard=mesh)
    assert step(torch.ones(4, 6)).isfinite()


def test_replicas_go_by_the_mesh_whatever_its_names(group: None) -> None:
    step = plan(shard(network(), mesh=mesh_of((1, 1), "a", "b")))
    assert step(torch.ones(4, 6)).isfinite()


@pytest.mark.scripts
def test_an_offload_policy_has_no_meaning_on_the_cpu(group: None) -> None:
    assert plan(shard(network(), offload_policy=CPUOffloadPolicy(pin_memory=False)))(
        torch.ones(4, 6)
    ).isfinite()
