"""Models with compiled operations: as exact as PyTorch's own, the same bits in every plan."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from memplan.cli.main import main
from memplan.devices.measuring.measure import Measurement
from memplan.graphs.errors import DifferenceError, InputError, MismatchError
from memplan.graphs.files.files import load_graph
from memplan.graphs.graph import Graph
from memplan.model.iteration import Iteration
from memplan.planner.baseline import baseline, baseline_schedule
from memplan.profiling.compare import accuracy as accuracies
from memplan.profiling.compare.accuracy import accuracy
from memplan.profiling.compare.compiled import Compiled, compare_compiled
from memplan.profiling.fusion import kernel as kernels
from memplan.profiling.fusion.choice import COMPILED, as_in, chosen
from memplan.profiling.fusion.folds import folds
from memplan.profiling.fusion.fused import Fused, fused
from memplan.profiling.fusion.groups import grouped
from memplan.profiling.fusion.kernel import Kernel
from memplan.profiling.fusion.uses import Uses
from memplan.program.graph import Cost, graph_of
from memplan.program.program import Program
from memplan.steps.execute import PlannedStep
from memplan.torch_support.torch_inductor import inductor
from memplan.tracing.align import aligned
from memplan.tracing.output_layouts import trace_real_layouts
from recomputing import recomputing
from torch import nn
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.graph import GraphLowering


class Mixed(nn.Module):
    """A block of a ResNet, one of a diffusion U-Net, half of one of a GPT."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.convolution, self.batch_norm = nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width)
        self.group_norm, self.second = nn.GroupNorm(2, width), nn.Conv2d(width, width, 3, padding=1)
        self.up, self.dropout = nn.Linear(width, 2 * width), nn.Dropout(0.2)
        self.norm, self.down = nn.LayerNorm(width), nn.Linear(2 * width, width)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.batch_norm(self.convolution(images)).relu()
        x = x + self.second(nn.functional.silu(self.group_norm(x)))
        x = self.norm(x.flatten(2).transpose(1, 2))
        return self.dropout(self.down(nn.functional.gelu(self.up(x), approximate="tanh"))) + x


def build() -> Any:
    torch.manual_seed(0)
    return Mixed(), (torch.randn(2, 3, 12, 12),), lambda output: output.square().mean()


@pytest.fixture(scope="module")
def made() -> tuple[Iteration, Program, Fused, Graph]:
    """All groups compiled, however fast they are."""
    torch.set_num_threads(1)
    iteration = Iteration(*build())
    program = trace_real_layouts(iteration)
    found = fused(program, grouped(Uses(program, folds(Uses(program, {})))))
    assert not found.failed
    return iteration, program, found, graph(found.program)


def graph(program: Program) -> Graph:
    return graph_of(program, [Cost(1.0)] * len(program.operations))


@pytest.mark.scripts
def test_they_are_as_exact_as_eager(made: tuple[Iteration, Program, Fused, Graph]) -> None:
    iteration, program, found, _graph = made
    assert len(found.groups) >= 5
    assert any(group.folded for group in found.groups.values())
    assert len(found.program.operations) < len(program.operations) - 10
    assert accuracy(iteration, program, found.program, found.kernels).ratio < 2


@pytest.mark.scripts
def test_a_kernel_that_is_wrong_is_told(made: tuple[Iteration, Program, Fused, Graph]) -> None:
    iteration, program, found, _graph = made
    name, (members, kernel) = next(iter(found.kernels.items()))
    wrong = Kernel("wrong", "", lambda tensors: [one * (1 + 1e-4) for one in kernel(*tensors)])
    with pytest.raises(DifferenceError, match="from exact"):
        accuracy(iteration, program, found.program, {name: (members, wrong)})


@pytest.mark.scripts
def test_what_a_rounding_makes_of_eager_is_no_other_iteration(
    made: tuple[Iteration, Program, Fused, Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a deep ResNet, where one rounding of the weights changes gradients by more than a per cent."""
    iteration, program, found, _graph = made
    monkeypatch.setattr(accuracies, "SAME", 1e-7)
    monkeypatch.setattr(accuracies, "FEW_DIGITS", 0)
    assert accuracy(iteration, program, found.program, found.kernels).compared
    monkeypatch.setattr(accuracies, "MOST", 1e-3)
    monkeypatch.setattr(accuracies, "ROUNDINGS", 1e6)
    with pytest.raises(DifferenceError, match="is another"):
        accuracy(iteration, program, found.program, found.kernels)


@pytest.mark.scripts
def test_an_iteration_that_is_another_is_told(made: tuple[Iteration, Program, Fused, Graph]) -> None:
    iteration, program, found, _graph = made
    name, (_members, kernel) = next(iter(found.kernels.items()))
    wrong = Kernel("wrong", "", lambda tensors: [one * 1.1 for one in kernel(*tensors)])
    operations = [
        op._replace(call=replace(op.call, target=wrong)) if op.name == name else op
        for op in found.program.operations
    ]
    with pytest.raises(DifferenceError, match="is another"):
        accuracy(iteration, program, replace(found.program, operations=operations), found.kernels)


@pytest.mark.parametrize("share", [0.3, 0.6])
def test_a_plan_has_the_bits_of_the_same_without_one(
    made: tuple[Iteration, Program, Fused, Graph], share: float
) -> None:
    iteration, program, found, graph = made
    schedule = recomputing(graph, Random(0), share)
    assert len(schedule) > len(baseline_schedule(graph))
    step = PlannedStep(iteration, found.program, schedule)
    comparison = compare_compiled(iteration, step, Compiled(program, found.kernels))
    assert comparison.equal, comparison
    assert "bitwise equal to the same without a plan" in str(comparison)


def test_what_is_not_kept_is_not_there(made: tuple[Iteration, Program, Fused, Graph]) -> None:
    """Backward makes the group norm's result again, of its input and statistics."""
    _iteration, program, found, _graph = made
    norm = next(op for op in program.operations if "native_group_norm" in op.name)
    before, after = ({storage.name for storage in each.storages} for each in (program, found.program))
    result, *statistics = (program.storages[x].name for x in norm.writes)
    assert result in before - after
    assert after.issuperset(statistics)
    peaks = [baseline(graph(each)).peak for each in (program, found.program)]
    assert peaks[1] < peaks[0]


def test_the_groups_in_a_graph_make_the_same_program(made: tuple[Iteration, Program, Fused, Graph]) -> None:
    iteration, program, _found, _graph = made
    slow = [Measurement(1.0, 0.0, 2**30) for _ in program.operations]
    choice = chosen(program, slow)
    drawn = graph_of(choice.program, [Cost(1.0)] * len(choice.program.operations))
    there = replace(drawn, source={**drawn.source, COMPILED: choice.groups})
    assert choice.groups
    recompute = aligned(as_in(there, trace_real_layouts(iteration)).program, there)
    assert [one.name for one in recompute.operations] == [one.name for one in choice.program.operations]
    for one, other in zip(recompute.operations, choice.program.operations, strict=True):
        assert one.call.target is other.call.target
    for groups, words in (
        ({**choice.groups, next(iter(choice.groups)): ["nothing"]}, "no operation nothing"),
        ({name: names[::-1][:1] * 2 for name, names in choice.groups.items()}, "twice"),
        ([1], "not as it was written"),
    ):
        forged = replace(drawn, source={**drawn.source, COMPILED: groups})
        with pytest.raises(MismatchError, match=words):
            as_in(forged, program)


def test_what_was_compiled_once_is_only_read(
    made: tuple[Iteration, Program, Fused, Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another process, which knows no kernel yet: Inductor writes no code again."""
    several = [members for members, _kernel in made[2].kernels.values()]
    monkeypatch.setattr(kernels, "_known", {})
    monkeypatch.setattr(GraphLowering, "codegen", lambda _graph: pytest.fail("it is written again"))
    assert all(kernels.kernels(several))


def test_kernels_are_compiled_side_by_side(
    made: tuple[Iteration, Program, Fused, Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is waited for before all are begun."""
    several = [members for members, _kernel in made[2].kernels.values()]
    order: list[str] = []
    begin, wait = inductor, AsyncCompile.wait
    monkeypatch.setattr(kernels, "_known", {})
    monkeypatch.setattr(kernels, "inductor", lambda *given: order.append("begun") or begin(*given))
    monkeypatch.setattr(AsyncCompile, "wait", lambda *given: order.append("waited for") or wait(*given))
    assert all(kernels.kernels(several))
    count = len({members.text() for members in several})
    assert order == ["begun"] * count + ["waited for"] * count


def test_without_a_compiler_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "compiler_fault", lambda _device: "there is no C++ compiler")
    with pytest.raises(InputError, match=r"can't be compiled here: there is no C\+\+ compiler"):
        kernels.check_compiler(torch.device("cpu"))


@pytest.mark.scripts
def test_a_compiler_that_fails_is_refused_in_one_line(tmp_path: Path) -> None:
    """In a process of its own: what a compiler can do is asked once."""
    broken = tmp_path / "g++"
    broken.write_text(
        "#!/bin/sh\ncase $1 in --version) echo g++ 13; exit;; esac\necho 'x.cpp:1: error: no disk'; exit 1\n"
    )
    broken.chmod(0o755)
    code = "from memplan.profiling.fusion.kernel import *; check_compiler(torch.device('cpu'))"
    settings = {**os.environ, "CXX": str(broken), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=settings, capture_output=True, text=True, check=False
    )
    assert "can't be compiled here: the C++ compiler failed: x.cpp:1: error: no disk" in ran.stderr


@pytest.mark.scripts
def test_libraries_in_a_folder_with_a_space(tmp_path: Path) -> None:
    """PyTorch's own folder, where the virtual environment lies in such a one."""
    folder = tmp_path / "odd folder"
    folder.mkdir()
    (folder / "lib").symlink_to(Path(torch.__file__).parent / "lib")
    code = f"""
import torch.utils.cpp_extension as extension
extension.TORCH_LIB_PATH = {str(folder / "lib")!r}
import torch
from memplan.profiling.fusion.kernel import check_compiler
check_compiler(torch.device("cpu"))
"""
    settings = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    subprocess.run([sys.executable, "-c", code], env=settings, check=True)


def test_without_groups_nothing_is_compared(made: tuple[Iteration, Program, Fused, Graph]) -> None:
    iteration, program, _found, _graph = made
    assert accuracy(iteration, program, program, {}) == (0, 1.0)


MODEL = """
import torch
from recomputing import recomputing
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(32, 64), nn.Linear(64, 32), nn.LayerNorm(64)

    def forward(self, x):
        return self.second(nn.functional.gelu(self.norm(self.first(x) * 2 + 1), approximate="tanh").square())

def build():
    torch.manual_seed(0)
    return Block(), (torch.randn(256, 32),), lambda output: output.square().mean()
"""


def plan(*words: str) -> str:
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.stderr
    return result.stdout


@pytest.mark.scripts
def test_from_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    model, graph, schedule = (str(tmp_path / name) for name in ("model.py", "graph.yaml", "schedule.json"))
    profiled = plan("profile", model, "--compile", "--optimizer", "sgd", "-o", graph)
    assert "compiled" in profiled
    assert load_graph(Path(graph)).source["compiled"]
    plan("solve", graph, "--budget", "95%", "--solver", "search", "-o", schedule)
    ran = json.loads(
        plan("run", schedule, "--graph", graph, "--model", model, "--timing-repeats", "1", "--json")
    )
    assert ran["equal"]
