"""Sharded training with one rank: eager PyTorch's bits, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import memplan
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.devices.device.cpu import Cpu
from memplan.devices.measuring.live_bytes import live_peak
from memplan.devices.sharded.gradients import spread_rows
from memplan.devices.sharded.ranks import Ranks
from memplan.devices.sharded.shards import Shards, checksums
from memplan.graphs.machine import Links, Machine
from memplan.planner.schedule.schedule import Verb
from memplan.program.program import Value
from ranks import alone
from sharded_training import whole
from torch import Tensor, nn
from torch import distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn.parallel import DistributedDataParallel


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    with alone():
        yield


def model() -> nn.Sequential:
    torch.manual_seed(3)
    wide = [nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Linear(48, 16)) for _ in range(3)]
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), *wide, nn.Linear(16, 3))


def batches(count: int = 4) -> list[Tensor]:
    torch.manual_seed(7)
    return [torch.randn(48, 6) for _ in range(count)]


def squares(output: Tensor) -> Tensor:
    return output.square().mean()


def plan(module: Any, optimizer: Any = None, **options: Any) -> Any:
    options = {"budget": "70%", "solver": "joint", "time_limit": 0.3, "shard": True, **options}
    return memplan.optimize(
        module, batches(1)[0], loss_fn=squares, optimizer=optimizer, cache=False, **options
    )


def adamw(module: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(module.parameters(), lr=0.01)


def eager(module: nn.Module, optimizer: torch.optim.Optimizer, given: list[Tensor]) -> list[Tensor]:
    losses: list[Tensor] = []
    for x in given:
        loss = squares(module(x))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "make", [adamw, lambda module: torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)]
)
def test_one_rank_trains_as_eager_pytorch(make: Any) -> None:
    known, module = model(), model()
    step = plan(module, make(module))
    losses = [step(x).detach() for x in batches()]
    assert torch.equal(torch.stack(losses), torch.stack(eager(known, make(known), batches())))
    for name, tensor in module.state_dict().items():
        own = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        assert torch.equal(own, known.state_dict()[name]), name


@pytest.mark.sampled(1)
@pytest.mark.parametrize("update", ["in-backward", "after"])
@pytest.mark.parametrize(("norm", "every"), [(0.1, 1), (None, 2), (0.1, 3)])
def test_clipped_and_accumulated_gradients_are_eager_pytorchs(
    norm: float | None, every: int, update: str
) -> None:
    known, module = model(), model()
    options = {} if norm is None else {"max_grad_norm": norm}
    step = plan(module, adamw(module), gradient_accumulation_steps=every, update=update, **options)
    optimizer, given = adamw(known), batches(7)
    for number, x in enumerate(given, 1):
        loss = squares(known(x))
        (loss / every if every > 1 else loss).backward()
        assert torch.equal(step(x), loss)
        if number % every and number < len(given):
            continue
        step.update()
        if norm is not None:
            assert torch.equal(step.grad_norm, nn.utils.clip_grad_norm_(known.parameters(), norm))
        optimizer.step()
        optimizer.zero_grad()
    for name, tensor in module.state_dict().items():
        own = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        assert torch.equal(own, known.state_dict()[name]), name


def test_a_tied_weight_is_spread_once() -> None:
    known, module = model(), model()
    for each in (known, module):
        each[3][0].weight = each[2][0].weight  # pyright: ignore
    step = plan(module, adamw(module))
    losses = [step(x).detach() for x in batches()]
    assert torch.equal(torch.stack(losses), torch.stack(eager(known, adamw(known), batches())))
    assert module[3][0].weight is module[2][0].weight  # pyright: ignore


def test_loaded_weights_are_gathered_anew() -> None:
    """A plan may keep full weights from one iteration to the next."""
    known, module = model(), model()
    optimizer, known_optimizer = adamw(module), adamw(known)
    step = plan(module, optimizer, budget="100%")
    first = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    saved = optimizer.state_dict()
    for x in batches():
        step(x)
    module.load_state_dict(first)
    optimizer.load_state_dict({**saved, "state": {}})
    losses = [step(x).detach() for x in batches()]
    assert torch.equal(torch.stack(losses), torch.stack(eager(known, known_optimizer, batches())))


@pytest.mark.scripts
def test_each_shape_has_a_plan() -> None:
    known, module = model(), model()
    step = plan(module, adamw(module))
    given = [x[: len(x) - 20 * (number % 2)] for number, x in enumerate(batches(6))]
    losses = [step(x).detach() for x in given]
    assert torch.equal(torch.stack(losses), torch.stack(eager(known, adamw(known), given)))
    assert len(step.plans) == 2


@pytest.mark.scripts
def test_an_evaluation_between_iterations_changes_nothing() -> None:
    known, module = model(), model()
    step, known_optimizer = plan(module, adamw(module)), adamw(known)
    for x in batches():
        assert torch.equal(step(x), eager(known, known_optimizer, [x])[0])
        module[3].eval()
        modes = [part.training for part in module.modules()]
        evaluated, predicted = step.evaluate(x[:20]), step.predict(x[:7])
        assert [part.training for part in module.modules()] == modes
        module[3].train()
        known.eval()
        with torch.no_grad():
            assert torch.equal(evaluated.loss, squares(known(x[:20])))
            assert torch.equal(predicted, known(x[:7]))
        known.train()
    assert all(isinstance(each, DTensor) for each in module.parameters())


def all_values(module: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    states = [each for row in optimizer.state_dict()["state"].values() for each in row.values()]
    tensors = [*module.state_dict().values(), *states]
    return [(each.full_tensor() if isinstance(each, DTensor) else each).clone() for each in tensors]


def equal(some: list[Tensor], others: list[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


def step_of_one_process(module: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    return plan(module, optimizer, shard=None, solver="auto", budget="100%")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("saver", "loader"), [(plan, plan), (plan, step_of_one_process), (step_of_one_process, plan)]
)
def test_a_checkpoint_is_loaded_with_and_without_shards(tmp_path: Path, saver: Any, loader: Any) -> None:
    """Values, random numbers, extra, and the following step are those of the run that saved."""
    module = model()
    optimizer = adamw(module)
    step = saver(module, optimizer)
    for x in batches()[:2]:
        step(x)
    step.save(tmp_path / "c", extra={"epoch": 3})
    saved, drawn = all_values(module, optimizer), torch.randn(3)
    step(batches()[2])

    torch.manual_seed(99)
    other = nn.Sequential(*model())
    for weight in other.parameters():
        nn.init.ones_(weight)
    other_optimizer = torch.optim.AdamW(other.parameters(), lr=1.0)
    loaded = loader(other, other_optimizer)
    loaded(batches()[3])
    assert loaded.load(tmp_path / "c") == {"epoch": 3}
    assert torch.equal(torch.randn(3), drawn)
    assert equal(all_values(other, other_optimizer), saved)
    loaded(batches()[2])
    assert equal(all_values(other, other_optimizer), all_values(module, optimizer))


def test_a_checkpoint_that_is_damaged_or_of_another_model_changes_nothing(tmp_path: Path) -> None:
    module = model()
    optimizer = adamw(module)
    step = plan(module, optimizer)
    step(batches()[0])
    with pytest.raises(memplan.MemplanError, match="there is no checkpoint"):
        step.load(tmp_path)
    step.save(tmp_path / "c")
    step(batches()[1])
    before = all_values(module, optimizer)
    (place,) = (tmp_path / "c").iterdir()
    for name in ("model.safetensors", "optimizer.safetensors"):
        content = (place / name).read_bytes()
        (place / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(memplan.MemplanError, match="is damaged"):
            step.load(tmp_path / "c")
        (place / name).write_bytes(content)
    wide = nn.Linear(6, 4)
    other = plan(wide, adamw(wide), budget="200%")
    with pytest.raises(memplan.MemplanError, match="is not in the"):
        other.load(tmp_path / "c")
    assert equal(all_values(module, optimizer), before)


def test_a_share_is_not_saved_as_extra(tmp_path: Path) -> None:
    module = model()
    step = plan(module, adamw(module))
    step(batches()[0])
    weight = next(module.parameters()).detach()
    assert isinstance(weight, DTensor)
    with pytest.raises(memplan.MemplanError, match=r"extra 'copy' has a DTensor.*full_tensor\(\)"):
        step.save(tmp_path, extra={"copy": {"deep": [weight]}})
    step.save(tmp_path, extra={"copy": weight.full_tensor()})
    assert step.load(tmp_path)["copy"].shape == (16, 6)


def test_after_a_failed_iteration_no_other_begins() -> None:
    module = model()
    step = plan(module, adamw(module))
    step(batches()[0])
    shards = step.plans[0].cycle._shards
    scatter = shards.ranks.scatter

    def fails(*_pairs: Any) -> None:
        raise OSError("the network is down")

    shards.ranks.scatter = fails
    # The second where the first job that the training waits for is a gather after the scatter.
    with pytest.raises((OSError, memplan.MemplanError), match="the network is down"):
        step(batches()[0])
    shards.ranks.scatter = scatter
    with pytest.raises(memplan.MemplanError, match="start all ranks anew, from a checkpoint"):
        step(batches()[0])
    with pytest.raises(RuntimeError, match="the process group has ended"):  # and not in the default one
        shards.ranks._row._sum_up([torch.zeros(1)])


def stepped(module: nn.Module) -> torch.optim.AdamW:
    optimizer = adamw(module)
    eager(module, optimizer, batches(1))
    return optimizer


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"ema": 0.9}, "shard= and ema are not supported together: leave ema out"),
    ({"cuda_graph": True}, "shard= and cuda_graph are not"),
    ({"rollback_on_error": True}, "shard= and rollback_on_error are not"),
    ({"verify": True}, "shard= and verify=True are not"),
    ({"scaler": torch.amp.GradScaler("cpu")}, "shard= and scaler are not"),
    ({"compile": True}, "shard= and compile are not"),
    ({"shard": "dp"}, "give a torch.distributed.device_mesh.DeviceMesh, or True"),
]


@pytest.mark.parametrize(("options", "line"), REFUSED)
def test_options_that_do_not_go_together(options: dict[str, Any], line: str) -> None:
    module = model()
    with pytest.raises(memplan.InputError, match=line):
        plan(module, adamw(module), **options)
    assert not any(isinstance(each, DTensor) for each in module.parameters())


def test_forward_alone_is_refused() -> None:
    with pytest.raises(memplan.InputError, match="shard= and train=False are not supported together"):
        memplan.optimize(model(), batches(1)[0], budget="100%", train=False, shard=True)


def test_a_budget_below_the_minimum_memory_gets_no_advice_that_is_refused() -> None:
    module, budget = model(), 1000
    for _ in range(2):  # then just below the minimum, which offloading could reach
        with pytest.raises(memplan.InfeasibleError, match="below the minimum memory of") as refused:
            plan(module, adamw(module), budget=budget)
        budget = refused.value.min_memory - 1
    assert "--machine" not in str(refused.value)


def test_weights_on_meta_are_refused() -> None:
    with torch.device("meta"):
        module = model()
    with pytest.raises(memplan.InputError, match=r"on meta, without values: give it some first, by to_empty"):
        plan(module, adamw(module), shard=DeviceMesh("cpu", [0]))


def test_no_optimizer_is_refused() -> None:
    with pytest.raises(memplan.InputError, match="shard= needs the optimizer, whose updates are in the plan"):
        plan(model())


def test_states_of_whole_weights_are_refused() -> None:
    module = model()
    with pytest.raises(memplan.InputError, match="the optimizer has states of whole weights: make a new one"):
        plan(module, stepped(module))


@pytest.mark.parametrize("names", [("dp", "tp"), ("shard", "replicate"), None])
def test_a_mesh_of_two_other_dimensions_is_refused(names: tuple[str, str] | None) -> None:
    """Of tensor parallelism, of replicas and shards in another order than FSDP2's, and without names."""
    module = model()
    mesh = DeviceMesh("cpu", [[0]], mesh_dim_names=names)
    line = r"has a mesh of 2 dimensions.*: of two, the first must be called replicate and the second shard"
    with pytest.raises(memplan.InputError, match=line) as refused:
        plan(module, adamw(module), shard=mesh)
    assert "\n" not in str(refused.value)


def test_the_dimension_of_a_mesh_is_taken_that_is_named() -> None:
    module = model()
    mesh = DeviceMesh("cpu", [[0]], mesh_dim_names=("pp", "dp"))
    with pytest.raises(memplan.InputError, match=r"of others give the one .* like mesh\['dp'\]"):
        plan(module, adamw(module), shard=mesh)
    plan(module, adamw(module), shard=mesh["dp"])


@pytest.mark.scripts
def test_one_replica_of_one_rank_trains() -> None:
    module = model()
    step = plan(
        module, adamw(module), shard=DeviceMesh("cpu", [[0]], mesh_dim_names=("dp_replicate", "dp_shard"))
    )
    assert step(*batches(1)).isfinite()
    weight = next(module.parameters())
    assert isinstance(weight, DTensor)
    assert weight.placements == (Replicate(), Shard(0))


def test_a_mesh_of_other_devices_is_refused() -> None:
    module = model()
    mesh = DeviceMesh("meta", [0])
    with pytest.raises(memplan.InputError, match=r"make the mesh by init_device_mesh\('cpu', \(ranks,\)\)"):
        plan(module, adamw(module), shard=mesh)


def test_two_ranks_on_one_device_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cpu, "unique_name", lambda _self: "GPU-1")
    monkeypatch.setattr(Ranks, "gathered", lambda _self, mine: [mine, mine])
    ended: list[Ranks] = []
    monkeypatch.setattr(Ranks, "_end_groups", lambda self: ended.append(self))
    with pytest.raises(memplan.InputError, match=r"ranks 0 and 1 both compute on one device, GPU-1: give"):
        Ranks(True, torch.device("cpu"))
    assert len(ended) == 1  # no group stays open


def test_a_wrapped_module_is_refused() -> None:
    module = model()
    with pytest.raises(memplan.InputError, match="give the module inside of DistributedDataParallel"):
        plan(DistributedDataParallel(module), adamw(module))


def test_a_module_that_is_spread_already_is_refused() -> None:
    module = model()
    optimizer = adamw(module)
    plan(module, optimizer)(batches()[0])
    with pytest.raises(memplan.InputError, match="its parameters are spread over ranks already"):
        plan(module, optimizer)


def made_anew(module: nn.Module) -> nn.Sequential:
    made = model()
    made.load_state_dict({name: whole(each) for name, each in module.state_dict().items()})
    return made


def test_a_direct_call_is_refused_and_the_training_goes_on() -> None:
    module = model()
    step = plan(module, adamw(module))
    with pytest.raises(memplan.MismatchError, match=r"Linear was called with weights .* step\.evaluate or"):
        module(batches()[0])
    step(batches()[0])
    step(batches()[0][:5])  # traced with the hooks there
    assert len(step.plans) == 2
    assert torch.equal(made_anew(module).eval()(batches()[1]), step.predict(batches()[1]))


@pytest.mark.scripts
def test_a_layer_that_is_trained_later_needs_a_new_optimizer() -> None:
    module = model()
    module[0].requires_grad_(requires_grad=False)
    step = plan(module, torch.optim.AdamW(module.parameters()))
    step(batches()[0])
    module[0].requires_grad_(requires_grad=True)
    with pytest.raises(memplan.MismatchError, match=r"more often than others.*Make the module and a new o"):
        step(batches()[1])
    anew = made_anew(module)
    plan(anew, adamw(anew))(batches()[1])


def with_weight(weight: Tensor) -> nn.Sequential:
    module = model()
    module.register_parameter("more", nn.Parameter(weight))
    return module


def test_parameters_without_rows_are_refused() -> None:
    module = with_weight(torch.ones(()))
    with pytest.raises(memplan.InputError, match=r"more has the shape \[\].*make it a parameter of one"):
        plan(module, adamw(module))


def test_parameters_that_are_not_contiguous_are_refused() -> None:
    module = with_weight(torch.ones(3, 4).t())
    with pytest.raises(memplan.InputError, match=r"more has strides \[1, 4\].*\.data\.contiguous\(\) first"):
        plan(module, adamw(module))
    module.more.data = module.more.data.contiguous()  # pyright: ignore
    plan(module, adamw(module))


def test_parameters_in_one_memory_are_refused() -> None:
    module = model()
    module.register_parameter("more", nn.Parameter(module[0].weight.data))  # pyright: ignore
    with pytest.raises(memplan.InputError, match=r"0\.weight and more lie in one memory"):
        plan(module, adamw(module))


def test_a_gradient_without_an_update_is_refused() -> None:
    module = model()
    optimizer = torch.optim.AdamW(list(module.parameters())[1:])
    with pytest.raises(memplan.InputError, match=r"0\.weight has a gradient and is none of the optimizer's"):
        plan(module, optimizer)


def test_a_replaced_parameter_is_refused() -> None:
    module = model()
    step = plan(module, adamw(module))
    module[0].weight = nn.Parameter(module.get_parameter("0.weight").detach().clone())
    with pytest.raises(memplan.MismatchError, match=r"0\.weight was replaced"):
        step(batches()[0])


class _Some:
    """Ranks of a group that is not there."""

    def __init__(self, rank: int, size: int) -> None:
        self.shard, self.shards = rank, size


@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 3))
@settings(max_examples=50, deadline=None)
def test_shares_are_those_of_torch_chunk(length: int, size: int, width: int) -> None:
    """The rows of all ranks are the tensor's; with their padding all shares are equally long."""
    form = Value(0, (length, width), (width, 1), 0, torch.float32, torch.device("cpu"))
    chunks = torch.arange(length).chunk(size)
    for rank in range(size):
        shards = Shards(_Some(rank, size))  # pyright: ignore
        share = shards.share(form)
        assert len(share.local) == (len(chunks[rank]) if rank < len(chunks) else 0)
        assert share.padded.nbytes * size == shards.padded_bytes(form)
        assert share.local.untyped_storage().data_ptr() == share.padded.untyped_storage().data_ptr()


def test_a_gradient_is_copied_row_by_row_before_its_padding() -> None:
    gradient = torch.arange(12.0).view(3, 4).t()
    made = spread_rows(gradient, 6)
    assert torch.equal(made, gradient)
    assert made.is_contiguous()
    whole = torch.as_strided(made, (6, 3), (3, 1))
    assert torch.equal(whole[4:], torch.zeros(2, 3))


def test_checksums_differ_if_one_element_does() -> None:
    one, other = model(), model()
    assert dict(checksums(one)) == dict(checksums(other))
    weight = other.get_parameter("0.weight")
    with torch.no_grad():
        weight[[0, 1]] = weight[[1, 0]]
    assert [name for name, each in checksums(other) if each != dict(checksums(one))[name]] == ["0.weight"]


def test_checksums_take_little_memory_and_see_each_place() -> None:
    """A weight is read in pieces: as numbers of eight bytes it would take sixteen times its memory."""
    module = nn.Linear(1024, 8192, bias=False)  # 32 MiB, eight pieces
    assert live_peak(lambda: list(checksums(module))).peak_bytes <= 80 * 2**20
    before = list(checksums(module))
    with torch.no_grad():
        module.weight[[0, -1]] = module.weight[[-1, 0]]
    assert list(checksums(module)) != before


def test_without_a_process_group_it_is_refused() -> None:
    dist.destroy_process_group()
    try:
        module = model()
        with pytest.raises(
            memplan.InputError, match="there is no process group: start the script by torchrun"
        ):
            plan(module, adamw(module))
    finally:
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)


def test_timed_iterations_have_a_span_for_each_step_on_this_rank() -> None:
    """Gathers and scatters are jobs of the queue between ranks, and no copies to or from the host."""
    module = model()
    node = Machine(host_capacity=2**30, links=Links(2e9, 2e9))
    step = plan(module, adamw(module), budget="45%", machine=node)
    step.plans[0].begin_timing()
    for x in batches():
        step(x)
    times = step.plans[0].end_timing()
    graph, rows = step.plan.graph, list(step.plan.schedule.rows())
    moved = {number for number, row in enumerate(rows) if row[0] in (Verb.OFFLOAD, Verb.PREFETCH)}
    between_ranks = {number for number in moved if rows[number][1] in graph.tensors.spread}
    ran = {
        number
        for number, (verb, target, _where) in enumerate(rows)
        if verb == Verb.COMPUTE and target not in graph.operations.comm
    }
    assert between_ranks
    assert moved - between_ranks
    assert {span.step for span in times.spans} == ran | (moved - between_ranks)
