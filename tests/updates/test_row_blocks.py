"""Row blocks: large weights whose update takes one block of rows after the other, with the same bits."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import memplan
import pytest
import torch
from eager_loops import (
    adamw,
    assert_same,
    fused,
    mean_square,
    trained_eagerly,
    verified_with_fused_operations,
)
from hostile import Lateness
from memplan.devices.storage.offloaded import hold_of
from memplan.graphs.errors import InputError, MismatchError
from memplan.graphs.graph import Kind
from memplan.graphs.machine import Links, Machine
from memplan.model.clipping import Clipping
from memplan.model.iteration import Iteration, Updates
from memplan.planner.simulator.simulate import simulate
from memplan.profiling.compare.eager import run_eager
from memplan.program.graph import Cost, graph_of
from memplan.program.program import Program
from memplan.program.state_blocks import state_and_rows, whole_states
from memplan.runtime.run.cycle import Terms
from memplan.solvers.problem import Problem
from memplan.solvers.registry.run import solve
from memplan.steps.execute import PlannedStep
from memplan.tracing.trace import trace
from memplan.updates.catalogue import OPTIMIZERS
from memplan.updates.choice import OptimizerChoice, choice_of, updated
from memplan.updates.row_blocks import with_row_blocks
from memplan.updates.rules import in_rows
from recomputing import recomputing
from torch import Tensor, nn
from transfers import (
    MACHINE,
    absent,
    assert_equal,
    in_order,
    train_by_plan,
    train_eagerly,
    unmeasured,
    wandering,
    with_modes,
)

SIZE = 8192
"""Bytes; of some weights of the models below."""


class Words(nn.Module):
    """An embedding of an odd number of rows, a layer that may share its weight, and a large vector."""

    def __init__(self, rows: int = 301, width: int = 12, *, tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(rows, width)
        self.middle = nn.Linear(width, width)
        self.out = nn.Linear(width, rows, bias=False)
        self.scale = nn.Parameter(torch.randn(4099))
        if tied:
            self.out.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.middle(self.embedding(tokens)).tanh()
        return self.out(hidden) * self.scale[: hidden.shape[-1]].sum() + self.scale.square().mean()


def words(dtype: torch.dtype = torch.float32, *, tied: bool = False) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return Words(tied=tied).to(dtype), torch.randint(0, 301, (4, 8))


Make = Callable[..., torch.optim.Optimizer]


def momentum(weights: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, 1e-2, 0.9, weight_decay=0.1, nesterov=True)


def amsgrad(weights: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(weights, 1e-2, amsgrad=True, foreach=True)


def fused_momentum(weights: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, 1e-2, 0.9, fused=True)


def lion(weights: Any) -> torch.optim.Optimizer:
    return OPTIMIZERS["lion"].make(weights, lr=1e-2)


MAKES: dict[str, Make] = {
    "AdamW": adamw,
    "fused AdamW": fused,
    "SGD": momentum,
    "fused SGD": fused_momentum,
    "Adam": amsgrad,
    "Lion": lion,
}


def blocked(
    make: Make, dtype: torch.dtype = torch.float32, *, tied: bool = False, **updates: Any
) -> Iteration:
    module, tokens = words(dtype, tied=tied)
    given = {"block": SIZE, **updates}
    return Iteration(module, (tokens,), mean_square, Updates(make(module.parameters()), **given))


def blocks_of(program: Program) -> dict[str, list[tuple[int, int]]]:
    """The rows of each block, by the weight that is updated so."""
    found: dict[str, list[tuple[int, int]]] = {}
    for one in (one for one in program.operations if one.call.target is in_rows):
        rows = one.call.keywords["start"], one.call.keywords["stop"]
        found.setdefault(one.name.partition("/")[0], []).append(rows)
    return found


OPTIONS: dict[str, dict[str, Any]] = {
    "at once": {},
    "after": {"when": "after"},
    "clipped": {"clipping": Clipping(0.05)},
    "averaged": {"ema": 0.9},
    "tied": {"tied": True},
    "in buckets": {"bucket": 2048},
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", MAKES)
def test_schedules_that_move_everything_have_eagers_bits(name: str, options: str) -> None:
    """In all memories, with updates on the CPU; then some that move little."""
    given = OPTIONS[options]
    iteration = blocked(MAKES[name], **given)
    program = trace(iteration)
    assert len(blocks_of(program)) == (2 if options == "tied" else 3)
    rng = random.Random(f"{name} {options}")
    graph = with_modes(unmeasured(program), program, rng)
    schedules = (wandering, lambda graph, rng: absent(graph, in_order(graph), rng), recomputing)
    expected = train_eagerly(blocked(MAKES[name], **given), 3)
    for schedule in schedules:
        own = blocked(MAKES[name], **given)
        step = PlannedStep(own, program, schedule(graph, rng), Terms(graph, None, MACHINE))
        assert_equal(train_by_plan(own, step, 3), expected)


@pytest.mark.parametrize("masters", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", MAKES)
def test_other_dtypes_have_eagers_bits_or_are_refused(name: str, dtype: torch.dtype, masters: bool) -> None:
    if masters and dtype == torch.float64:
        pytest.skip("float64 has no masters")
    make, given = MAKES[name], {"masters": masters}
    try:
        program = trace(blocked(make, dtype, **given))
    except InputError as error:
        assert (name, dtype, masters) == ("fused SGD", torch.bfloat16, False)
        assert "rounds otherwise in blocks of rows on cpu: leave it out" in str(error)  # noqa: PT017
        return
    assert blocks_of(program)
    graph = unmeasured(program)
    own = blocked(make, dtype, **given)
    schedule = absent(graph, in_order(graph), random.Random(1))
    step = PlannedStep(own, program, schedule, Terms(graph, None, MACHINE))
    assert_equal(train_by_plan(own, step, 3), train_eagerly(blocked(make, dtype, **given), 3))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("number", range(8))
def test_on_a_late_device_within_the_planned_peak(number: int) -> None:
    rng, late = random.Random(number), Lateness(number)

    def wide() -> Iteration:
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(16, 128), nn.GELU(), nn.Linear(128, 128), nn.Tanh())
        updates = Updates(adamw(module.parameters()), block=2**14)
        return Iteration(module, (torch.randn(8, 16),), mean_square, updates)

    iteration, expected = wide(), wide()
    program = trace(iteration)
    assert blocks_of(program)
    graph = graph_of(program, [Cost(1.0, 2**16)] * len(program.operations), block_bytes=512)
    schedule = wandering(graph, rng) if number % 2 else absent(graph, in_order(graph), rng)
    device = late.device()
    with late.jobs():
        step = PlannedStep(iteration, program, schedule, Terms(graph, None, MACHINE, device=device))
        for turn in range(3):
            step.run(iteration.inputs)
            device.synchronize()
            if not turn:  # it has taken the tensors from the caller
                device.reset_peak()
        assert device.peak_bytes() <= simulate(graph, schedule, machine=MACHINE).figures.peak
        step.restore_to_device()
        device.synchronize()
    for _turn in range(3):
        run_eager(expected)
    own = iteration.module.state_dict()
    assert all(torch.equal(own[name], each) for name, each in expected.module.state_dict().items())


def test_blocks_are_aligned_equal_and_of_all_rows() -> None:
    program = trace(blocked(adamw))
    # 12 elements a row: 64 rows are 768 elements, 3 times 256. A vector's rows are its elements.
    assert blocks_of(program) == {
        "embedding.weight": [(0, 128), (128, 256), (256, 301)],
        "out.weight": [(0, 128), (128, 256), (256, 301)],
        "scale": [(0, 1536), (1536, 3072), (3072, 4099)],
    }
    graph = unmeasured(program)
    states = [name for name in graph.tensors.name if name.startswith("embedding.weight.exp_avg[")]
    assert states == [f"embedding.weight.exp_avg[{rows}]" for rows in ("0:128", "128:256", "256:301")]
    kinds = graph.tensors.kind[[graph.tensors.name.index(name) for name in states]]
    assert (kinds == Kind.OPTIMIZER_STATE).all()
    whole = whole_states(program)["embedding.weight", "exp_avg"]
    assert whole.form.shape == (301, 12)
    assert list(whole.blocks.values()) == [slice(0, 128), slice(128, 256), slice(256, 301)]
    assert state_and_rows("exp_avg") == ("exp_avg", None)


def test_an_update_needs_a_block_of_each_state() -> None:
    """An update at once has weight, gradient and two states; in blocks of an eighth 2 and 2/8 weights."""
    module = nn.Embedding(2048, 16)
    weight = module.weight.nbytes

    def least(block: int) -> float:
        updates = Updates(fused(module.parameters()), block=block)
        graph = unmeasured(trace(Iteration(module, (torch.arange(4),), mean_square, updates)))
        problem = Problem(graph, 5 * weight, MACHINE)
        settings = {"smallest": "0", "updates": str(8 if block else 1)}  # all of them
        found = solve("paged-optimizer", problem, settings=settings)
        return found.figures.least_budget / weight

    assert 4 < least(0) < 4.01
    assert 2.25 < least(weight // 8) < 2.26


@pytest.mark.parametrize("name", ["adafactor", "muon"])
def test_optimizers_of_whole_weights_are_refused(name: str) -> None:
    module = nn.Linear(128, 128, bias=False)
    updates = Updates(OPTIMIZERS[name].make(module.parameters()), block=SIZE)
    with pytest.raises(InputError, match=r"block_size=8,192: (Adafactor|Muon) updates a weight as a whole"):
        trace(Iteration(module, (torch.randn(2, 128),), mean_square, updates))


def test_of_several_optimizers_those_of_single_elements_have_blocks() -> None:
    module, tokens = words()
    matrices = [module.get_parameter("out.weight")]
    rest = [each for each in module.parameters() if each is not matrices[0]]
    muon = OPTIMIZERS["muon"].make(matrices)
    step = memplan.optimize(
        module, tokens, budget="100%", loss_fn=mean_square, optimizer=[muon, adamw(rest)], cache=False,
        block_size=SIZE, progress=False, verify=True,
    )  # fmt: skip
    assert blocks_of(step.plans[0].program).keys() == {"embedding.weight", "scale"}


@pytest.mark.parametrize(
    ("size", "line"),
    [
        (2**20, r"no weight is larger: give a smaller size, or leave it out"),
        (512, r"the smallest block of a weight here has 1,024 bytes: give as many, or leave it out"),
    ],
)
def test_sizes_without_blocks_are_refused(size: int, line: str) -> None:
    with pytest.raises(InputError, match=line):
        trace(blocked(adamw, block=size))


def test_the_program_without_updates_has_none() -> None:
    module, tokens = words()
    with pytest.raises(InputError, match="no weight is larger"):
        with_row_blocks(trace(Iteration(module, (tokens,), mean_square)), SIZE)


def test_with_several_threads_what_rounds_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads share a tensor at any element; Lion in bfloat16 rounds the last elements otherwise."""
    trace(blocked(lion, torch.bfloat16))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    with pytest.raises(InputError, match=r"rounds otherwise .* or call torch.set_num_threads\(1\)"):
        trace(blocked(lion, torch.bfloat16))
    trace(blocked(adamw))


# ── the tensors stay the user's ──────────────────────────────────────────────────────────────────────


def planned(module: nn.Module, optimizer: Any, tokens: Tensor, **options: Any) -> memplan.Step:
    given: dict[str, Any] = {
        "budget": "55%",
        "machine": Machine(links=Links(1e9, 1e9)),
        "solver": "memferry",
        "loss_fn": mean_square,
        "block_size": SIZE,
        "cache": False,
        "progress": False,
        "optimizer": optimizer,
    }
    return memplan.optimize(module, tokens, **(given | options))


def batches(count: int) -> list[Tensor]:
    torch.manual_seed(7)
    return [torch.randint(0, 301, (4, 8)) for _ in range(count)]


def blocks_moved(step: memplan.Step) -> int:
    """How many blocks of states the step's first plan has in its hands between iterations."""
    plan = step.plans[0]
    assert plan.cycle is not None
    wholes = whole_states(plan.program).values()
    return sum(plan.program.values[v].storage in plan.cycle.moved for each in wholes for v in each.blocks)


def test_a_loop_saves_loads_and_reads_what_it_would() -> None:
    (module, tokens), given = words(), batches(9)
    other = copy.deepcopy(module)
    own, eager = fused(module.parameters()), fused(other.parameters())
    step = planned(module, own, tokens)
    assert blocks_moved(step) >= 6
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
        own.state[module.get_parameter("embedding.weight")]["exp_avg"].mul_(2)
    module.load_state_dict(saved[0])
    own.load_state_dict(saved[1])
    for x in given[6:]:
        step(x)
    trained_eagerly(other, eager, given[6:])
    step.restore_to_device()
    assert_same((module, own), (other, eager))


def test_states_are_read_and_written_where_they_are() -> None:
    """In host memory, block by block; what is written there is in the next iteration."""
    (module, tokens), given = words(), batches(4)
    other = copy.deepcopy(module)
    own, eager = adamw(module.parameters()), adamw(other.parameters())
    step = planned(module, own, tokens)
    for x in given[:2]:
        step(x)
    trained_eagerly(other, eager, given[:2])
    states = [row[name] for row in own.state.values() for name in ("exp_avg", "exp_avg_sq")]
    held = [each for each in states if hold_of(each) is not None]
    assert any(hold is not None and hold.blocks is not None for hold in map(hold_of, held))
    with step.state_on_cpu():
        for name in ("embedding.weight", "out.weight"):
            there = own.state[module.get_parameter(name)]["exp_avg"].detach()
            expected = eager.state[other.get_parameter(name)]["exp_avg"]
            assert torch.equal(there, expected)
            for each in (there, expected):
                each[5:290].mul_(2)
    assert all(hold_of(each) is not None for each in held)  # none was brought back
    for x in given[2:]:
        step(x)
    trained_eagerly(other, eager, given[2:])
    step.restore_to_device()
    assert_same((module, own), (other, eager))


def test_batches_of_other_shapes_take_over() -> None:
    """Finished copies of equal blocks change hands: none is brought back to the device."""
    (module, tokens), given = words(), [x[: 4 - 2 * (n % 2)] for n, x in enumerate(batches(6))]
    other = copy.deepcopy(module)
    own, eager = adamw(module.parameters()), adamw(other.parameters())
    step = planned(module, own, tokens)
    for x in given:
        step(x)
    assert len(step.plans) == 2
    trained_eagerly(other, eager, given)
    step.restore_to_device()
    assert_same((module, own), (other, eager))


def test_a_plan_of_other_blocks_takes_over() -> None:
    (module, tokens), given = words(), batches(6)
    other = copy.deepcopy(module)
    own, eager = adamw(module.parameters()), adamw(other.parameters())
    steps = [planned(module, own, tokens, block_size=size) for size in (SIZE, None, 2 * SIZE // 3)]
    for x, step in zip(given, 2 * steps, strict=True):
        step(x)
    trained_eagerly(other, eager, given)
    steps[-1].restore_to_device()
    assert_same((module, own), (other, eager))


@pytest.mark.parametrize(
    "options", [{"master_weights": True}, {"ema": 0.9}, {"max_grad_norm": 0.1}, {"update": "after"}], ids=str
)
def test_it_is_verified_with_other_options(options: dict[str, Any]) -> None:
    module, tokens = words(torch.bfloat16 if "master_weights" in options else torch.float32)
    step = planned(module, adamw(module.parameters()), tokens, verify=True, **options)
    for x in batches(4):
        step(x)


@pytest.mark.parametrize("options", [{}, {"max_grad_norm": 0.1}, {"update": "after"}], ids=str)
def test_gradients_of_several_batches_are_summed(options: dict[str, Any]) -> None:
    """Sums are whole, like gradients; the last update is of what is left of an epoch."""
    (module, tokens), given = words(), batches(5)
    other = copy.deepcopy(module)
    own, eager = adamw(module.parameters()), adamw(other.parameters())
    step = planned(module, own, tokens, gradient_accumulation_steps=2, budget="70%", **options)
    assert blocks_moved(step) >= 6
    for x in given:
        step(x)
    step.update()
    trained_eagerly(other, eager, given, every=2, norm=options.get("max_grad_norm"))
    step.restore_to_device()
    rows = own.state_dict()["state"].values()
    assert all(row["gradient_sum"].shape == row["exp_avg"].shape for row in rows)
    assert_same((module, own), (other, eager))


@pytest.mark.scripts
def test_it_is_verified_with_fused_operations() -> None:
    step = verified_with_fused_operations(adamw, block_size=SIZE)
    assert blocks_of(step.plans[0].program)


def test_a_checkpoint_of_a_run_goes_on_with_other_blocks_and_without(tmp_path: Any) -> None:
    (module, tokens), given = words(), batches(9)
    other = copy.deepcopy(module)
    optimizer, eager = adamw(module.parameters()), adamw(other.parameters())
    for turn, size in enumerate((SIZE, None, 2 * SIZE // 3)):
        step = planned(module, optimizer, tokens, block_size=size)
        if turn:
            step.load(tmp_path / "run")
        for x in given[3 * turn : 3 * turn + 3]:
            step(x)
        step.save(tmp_path / "run")
        if turn < 2:
            module = words()[0]
            optimizer = adamw(module.parameters())
    step.restore_to_device()
    trained_eagerly(other, eager, given)
    assert_same((module, optimizer), (other, eager))


def test_what_does_not_go_with_it_is_refused() -> None:
    module, tokens = words()
    with pytest.raises(InputError, match=r"block_size= and cuda_graph=True .*: leave block_size= out"):
        planned(module, adamw(module.parameters()), tokens, cuda_graph=True)
    with pytest.raises(InputError, match=r"block_size= needs planned updates, and your loop steps"):
        planned(*words()[:1], None, words()[1])
    with pytest.raises(InputError, match=r"block_size"):
        planned(module, adamw(module.parameters()), tokens, block_size="4")


def test_a_choice_has_it() -> None:
    choice = OptimizerChoice("adamw", block_size=SIZE)
    assert choice_of(choice.document()) == choice
    iteration = blocked(adamw)._replace(updates=None)
    program, alone = (trace(updated(iteration, one)) for one in (choice, OptimizerChoice("adamw")))
    assert program.fingerprint == trace(updated(iteration, choice)).fingerprint != alone.fingerprint
    assert len(program.storages) > len(alone.storages)


def test_states_of_another_form_are_refused() -> None:
    module, tokens = words()
    optimizer = adamw(module.parameters())
    step = planned(module, optimizer, tokens)
    step(tokens)
    step.restore_to_device()
    for row in optimizer.state.values():
        if row["exp_avg"].dim() == 2:
            row["exp_avg"] = row["exp_avg"].t().contiguous().t()
    with pytest.raises(MismatchError, match=r"weight.exp_avg is .*; the plan is for"):
        step(tokens)
