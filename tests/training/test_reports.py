"""What a step tells of itself, and iterations that run out of memory in spite of their plan."""

from __future__ import annotations

import copy
import io
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import memplan
import pytest
import torch
from memplan.graphs.errors import InputError
from memplan.graphs.machine import Links, Machine
from memplan.runtime.device.cpu import Cpu
from memplan.training.progress import Told
from memplan.training.report import ENOUGH
from torch import Tensor, nn

INPUTS = torch.randn(16, 8)


def model() -> nn.Module:
    torch.manual_seed(0)
    inner = [nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.2)) for _ in range(4)]
    return nn.Sequential(nn.Linear(8, 32), *inner, nn.Linear(32, 1))


def loss_of(output: Tensor) -> Tensor:
    return output.square().mean()


def optimized(module: nn.Module, optimizer: Any, **options: Any) -> Any:
    chosen = {"solver": "rotor", "keep": False, "compare": False, "budget": "90%", **options}
    return memplan.optimize(module, INPUTS, loss_fn=loss_of, optimizer=optimizer, **chosen)


def adamw(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), 0.01, foreach=False)


def test_every_phase_is_told_and_timed() -> None:
    module, told = model(), list[Told]()
    step = optimized(module, adamw(module), progress=told.append, compare=True)
    phases = list(dict.fromkeys(each.phase for each in told))
    assert phases == ["trace", "measure", "solve", "compare"]
    measured = [each for each in told if each.phase == "measure" and each.done]
    assert measured[-1].done == measured[-1].total == len(step.plans[0].program.operations)
    step(INPUTS)
    step(INPUTS)
    step(INPUTS[:5])
    trained = [each for each in told if each.phase == "train"]
    assert [each.done for each in trained] == [1, 2, 3]
    assert all(each.loss is not None and f"loss {each.loss.item():.6g}" in str(each) for each in trained)
    report = step.report()
    assert [plan.shapes["0"] for plan in report.plans] == [(5, 8), (16, 8)]
    assert [plan.iterations for plan in report.plans] == [1, 2]
    for plan in report.plans:
        assert plan.setup.keys() == {"trace", "measure", "solve", "compare"}
        assert all(seconds > 0 for seconds in plan.setup.values())
        assert 0 < plan.predicted_peak <= (plan.budget or 0)
        assert plan.predicted_time > 0
        assert plan.peak is None  # nobody counts on the CPU
    assert report.plans[0].time is None
    assert (report.plans[1].time or 0) > 0
    lines = str(report).splitlines()
    assert len(lines) == 3
    assert "0:16×8" in lines[2]
    assert "trace" in lines[1]


def test_a_plan_is_there_to_be_read_and_saved(tmp_path: Path) -> None:
    module = model()
    step = optimized(module, adamw(module))
    plan = step.plan
    assert (plan.figures.time, plan.figures.peak) == (
        step.report().plans[0].predicted_time,
        step.report().plans[0].predicted_peak,
    )
    plan.save(tmp_path / "new" / "plan")
    graph = memplan.load_graph(tmp_path / "new" / "plan" / "graph.json")
    held = memplan.load_schedule(tmp_path / "new" / "plan" / "schedule.json", graph)
    assert memplan.simulate(graph, held.schedule, budget=plan.budget).figures == plan.figures
    step(INPUTS[:5])
    assert step.plan.graph is not plan.graph
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"file/plan: can't make the folder: Not a directory"):
        plan.save(tmp_path / "file" / "plan")


def test_a_plan_with_moves_reports_its_host_memory() -> None:
    module = model()
    options = {"machine": Machine(links=Links(1e9, 1e9)), "solver": "l2l", "undo": True}
    step = optimized(module, adamw(module), **options)
    step(INPUTS)
    plan = step.report().plans[0]
    states = 3 * sum(parameter.nbytes for parameter in module.parameters())
    assert plan.host > states
    assert plan.predicted_host > 0


def test_a_time_that_is_not_the_plan_s_is_told_once() -> None:
    module, told = model(), list[Told]()
    step = optimized(module, adamw(module), progress=told.append)
    book = step._book
    record = next(iter(book._records.values()))
    record.figures = replace(record.figures, time=1e-9)
    for _turn in range(ENOUGH + 5):
        step(INPUTS)
    lines = [str(each) for each in told if "against the plan's" in each.text]
    assert len(lines) == 1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_true_writes_a_line_where_there_is_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    module = model()
    for stream, expected in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        step = optimized(module, adamw(module), progress=True)
        step(INPUTS)
        assert ("memplan: trace" in stream.getvalue()) is expected
        assert ("memplan: train, 1, loss" in stream.getvalue()) is expected
        assert "\n" not in stream.getvalue()
    with pytest.raises(InputError, match="progress=3: give a function"):
        optimized(module, None, progress=3)


# ── out of memory ───────────────────────────────────────────────────────────────────────────────────


class Full:
    """The n-th call of a planned iteration finds no memory. calls: so far."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls, self.at = 0, set[int]()
        monkeypatch.setattr(Cpu, "launched", self.launched)

    def launched(self, _program: Any, operation: Any, _workspace: int) -> Callable[..., Any]:
        target = operation.call.target

        def run(*arguments: Any, **keywords: Any) -> Any:
            self.calls += 1
            if self.calls in self.at:
                raise torch.OutOfMemoryError("out of memory, on purpose")
            return target(*arguments, **keywords)

        return run


@pytest.mark.parametrize("moved", [False, True], ids=["device alone", "weights moved"])
@pytest.mark.parametrize("undo", [False, True], ids=["no undo", "undo"])
def test_an_iteration_without_memory_is_repeated_by_a_plan_for_less(
    moved: bool, undo: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it failed, twice running too, with the results of plain PyTorch."""
    module, plain = model(), model()
    optimizer, eager = adamw(module), adamw(plain)
    full = Full(monkeypatch)
    options: dict[str, Any] = {"undo": undo}
    if moved:
        options |= {
            "machine": Machine(links=Links(1e9, 1e9)),
            "solver": "l2l",
            "budget": "100%",
        }
    step = optimized(module, optimizer, **options)
    budget = step.plans[0].budget
    torch.manual_seed(1)
    step(INPUTS)
    each = full.calls
    full.at = {full.calls + (each - 2 if undo else 2)}
    with pytest.warns(UserWarning, match=r"repeated by a plan for 95% of the budget") as warned:
        step(INPUTS)
    assert warned[0].filename == __file__
    assert step.plans[0].budget == int(0.95 * budget)
    full.at = {full.calls + 1, full.calls + 3}
    with pytest.warns(UserWarning, match=r"90% of the budget"):
        step(INPUTS)
    assert step.plans[0].budget == int(0.9 * int(0.95 * budget))
    assert step.report().plans[0].iterations == 1
    step.recall()
    torch.manual_seed(1)
    for _turn in range(3):
        eager.zero_grad()
        loss_of(plain(INPUTS)).backward()
        eager.step()
    for ours, theirs in zip(module.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_what_can_not_be_repeated_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed between updates; another error; no plan for less. The last names it, and all is as before."""
    module = model()
    full = Full(monkeypatch)
    step = optimized(module, adamw(module), budget="100%", solver="store-all")
    step(INPUTS)
    before = copy.deepcopy(module.state_dict())
    full.at = {full.calls + 3}
    with pytest.raises(torch.OutOfMemoryError) as failed:
        step(INPUTS)
    assert any("there is no plan either" in note for note in failed.value.__notes__)
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    step(INPUTS)
    full.at = {full.calls + len(step.plans[0].program.operations) - 1}
    with pytest.raises(torch.OutOfMemoryError) as failed:
        step(INPUTS)
    assert any("load the weights" in note for note in failed.value.__notes__)
