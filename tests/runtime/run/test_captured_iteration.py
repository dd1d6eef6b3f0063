"""Iterations replayed as CUDA graphs, on a CPU that stands for a device with graphs: bit by bit what eager
gives, and what is refused. tests/runtime/run/test_captured_iteration_on_devices.py runs real ones.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import memplan
import pytest
import torch
from memplan.devices.absent_gpu.absent_gpu import absent_gpu
from memplan.devices.absent_gpu.capability import Capability
from memplan.devices.device.cpu import Cpu
from memplan.graphs.errors import MemplanError
from memplan.model.iteration import Iteration, Updates
from memplan.planner.baseline import baseline_schedule
from memplan.planner.schedule.sequence import in_default_mode, schedule_of
from memplan.profiling.profile.fake_build import fake_build
from memplan.runtime.run.captured_iteration import _why_not, check_capturable  # pyright: ignore[reportPrivateUsage]
from memplan.runtime.run.cycle import Terms
from memplan.steps.execute import PlannedStep
from memplan.tracing.trace import trace
from not_none import not_none
from replaying import Replaying
from torch import nn
from transfers import absent, in_order, seeded, unmeasured


def built() -> Iteration:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.4), nn.Linear(8, 3))
    return Iteration(module, (torch.randn(5, 6),), lambda output: output.square().mean())


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda p: torch.optim.AdamW(p, 1e-2, fused=True),
    "adam": lambda p: torch.optim.Adam(p, 1e-2, fused=True, amsgrad=True),
    "rate as a tensor": lambda p: torch.optim.AdamW(p, torch.tensor(1e-2), fused=True),
    "sgd": lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9, nesterov=True),
    "fused sgd": lambda p: torch.optim.SGD(p, torch.tensor(1e-2), momentum=0.9, fused=True),
}
SCHEDULES: dict[str, Callable[[int], float]] = {
    "constant": lambda _turn: 1e-2,
    "falling": lambda turn: 1e-2 * 0.9**turn,
    "a step": lambda turn: 1e-2 if turn < 4 else 1e-3,
}
TURNS = 8


def batches() -> list[torch.Tensor]:
    torch.manual_seed(7)
    return [torch.randn(5, 6) for _turn in range(TURNS)]


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def eagerly(make: Any, rates: Callable[[int], float]) -> tuple[list[torch.Tensor], dict[str, Any]]:
    iteration = built()
    module, optimizer = iteration.module, make(iteration.module.parameters())
    losses: list[torch.Tensor] = []
    for turn, batch in enumerate(batches()):
        torch.manual_seed(turn)
        set_rate(optimizer, rates(turn))
        loss = not_none(iteration.loss_fn)(module(batch))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses, {**module.state_dict(), **flat(optimizer)}


def flat(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    states = optimizer.state_dict()["state"]
    return {f"{i} {name}": x for i, row in states.items() for name, x in row.items() if x is not None}


def planned(make: Any, device: Cpu, *, undo: bool = False) -> tuple[Iteration, PlannedStep, Any]:
    iteration = built()
    optimizer = make(iteration.module.parameters())
    iteration = iteration._replace(updates=Updates(optimizer))
    program = trace(iteration)
    graph = unmeasured(program)
    terms = Terms(graph, device=device)
    step = PlannedStep(
        iteration, program, recomputing_dropout(program, graph), terms, undo=undo, cuda_graph=True
    )
    return iteration, step, optimizer


def recomputing_dropout(program: Any, graph: Any) -> Any:
    """A schedule in which the random operation runs twice."""
    (random,) = [i for i, operation in enumerate(program.operations) if operation.random]
    loss = next(i for i, each in enumerate(program.operations) if each.phase.name == "LOSS")
    order = [*range(loss + 1), random, *range(loss + 1, len(program.operations))]
    return schedule_of(graph, in_default_mode(order))


@pytest.mark.sampled(9)
@pytest.mark.parametrize("rates", SCHEDULES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_replays_are_eagers_bit_by_bit(name: str, rates: str) -> None:
    """The numbers that change are read from tensors, or the iteration runs without a graph."""
    device = Replaying()
    iteration, step, optimizer = planned(OPTIMIZERS[name], device)
    losses: list[torch.Tensor] = []
    for turn, batch in enumerate(batches()):
        torch.manual_seed(turn)
        set_rate(optimizer, SCHEDULES[rates](turn))
        losses.append(not_none(step.run((batch,)).loss))
    expected, states = eagerly(OPTIMIZERS[name], SCHEDULES[rates])
    assert all(map(torch.equal, losses, expected))  # they are copies: no replay has changed them
    found = {**iteration.module.state_dict(), **flat(optimizer)}
    assert found.keys() == states.keys()
    for name_, tensor in states.items():
        assert torch.equal(found[name_], tensor), name_
    by_tensor = isinstance(optimizer.param_groups[0]["lr"], torch.Tensor)
    if rates == "falling" and not by_tensor:
        assert (device.captured_count, device.replays) == (0, 0)
    elif rates == "a step" and not by_tensor:
        assert device.captured_count == 2
    else:  # of momentum the first step is another
        first = 2 if "sgd" in name else 1
        assert (device.captured_count, device.replays) == (1, TURNS - first)


def test_inputs_are_copied_to_where_the_graph_reads_them() -> None:
    device = Replaying()
    _iteration, step, _optimizer = planned(OPTIMIZERS["adamw"], device)
    first = [torch.ones(5, 6), torch.zeros(5, 6)]
    for batch in first * 2:
        step.run((batch,))
    assert device.replays == 3
    graphs = not_none(step._graphs)
    (static,) = not_none(graphs._static)
    assert static is not first[1]
    assert torch.equal(static, first[1])
    assert torch.equal(first[0], torch.ones(5, 6))


def test_weights_that_moved_are_captured_anew() -> None:
    device = Replaying()
    iteration, step, optimizer = planned(OPTIMIZERS["adamw"], device)
    losses: list[torch.Tensor] = []
    for turn, batch in enumerate(batches()):
        torch.manual_seed(turn)
        if turn == 4:
            iteration.module.get_parameter("0.weight").data = iteration.module.get_parameter(
                "0.weight"
            ).data.clone()
        losses.append(not_none(step.run((batch,)).loss))
    expected, states = eagerly(OPTIMIZERS["adamw"], SCHEDULES["constant"])
    assert all(map(torch.equal, losses, expected))
    assert device.captured_count == 2
    assert torch.equal(iteration.module.get_parameter("0.weight"), states["0.weight"])
    del optimizer


@pytest.mark.parametrize("undo", [False, True], ids=["refused", "taken back"])
def test_a_failure_after_a_replay(undo: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows how far it came: weights are refused, or those of before."""
    device = Replaying()
    iteration, step, _optimizer = planned(OPTIMIZERS["adamw"], device, undo=undo)
    for batch in batches()[:3]:
        step.run((batch,))
    before = {name: tensor.clone() for name, tensor in iteration.module.state_dict().items()}
    outcome = PlannedStep._outcome

    def fails(_step: PlannedStep, _results: Any) -> Any:
        raise RuntimeError("by choice")

    monkeypatch.setattr(PlannedStep, "_outcome", fails)
    with pytest.raises(RuntimeError, match="by choice"):
        step.run((batches()[3],))
    monkeypatch.setattr(PlannedStep, "_outcome", outcome)
    if undo:
        after = iteration.module.state_dict()
        assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
        step.run((batches()[3],))
    else:
        with pytest.raises(MemplanError, match="load"):
            step.run((batches()[3],))


def test_a_rate_that_always_changes_is_told_once() -> None:
    device = Replaying()
    _iteration, step, optimizer = planned(OPTIMIZERS["adamw"], device)
    with warnings.catch_warnings(record=True) as reported:
        for turn in range(30):
            set_rate(optimizer, 1e-2 / (1 + turn))
            step.run((batches()[0],))
    assert [str(each.message).partition(",")[0] for each in reported] == [
        "cuda_graph: 20 iterations ran without a graph"
    ]
    assert device.captured_count == 0


def test_an_operation_that_no_graph_takes_is_one_line() -> None:
    class Refusing(Replaying):
        def captured(self, run: Any, generators: Any, pool: Any) -> Any:
            raise RuntimeError("CUDA error: operation not permitted\nwhen stream is capturing")

    iteration, step, _optimizer = planned(OPTIMIZERS["adamw"], Refusing())
    step.run((batches()[0],))
    before = iteration.module.get_parameter("0.weight").clone()
    with pytest.raises(MemplanError, match="can't be captured: CUDA error: operation not permitted when"):
        step.run((batches()[1],))
    assert torch.equal(iteration.module.get_parameter("0.weight"), before)


# ── refusals ────────────────────────────────────────────────────────────────────────────────────────


def refused(iteration: Iteration, device: Cpu, schedule: Any = baseline_schedule, **terms: Any) -> str:
    program = trace(iteration)
    graph = unmeasured(program)
    with pytest.raises(MemplanError) as error:
        PlannedStep(
            iteration, program, schedule(graph), Terms(graph, device=device, **terms), cuda_graph=True
        )
    assert "\n" not in str(error.value)
    return str(error.value)


def with_updates(iteration: Iteration, make: Any) -> Iteration:
    return iteration._replace(updates=Updates(make(iteration.module.parameters())))


def test_the_cpu_has_none() -> None:
    assert "cpu has no CUDA graphs" in refused(
        with_updates(built(), OPTIMIZERS["sgd"]), Cpu(torch.device("cpu"))
    )


def test_gradients_as_results() -> None:
    assert "give the optimizer to the plan" in refused(built(), Replaying())


def test_transfers() -> None:
    iteration = seeded("perceptron", lambda p: torch.optim.AdamW(p, 1e-2, fused=True))
    said = refused(iteration, Replaying(), lambda graph: absent(graph, in_order(graph), random.Random(7)))
    assert "transfers or updates on the host" in said


def test_kernels_that_take_the_step_as_a_number() -> None:
    said = refused(with_updates(built(), lambda p: torch.optim.AdamW(p, 1e-2)), Replaying())
    assert "update takes the number of the step as a number: make the optimizer with fused=True" in said


def test_values_that_a_scaler_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cpu, "captures", True)
    iteration = built()
    with pytest.raises(
        MemplanError, match=r"cuda_graph: .* depends on a value, whether gradients are finite"
    ):
        memplan.optimize(
            iteration.module,
            iteration.inputs,
            loss_fn=iteration.loss_fn,
            optimizer=torch.optim.AdamW(iteration.module.parameters(), fused=True),
            scaler=torch.amp.GradScaler("cpu"),
            budget="100%",
            solver="store-all",
            cache=False,
            cuda_graph=True,
        )


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("which", torch.tensor([True, False, True]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).index_put((self.get_buffer("which"),), torch.zeros(4)).sum()


def test_masks() -> None:
    iteration = with_updates(Iteration(Masked(), (torch.randn(3, 4),)), OPTIMIZERS["sgd"])
    assert "waits for values of the device" in refused(iteration, Replaying())


class Numbers(nn.Module):
    """Computes on another device in the midst."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.linear(x) + torch.randn(4)).sum()


def test_tensors_elsewhere() -> None:
    """Noise that is drawn on the CPU and moved."""
    iteration = with_updates(Iteration(Numbers(), (torch.randn(3, 4),)), OPTIMIZERS["sgd"])
    program = trace(iteration)
    elsewhere = replace(program, device=torch.device("cuda", 0))
    with pytest.raises(MemplanError, match="takes or makes a tensor on cpu"):
        check_capturable(elsewhere, baseline_schedule(unmeasured(program)), Replaying(), counts=False)


def test_seeds_of_attention_are_made_on_the_device_in_a_capture() -> None:
    """A trace has them on the host: the fused kernels put them there where nothing is captured."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2, 4, 32, 64))

        def forward(self) -> torch.Tensor:
            heads = self.weight, self.weight, self.weight
            return nn.functional.scaled_dot_product_attention(*heads, dropout_p=0.1).square().mean()

    with absent_gpu(Capability(9, 0)):
        program = trace(fake_build(lambda: Iteration(Attention(), ())))
    made = [operation for operation in program.operations if "efficient" in str(operation.call.target)]
    assert len(made) == 2
    host = torch.device("cpu")
    on_card = [v._replace(device=host) if v.dtype == torch.int64 else v for v in program.values]
    program = replace(program, values=on_card)
    assert {value.device.type for value in program.values} == {"cpu", program.device.type}
    assert [_why_not(program, operation, counts=False) for operation in made] == [None, None]
