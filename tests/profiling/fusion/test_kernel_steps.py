"""Steps with compiled operations: eager's training but for roundings, within the plan."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import memplan
import pytest
import torch
from memplan.graphs.errors import DifferenceError, InputError
from memplan.model.iteration import with_targets
from memplan.profiling.compare.peaks import peaks
from memplan.profiling.fusion import kernel as compiling
from memplan.profiling.fusion.choice import Chosen, chosen
from memplan.profiling.fusion.kernel import Kernel
from memplan.program.program import Program
from memplan.training.plans import budgeted
from ranks import alone
from torch import Tensor, nn
from torch.nn import functional

ROWS, WIDTH = 1024, 64
STEPS = 20


class Block(nn.Module):
    """Pointwise operations for a kernel that pays on any machine, dropout, and buffers that change."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.statistics, self.dropout = nn.BatchNorm1d(WIDTH), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(x)
        y = functional.gelu(y, approximate="tanh").square() * 0.5 + 1
        return x + self.dropout(self.statistics(self.down(y)))


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(x)
        return self.down(functional.gelu(y, approximate="tanh").square() * 0.5 + 1)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(), nn.Linear(WIDTH, 8))


def batch(number: int, rows: int = ROWS) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(number)
    return torch.randn(rows, WIDTH, generator=source), torch.randint(8, (rows,), generator=source)


def optimized(module: nn.Module, keep: Path | bool, **more: Any) -> Any:
    x, labels = batch(0)
    given: dict[str, Any] = {"budget": "85%", "solver": "rotor", "compile": True} | more
    return memplan.optimize(module, x, targets=labels, loss_fn=functional.cross_entropy, cache=keep, **given)


def momentum(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)


def eager(module: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    torch.manual_seed(2)
    losses: list[Tensor] = []
    for number in range(STEPS):
        x, labels = batch(number)
        loss = functional.cross_entropy(module(x), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tmp_path_factory.mktemp("plans")


@pytest.fixture(scope="module")
def trained(plans: Path) -> tuple[Any, list[Tensor], nn.Module]:
    """A step that has trained, and what it trained."""
    module = model()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    step = optimized(module, plans, budget="65%", optimizer=momentum(module))
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    torch.manual_seed(2)
    losses: list[Tensor] = []
    for number in range(STEPS):
        x, labels = batch(number)
        losses.append(step(x, targets=labels).detach())
    return step, losses, module


@pytest.mark.scripts
def test_losses_are_eagers_but_for_roundings(trained: tuple[Any, list[Tensor], nn.Module]) -> None:
    step, losses, module = trained
    assert step.plan.graph.source["compiled"]
    assert any("fused" in operation.name for operation in step.plans[0].program.operations)
    uncompiled = model()
    expected = eager(uncompiled, momentum(uncompiled))
    assert float(expected[-1]) < float(expected[0]) - 0.1
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=0)
    for name, tensor in uncompiled.state_dict().items():
        torch.testing.assert_close(module.state_dict()[name], tensor, rtol=1e-3, atol=1e-4)


@pytest.mark.scripts
def test_the_peak_is_the_plans(trained: tuple[Any, list[Tensor], nn.Module]) -> None:
    step = trained[0]
    planned = step.plan.figures.peak
    assert planned <= step.plan.budget
    assert 0.8 * planned < peaks(step.plans[0], with_targets((batch(0)[0],), batch(0)[1])).device <= planned


SECOND = """
import sys
from pathlib import Path
sys.path += sys.argv[2:]
import torch
from memplan.profiling.fusion import choice
from memplan.training.plans import budgeted, front_end
from test_kernel_steps import STEPS, momentum, batch, model, optimized

def again(*given, **more):
    raise AssertionError("chosen or measured again")

budgeted.chosen = front_end.measure_program = choice.measured_pair = again
torch.set_num_threads(1)
module = model()
step = optimized(module, Path(sys.argv[1]), budget="65%", optimizer=momentum(module))
torch.manual_seed(2)
print([float(step(x, targets=labels).detach()) for x, labels in map(batch, range(STEPS))])
"""


@pytest.mark.scripts
def test_another_process_finds_the_plan_and_its_kernels(
    plans: Path, trained: tuple[Any, list[Tensor], nn.Module]
) -> None:
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "support")]
    command = [sys.executable, "-c", SECOND, str(plans), *folders]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == [float(loss) for loss in trained[1]]


@pytest.mark.scripts
def test_a_plan_without_compiled_operations_is_another(
    plans: Path, trained: tuple[Any, list[Tensor], nn.Module]
) -> None:
    module = model()
    step = optimized(module, plans, budget="65%", optimizer=momentum(module), compile=False)
    assert "compiled" not in step.plan.graph.source
    assert "compile" not in step.report().plans[0].setup


LOSSES = {"rtol": 1e-4, "atol": 0}


@pytest.mark.scripts
@pytest.mark.parametrize(
    ("more", "near"),
    [
        pytest.param({"gradient_accumulation_steps": 2, "max_grad_norm": 0.5}, LOSSES, id="accumulated"),
        pytest.param({"autocast": torch.bfloat16, "ema": 0.9}, {"rtol": 5e-3, "atol": 0}, id="bfloat16"),
        pytest.param(
            {"autocast": torch.float16, "scaler": 2.0**40}, {"rtol": 5e-3, "atol": 0}, id="scaled float16"
        ),
    ],
)
def test_they_train_as_without(more: dict[str, Any], near: dict[str, Any]) -> None:
    """A step without compiled operations is plain PyTorch bit by bit. Batches of two shapes."""
    losses: list[list[float]] = []
    for compiled in (True, False):
        module = Small()
        given = dict(more)
        if scale := more.get("scaler"):  # so large that gradients overflow at first
            given["scaler"] = torch.amp.GradScaler("cpu", init_scale=scale)
        step = optimized(module, False, optimizer=momentum(module), compile=compiled, **given)
        assert ("compiled" in step.plan.graph.source) == compiled
        batches = [batch(number, ROWS if number < 5 else 800) for number in range(6)]
        losses.append([float(step(x, targets=labels).detach()) for x, labels in batches])
        losses[-1].append(float(step.evaluate(batch(0)[0], targets=batch(0)[1]).loss))
    torch.testing.assert_close(losses[0], losses[1], **near)


@pytest.mark.scripts
def test_a_wrong_kernel_is_told_before_anything_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoilt(program: Program, measured: Any, progress: Any = None) -> Chosen:
        made = chosen(program, measured, progress)
        wrong = {
            n: Kernel("wrong", "", lambda given, k=k: [x * 1.1 for x in k(*given)])
            for n, (_m, k) in made.kernels.items()
        }
        operations = [
            one._replace(call=replace(one.call, target=wrong[one.name])) if one.name in wrong else one
            for one in made.program.operations
        ]
        kernels = {name: (members, wrong[name]) for name, (members, _kernel) in made.kernels.items()}
        return made._replace(program=replace(made.program, operations=operations), kernels=kernels)

    monkeypatch.setattr(budgeted, "chosen", spoilt)
    with pytest.raises(
        DifferenceError, match=r"the iteration with kernels is not the model's: .* from exact"
    ):
        optimized(Small(), False)


@pytest.mark.scripts
def test_where_kernels_do_not_fit_they_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def large(program: Program, measured: Any, progress: Any = None) -> Chosen:
        made = chosen(program, measured, progress)
        return made._replace(measured=[one._replace(peak_bytes=2**30) for one in made.measured])

    monkeypatch.setattr(budgeted, "chosen", large)
    with pytest.warns(UserWarning, match="planned without compiled operations: with them there is no sched"):
        step = optimized(Small(), False)
    assert "compiled" not in step.plan.graph.source
    assert step.plan.figures.peak <= step.plan.budget


def test_what_can_not_be_compiled_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "compiler_fault", lambda _device: "there is no C++ compiler")
    with pytest.raises(InputError, match=r"can't be compiled here: there is no C\+\+ compiler"):
        optimized(Small(), False)
    with pytest.raises(InputError, match="compile='always': give True or False"):
        optimized(Small(), False, compile="always")


def test_ranks_are_refused() -> None:
    refused = pytest.raises(InputError, match="each rank of a DistributedDataParallel would have kernels of")
    with alone(), refused:
        optimized(nn.parallel.DistributedDataParallel(Small()), False)
