"""Buckets: small weights that move and are updated together, bit by bit as each alone."""

from __future__ import annotations

import copy
import random
from typing import Any

import memplan
import pytest
import torch
from eager_loops import assert_same, mean_square, trained_eagerly, verified_with_fused_operations
from hostile import Lateness, blocks
from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.graphs.errors import InputError, MismatchError
from memplan.graphs.graph import Kind
from memplan.graphs.machine import Links, Machine
from memplan.model.clipping import Clipping
from memplan.model.iteration import Iteration, Updates
from memplan.planner.simulator.simulate import simulate
from memplan.profiling.compare.eager import run_eager
from memplan.program.graph import Cost, graph_of
from memplan.program.program import Program
from memplan.runtime.run.cycle import Cycle, Terms
from memplan.steps.execute import PlannedStep
from memplan.tracing.trace import trace
from memplan.updates.buckets import buckets_of, with_buckets
from memplan.updates.choice import OptimizerChoice, choice_of, updated
from memplan.updates.parts import adding, updating
from memplan.updates.rules import in_bucket
from memplan.updates.sums import adds_up
from memplan.updates.updates import updates_weights
from recomputing import recomputing
from torch import nn
from transfers import (
    MACHINE,
    absent,
    adamw,
    assert_equal,
    in_order,
    seeded,
    train_by_plan,
    train_eagerly,
    unmeasured,
    wandering,
    with_modes,
)

SIZE = 2**20


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in parameters if p.requires_grad], 1e-2, 0.9, weight_decay=0.1)


def plain(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in parameters if p.requires_grad], 1e-2)


def fused(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in parameters if p.requires_grad], 1e-2, fused=True)


def bucketed(name: str, make: Any, size: int = SIZE, **updates: Any) -> Iteration:
    iteration = seeded(name, make)
    assert iteration.updates is not None
    return iteration._replace(updates=iteration.updates._replace(bucket=size, **updates))


def together(program: Program) -> list[int]:
    """How many weights each operation of the program updates at once."""
    found = [one.call for one in program.operations if updates_weights(one)]
    return [len(call.arguments) - 2 if call.target is in_bucket else 1 for call in found]


def amsgrad(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam([p for p in parameters if p.requires_grad], 1e-2, amsgrad=True, fused=True)


def momentum_fused(parameters: Any) -> torch.optim.Optimizer:
    given = [p for p in parameters if p.requires_grad]
    return torch.optim.SGD(given, 1e-2, 0.9, nesterov=True, fused=True)


MAKES = (adamw, momentum, plain, fused, amsgrad, momentum_fused)
OPTIONS: dict[str, dict[str, Any]] = {
    "at once": {},
    "after": {"when": "after"},
    "clipped": {"clipping": Clipping(0.05)},
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(
    "name", ["perceptron", "norms", "frozen", "in_place", "transformer", "llama", "gpt2"]
)
def test_schedules_that_move_everything_have_eagers_bits(name: str, options: str) -> None:
    """In all memories, with updates on the CPU; then some that move little."""
    make = MAKES[(len(name) + len(options)) % len(MAKES)]
    iteration = bucketed(name, make, **OPTIONS[options])
    program = trace(iteration)
    assert max(together(program)) > 1
    rng = random.Random(f"{name} {options}")
    graph = with_modes(unmeasured(program), program, rng)
    schedules = (wandering, lambda graph, rng: absent(graph, in_order(graph), rng), recomputing)
    expected = train_eagerly(bucketed(name, make, **OPTIONS[options]), 3)
    for schedule in schedules:
        own = bucketed(name, make, **OPTIONS[options])
        step = PlannedStep(own, program, schedule(graph, rng), Terms(graph, None, MACHINE))
        assert_equal(train_by_plan(own, step, 3), expected)


def in_blocks(number: int) -> Iteration:
    """An iteration of which all tensors are whole blocks."""
    torch.manual_seed(0)
    iteration = blocks()
    clipping = Clipping(0.05) if number % 2 else None
    return iteration._replace(
        updates=Updates(adamw(iteration.module.parameters()), clipping=clipping, bucket=SIZE)
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("number", range(8))
def test_on_a_late_device_within_the_planned_peak(number: int) -> None:
    rng = random.Random(number)
    iteration = in_blocks(number)
    program = trace(iteration)
    graph = graph_of(program, [Cost(1.0, 2048)] * len(program.operations), block_bytes=512)
    schedule = wandering(graph, rng) if number % 4 < 2 else absent(graph, in_order(graph), rng)
    late = Lateness(number)
    device = late.device()
    with late.jobs():
        step = PlannedStep(iteration, program, schedule, Terms(graph, None, MACHINE, device=device))
        for turn in range(3):
            torch.manual_seed(turn)
            step.run(iteration.inputs)
            device.synchronize()
            if not turn:  # it has taken the tensors from the caller
                device.reset_peak()
        assert device.peak_bytes() <= simulate(graph, schedule, machine=MACHINE).figures.peak
        step.restore_to_device()
        device.synchronize()
    expected = in_blocks(number)
    for turn in range(3):
        torch.manual_seed(turn)
        run_eager(expected)
    own = iteration.module.state_dict()
    assert all(torch.equal(own[name], each) for name, each in expected.module.state_dict().items())


def test_a_bucket_has_one_tensor_of_each_kind_and_one_update() -> None:
    module = nn.Sequential(*(nn.Linear(32, 32) for _ in range(4)))
    updates = Updates(adamw(module.parameters()), bucket=5000)
    program = trace(Iteration(module, (torch.randn(2, 32),), lambda output: output.sum(), updates))
    assert together(program) == [2, 2, 2, 2]
    graph = unmeasured(program)
    for kind in (Kind.PARAMETER, Kind.OPTIMIZER_STATE, Kind.PARAMETER_GRADIENT):
        assert int((graph.tensors.kind == kind).sum()) == 4
    assert "3.weight..3.bias.states" in graph.tensors.name or "3.bias..3.weight.states" in graph.tensors.name
    assert len(buckets_of(program)) == 8


@pytest.mark.parametrize(
    ("size", "expected"), [(SIZE, [4, 4]), (4096 + 128 + 1, [2, 2, 2, 2]), (4000, [2, 2, 1, 1, 1, 1])]
)
def test_buckets_end_with_their_layer_and_their_size(size: int, expected: list[int]) -> None:
    """The largest leaves weights out that have as many bytes."""
    layer = lambda: nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))  # noqa: E731
    module = nn.Sequential(layer(), layer())
    updates = Updates(adamw(module.parameters()), bucket=size)
    program = trace(Iteration(module, (torch.randn(2, 32),), lambda output: output.sum(), updates))
    assert sorted(together(program), reverse=True) == expected


def test_without_two_alike_it_is_refused() -> None:
    with pytest.raises(InputError, match=r"bucket_size=64: no two weights of one layer are smaller"):
        trace(bucketed("perceptron", adamw, 64))


def test_groups_of_other_numbers_have_buckets_of_their_own() -> None:
    module = nn.Sequential(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))
    weights, biases = [[p for p in module.parameters() if p.dim() == n] for n in (2, 1)]
    groups = [{"params": weights}, {"params": biases, "weight_decay": 0.0}]
    updates = Updates(torch.optim.AdamW(groups, 1e-2, foreach=False), bucket=SIZE)
    program = trace(Iteration(module, (torch.randn(2, 8),), lambda output: output.sum(), updates))
    assert together(program) == [2, 2]


class Shifted(nn.Module):
    """A view that names its offset in the weight's memory, which a bucket would change."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Parameter(torch.randn(8, 8)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.first.as_strided((8, 4), (8, 1), 2) @ self.second[:4] @ self.third


def test_a_weight_of_which_a_view_names_the_offset_stays_alone() -> None:
    module = Shifted()
    updates = Updates(adamw(module.parameters()), bucket=SIZE)
    iteration = Iteration(module, (torch.randn(2, 8),), lambda output: output.sum(), updates)
    assert sorted(together(trace(iteration))) == [1, 2]


# ── the tensors stay the user's ──────────────────────────────────────────────────────────────────────


def stack() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.LayerNorm(16)) for _ in range(4)))


def planned(module: nn.Module, optimizer: Any, **options: Any) -> memplan.Step:
    given: dict[str, Any] = {
        "budget": "100%",
        "machine": Machine(links=Links(1e9, 1e9)),
        "solver": "optimizer-offload",
        "loss_fn": mean_square,
        "bucket_size": "1MB",
        "cache": False,
        "progress": False,
        "optimizer": optimizer,
    }
    batch = torch.randn(8, 16, dtype=next(module.parameters()).dtype)
    return memplan.optimize(module, batch, **(given | options))


def batches(count: int) -> list[torch.Tensor]:
    torch.manual_seed(7)
    return [torch.randn(8, 16) for _ in range(count)]


def test_a_loop_saves_loads_and_reads_what_it_would() -> None:
    """A loop has each tensor in its own memory; loaded weights and states are taken from there."""
    module, given = stack(), batches(9)
    other = copy.deepcopy(module)
    own, eager = fused(module.parameters()), fused(other.parameters())
    step = planned(module, own)
    assert buckets_of(step.plans[0].program)
    for x in given[:3]:
        step(x)
    trained_eagerly(other, eager, given[:3])
    step.restore_to_device()
    assert_same((module, own), (other, eager))
    tensors = [*module.parameters(), *(row["exp_avg"] for row in own.state.values())]
    assert len({each.untyped_storage().data_ptr() for each in tensors}) == len(tensors)
    assert all(each.untyped_storage().nbytes() == each.nbytes for each in tensors)
    saved = copy.deepcopy((module.state_dict(), own.state_dict()))
    for x in given[3:6]:
        step(x)
    with torch.no_grad():
        module[0][0].bias.mul_(2)  # pyright: ignore
    module.load_state_dict(saved[0])
    own.load_state_dict(saved[1])
    for x in given[6:]:
        step(x)
    trained_eagerly(other, eager, given[6:])
    step.restore_to_device()
    assert_same((module, own), (other, eager))


SUMMED: dict[str, dict[str, Any]] = {
    "at once": {},
    "clipped": {"max_grad_norm": 0.1},
    "after": {"update": "after"},
    "in pieces": {"bucket_size": "300B"},
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("solver", ["store-all", "optimizer-offload", "memferry"])
@pytest.mark.parametrize("options", SUMMED)
@pytest.mark.parametrize("make", MAKES)
def test_gradients_of_several_batches_are_summed(make: Any, options: str, solver: str) -> None:
    """The last update is of what is left of an epoch; then training goes on."""
    module, given = stack(), batches(13)
    other = copy.deepcopy(module)
    own, eager = make(module.parameters()), make(other.parameters())
    more = SUMMED[options] | {"budget": "80%"} if solver == "memferry" else SUMMED[options]
    step = planned(module, own, gradient_accumulation_steps=3, solver=solver, verify=True, **more)
    assert buckets_of(step.plans[0].program)
    for part in (given[:8], given[8:]):
        for x in part:
            step(x)
        step.update()
        trained_eagerly(other, eager, part, every=3, norm=SUMMED[options].get("max_grad_norm"))
    step.restore_to_device()
    assert_same((module, own), (other, eager))


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("masters", [False, True])
def test_sums_of_half_precision(masters: bool, wide: bool) -> None:
    options: dict[str, Any] = {"master_weights": masters}
    if wide:
        options["accumulate_dtype"] = torch.float32
    module = stack().to(torch.bfloat16)
    step = planned(module, adamw(module.parameters()), gradient_accumulation_steps=2, verify=True, **options)
    (sums,) = {value.dtype for value in _sums(step)}
    assert sums == (torch.float32 if wide else torch.bfloat16)
    for x in batches(4):
        step(x.to(torch.bfloat16))


def _sums(step: memplan.Step) -> list[Any]:
    program = step.plans[0].program
    return [program.values[v] for (_parameter, state), v in program.states.items() if state == "gradient_sum"]


def test_a_bucket_of_sums_is_one_tensor_to_which_all_is_added_at_once() -> None:
    module = stack()
    step = planned(module, momentum(module.parameters()), gradient_accumulation_steps=2, max_grad_norm=1.0)
    program = step.plans[0].program
    adds = [one for one in program.operations if adds_up(one)]
    assert len(adds) == len({value.storage for value in _sums(step)}) == 4
    assert all(len(one.call.arguments) == 1 + 4 for one in adds)
    assert {value.storage for value in _sums(step)} <= buckets_of(program)
    assert buckets_of(adding(program).program) == buckets_of(updating(program).program) == buckets_of(program)


def test_plans_of_an_update_hand_buckets_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """From its second batch on nothing is copied between two iterations."""
    module = stack()
    step = planned(module, adamw(module.parameters()), gradient_accumulation_steps=2)
    given = batches(8)
    step(given[0])
    placed = list[int]()
    for name in ("put", "make"):
        monkeypatch.setattr(Cycle, name, lambda _cycle, storage, *_rest: placed.append(storage))
    for x in given[1:]:
        step(x)
    assert not placed


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_random_models_sizes_and_numbers_of_batches(data: st.DataObject) -> None:
    widths = data.draw(st.lists(st.integers(1, 24), min_size=1, max_size=4))
    every = data.draw(st.integers(2, 4))
    make = data.draw(st.sampled_from(MAKES))
    norm = data.draw(st.sampled_from([None, 0.1]))
    torch.manual_seed(0)
    sizes = list(zip([16, *widths], [*widths, 1], strict=True))
    module = nn.Sequential(*(nn.Sequential(nn.Linear(*size), nn.Tanh()) for size in sizes))
    other, trained = copy.deepcopy(module), batches(data.draw(st.integers(1, 2 * every)))
    own, eager = make(module.parameters()), make(other.parameters())
    options: dict[str, Any] = {} if norm is None else {"max_grad_norm": norm}
    size = data.draw(st.integers(65, 2000))
    try:
        step = planned(
            module, own, bucket_size=f"{size}B", gradient_accumulation_steps=every, verify=False, **options
        )
    except InputError as error:
        assert "no two weights of one layer" in str(error)  # noqa: PT017
        return
    for x in trained:
        step(x)
    step.update()
    trained_eagerly(other, eager, trained, every=every, norm=norm)
    step.restore_to_device()
    assert_same((module, own), (other, eager))


def test_batches_of_other_shapes_take_over() -> None:
    module, given = stack(), [x[: 8 - 4 * (n % 2)] for n, x in enumerate(batches(6))]
    other = copy.deepcopy(module)
    own, eager = adamw(module.parameters()), adamw(other.parameters())
    step = planned(module, own)
    for x in given:
        step(x)
    assert len(step.plans) == 2
    trained_eagerly(other, eager, given)
    step.restore_to_device()
    assert_same((module, own), (other, eager))


@pytest.mark.parametrize("options", [{"master_weights": True}, {"ema": 0.9}, {"max_grad_norm": 0.1}], ids=str)
def test_it_is_verified_with_other_options(options: dict[str, Any]) -> None:
    dtype = torch.bfloat16 if "master_weights" in options else torch.float32
    module = stack().to(dtype)
    step = planned(module, adamw(module.parameters()), verify=True, **options)
    for x in batches(4):
        step(x.to(dtype))


@pytest.mark.scripts
def test_it_is_verified_with_fused_operations() -> None:
    graph = verified_with_fused_operations(adamw, bucket_size=SIZE).plan.graph
    assert any("..0.0.bias/update" in name for name in graph.operations.name)


def test_a_checkpoint_of_a_run_goes_on(tmp_path: Any) -> None:
    module, given = stack(), batches(6)
    other = copy.deepcopy(module)
    own, eager = adamw(module.parameters()), adamw(other.parameters())
    step = planned(module, own)
    for x in given[:3]:
        step(x)
    step.save(tmp_path / "run")
    after = stack()
    optimizer = adamw(after.parameters())
    goes_on = planned(after, optimizer)
    goes_on.load(tmp_path / "run")
    for x in given[3:]:
        goes_on(x)
    goes_on.restore_to_device()
    trained_eagerly(other, eager, given)
    assert_same((after, optimizer), (other, eager))


def test_cuda_graphs_do_not_go_with_it() -> None:
    module = stack()
    with pytest.raises(InputError, match=r"bucket_size= and cuda_graph=True .*: leave bucket_size= out"):
        planned(module, adamw(module.parameters()), cuda_graph=True)


def test_it_needs_planned_updates() -> None:
    with pytest.raises(InputError, match=r"bucket_size= needs planned updates, and your loop steps"):
        planned(stack(), None)


@pytest.mark.parametrize("size", ["4", 0, "-1MB", "many"])
def test_sizes_that_are_none(size: Any) -> None:
    module = stack()
    with pytest.raises(InputError, match="bucket_size"):
        planned(module, adamw(module.parameters()), bucket_size=size)


def test_a_choice_has_it() -> None:
    choice = OptimizerChoice("adamw", bucket_size=2**20)
    assert choice_of(choice.document()) == choice
    program = trace(updated(seeded("perceptron"), choice))
    alone = trace(updated(seeded("perceptron"), OptimizerChoice("adamw")))
    assert program.fingerprint == trace(updated(seeded("perceptron"), choice)).fingerprint
    assert program.fingerprint != alone.fingerprint
    assert len(program.storages) < len(alone.storages)


def test_tensors_of_another_form_are_refused() -> None:
    iteration = bucketed("perceptron", adamw)
    program = trace(iteration)
    graph = unmeasured(program)
    step = PlannedStep(
        iteration, program, absent(graph, in_order(graph), random.Random(1)), Terms(graph, None, MACHINE)
    )
    assert step.cycle is not None
    name = next(iter(program.parameters))
    weight = iteration.module.get_parameter(name)
    weight.data = weight.data.t().contiguous().t() if weight.dim() == 2 else weight.data[::2]
    with pytest.raises(MismatchError):
        step.run(iteration.inputs)


def test_the_program_without_updates_has_none() -> None:
    with pytest.raises(InputError, match="no two weights"):
        with_buckets(trace(seeded("perceptron")), SIZE)
