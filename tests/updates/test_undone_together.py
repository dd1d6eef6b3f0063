"""Iterations with buckets and row blocks that are undone: early updates of a norm that exceeds, and failures.

All bits are those of a loop of eager PyTorch that clips, and of one without failures.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

import memplan
import pytest
import torch
from eager_loops import adamw, assert_same, fused, mean_square, trained_eagerly
from hostile import Lateness
from memplan.graphs.machine import Links, Machine
from memplan.model.clipping import Clipping
from memplan.model.iteration import Iteration, Updates
from memplan.planner.baseline import baseline_schedule
from memplan.planner.simulator.simulate import simulate
from memplan.profiling.compare.eager import run_eager
from memplan.program.graph import Cost, graph_of
from memplan.program.state_blocks import whole_states
from memplan.runtime.run.cycle import Terms
from memplan.steps.execute import PlannedStep
from memplan.tracing.trace import trace
from memplan.updates.buckets import buckets_of
from memplan.updates.early import undone_bytes, updates_early
from memplan.updates.updates import updates_weights
from torch import Tensor, nn
from transfers import MACHINE, absent, everything, in_order, unmeasured, wandering

Make = Callable[..., torch.optim.Optimizer]


def momentum(weights: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, 1e-2, 0.9)


def fused_momentum(weights: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, 1e-2, 0.9, nesterov=True, fused=True)


MAKES = (adamw, fused, momentum, fused_momentum)
TOGETHER: dict[str, dict[str, Any]] = {
    "buckets": {"bucket_size": "1KiB"},
    "rows": {"block_size": "1KiB"},
    "both": {"bucket_size": "1KiB", "block_size": "1KiB"},
}
PLANS: dict[str, dict[str, Any]] = {
    "kept": {"solver": "store-all", "machine": None},
    "moved": {"solver": "memferry", "budget": "80%"},
    "on the host": {"solver": "optimizer-offload"},
}


def layers() -> nn.Module:
    """Return a module whose weights have four blocks of rows, and whose biases and norms fit in a bucket."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(3)))


def batches(count: int) -> list[Tensor]:
    torch.manual_seed(7)
    return [torch.randn(8, 16) for _ in range(count)]


def planned(module: nn.Module, optimizer: Any, **options: Any) -> memplan.Step:
    given: dict[str, Any] = {
        "budget": "100%",
        "machine": Machine(links=Links(1e9, 1e9)),
        "loss_fn": mean_square,
        "cache": False,
        "progress": False,
        "optimizer": optimizer,
    }
    example = batches(1)[0].to(next(module.parameters()).dtype)
    return memplan.optimize(module, example, **(given | options))


@pytest.mark.sampled(8)
@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("together", TOGETHER)
@pytest.mark.parametrize("make", MAKES)
def test_early_updates_have_the_bits_of_a_loop_that_clips(
    make: Make, together: str, plan: str, every: int
) -> None:
    """Every other update is rolled back, and runs a second time with its coefficient."""
    module = layers()
    other = copy.deepcopy(module)
    own, eager = make(module.parameters()), make(other.parameters())
    options = {**PLANS[plan], **TOGETHER[together], "gradient_accumulation_steps": every}
    step = planned(module, own, early_updates=True, max_grad_norm=1.0, **options)
    program = step.plans[0].program
    assert updates_early(program)
    assert bool(buckets_of(program)) is (together != "rows")
    assert bool(whole_states(program)) is (together != "buckets")
    given = batches(6 * every)
    for number in range(6):
        norm = step.max_grad_norm = (1e9, 1e-2)[number % 2]
        part = given[number * every : (number + 1) * every]
        for x in part:
            step(x)
        trained_eagerly(other, eager, part, every=every, norm=norm)
    assert step.report().plans[0].rolled_back == 3
    step.restore_to_device()
    assert_same((module, own), (other, eager))


@pytest.mark.parametrize("together", TOGETHER)
@pytest.mark.parametrize("options", [{"ema": 0.9}, {"master_weights": True}, {"verify": True}], ids=str)
def test_early_updates_are_verified_with_other_options(together: str, options: dict[str, Any]) -> None:
    dtype = torch.bfloat16 if "master_weights" in options else torch.float32
    module = layers().to(dtype)
    more = {"verify": True, **PLANS["moved"], **options, **TOGETHER[together]}
    step = planned(module, adamw(module.parameters()), early_updates=True, max_grad_norm=1e-3, **more)
    for x in batches(3):
        step(x.to(dtype))
    assert step.report().plans[0].rolled_back == 3


def test_early_updates_of_a_scaled_loss_are_left_out_if_it_is_infinite() -> None:
    for together in TOGETHER.values():
        module = layers()
        options = {"scaler": torch.amp.GradScaler("cpu", init_scale=2.0**100), **PLANS["moved"], **together}
        step = planned(module, adamw(module.parameters()), early_updates=True, **options)
        before = copy.deepcopy(module.state_dict())
        step(1e20 * batches(1)[0])
        assert not step.optimizer_stepped
        step.restore_to_device()
        assert all(map(torch.equal, module.state_dict().values(), before.values()))


def test_the_clipped_gradients_of_a_second_pass_are_in_the_planned_memory() -> None:
    """A fused kernel clips all of a bucket at once, others one weight after the other; of rows only these."""
    found: dict[tuple[bool, str], int] = {}
    for make in (fused, adamw):
        for together in ("buckets", "rows"):
            module = layers()
            sizes: dict[str, Any] = {"bucket": 2**20} if together == "buckets" else {"block": 1024}
            updates = Updates(make(module.parameters()), clipping=Clipping(1.0), early=True, **sizes)
            program = trace(Iteration(module, (batches(1)[0],), mean_square, updates))
            each = (undone_bytes(program, one)[1] for one in program.operations if updates_weights(one))
            found[make is fused, together] = max(each)
    weights, biases = 2 * 64 * 16 * 4, (64 + 16) * 4
    assert found[True, "buckets"] == weights + biases
    assert found[False, "buckets"] == weights // 2
    assert found[True, "rows"] == found[False, "rows"] == 1024


# ── devices, and failures ────────────────────────────────────────────────────────────────────────────


def iteration(make: Make, together: str, **updates: Any) -> Iteration:
    """An iteration of which all tensors are whole blocks of 512 bytes."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(16, 128), nn.GELU(), nn.Linear(128, 128), nn.Tanh())
    sizes: dict[str, Any] = {"bucket": 2**14} if together != "rows" else {}
    sizes |= {"block": 2**14} if together != "buckets" else {}
    chosen = Updates(make(module.parameters()), **sizes, **updates)
    return Iteration(module, (torch.randn(8, 16),), mean_square, chosen)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("together", TOGETHER)
@pytest.mark.parametrize("number", range(4))
def test_on_a_late_device_both_passes_are_within_the_planned_peak(number: int, together: str) -> None:
    rng, late = random.Random(number), Lateness(number)
    own = iteration(adamw, together, clipping=Clipping(1e-3), early=True)
    expected = iteration(adamw, together, clipping=Clipping(1e-3))
    program = trace(own)
    costs = [Cost(1.0, 2**16)] * len(program.operations)
    graph = graph_of(program, costs, block_bytes=512)
    schedule = wandering(graph, rng) if number % 2 else absent(graph, in_order(graph), rng)
    device = late.device()
    with late.jobs():
        step = PlannedStep(own, program, schedule, Terms(graph, None, MACHINE, device=device))
        for turn in range(3):
            assert step.run(own.inputs).rolled_back
            device.synchronize()
            if not turn:  # it has taken the tensors from the caller
                device.reset_peak()
        assert device.peak_bytes() <= simulate(graph, schedule, machine=MACHINE).figures.peak
        step.restore_to_device()
        device.synchronize()
    for _turn in range(3):
        run_eager(expected)
    weights = own.module.state_dict()
    assert all(torch.equal(weights[name], each) for name, each in expected.module.state_dict().items())


class Fault:
    """Raises an error at one of the calls from now on."""

    def __init__(self) -> None:
        self.left: int | None = None

    def around(self, target: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(target)
        def run(*arguments: Any, **keywords: Any) -> Any:
            if self.left is not None:
                self.left -= 1
                if not self.left:
                    raise torch.OutOfMemoryError("out of memory, on purpose")
            return target(*arguments, **keywords)

        return run


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", ["kept", "moved"])
@pytest.mark.parametrize("together", TOGETHER)
@pytest.mark.parametrize("make", [adamw, fused_momentum])
def test_with_undo_a_failure_anywhere_leaves_what_was_before(make: Make, together: str, kind: str) -> None:
    """Also the first iteration, which makes the states."""
    expected = iteration(make, together)
    states = [everything(expected)]
    for _turn in range(3):
        run_eager(expected)
        states.append(everything(expected))
    own, fault, rng = iteration(make, together), Fault(), random.Random(together)
    program = trace(own)
    graph = unmeasured(program)
    calls = [
        one._replace(call=replace(one.call, target=fault.around(one.call.target)))
        for one in program.operations
    ]
    program = replace(program, operations=calls)
    schedule = absent(graph, in_order(graph), rng, share=0.9) if kind == "moved" else baseline_schedule(graph)
    step = PlannedStep(own, program, schedule, Terms(graph, None, MACHINE), undo=True)
    for turn in range(3):
        for place in sorted(rng.sample(range(1, len(calls) + 1), 4)):
            fault.left = place
            with pytest.raises(torch.OutOfMemoryError, match="on purpose"):
                step.run(own.inputs)
            assert_equal(everything(own), states[turn])
        fault.left = None
        step.run(own.inputs)
    assert_equal(everything(own), states[3])


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name
