"""A plan is compared with plain PyTorch once: again where anything has changed that the verdict rests on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import memplan
import pytest
import torch
from memplan.guards import signature
from memplan.profiling.compare import verdict
from memplan.profiling.compare.batch import BatchComparison
from memplan.profiling.compare.comparison import ITERATIONS
from memplan.tracing.output_layouts import trace_real_layouts
from memplan.training.plans import plan as planning
from memplan.training.plans import verification
from memplan.training.progress import ProgressEvent
from torch import Tensor, nn

X = torch.randn(8, 6)
LIMITS = {"late": 1}


@pytest.fixture(autouse=True)
def script(monkeypatch: pytest.MonkeyPatch) -> None:
    """This file is the user's only one, of any age.

    Workers of pytest begin from no file, like a notebook. Other tests are loaded too, and they or their files
    may change while these run.
    """
    monkeypatch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)
    monkeypatch.setattr(signature, "process_began", lambda: inf)
    there = signature._modules

    def modules() -> list[tuple[str, str | None]]:
        return [
            (name, file)
            for name, file in there()
            if file == __file__ or signature._is_of_others(name, file or "")
        ]

    monkeypatch.setattr(signature, "_modules", modules)


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Gets an entry for each plan that is compared, before it trains or on its first batches."""
    done: list[bool] = []
    monkeypatch.setattr(
        verification, "compared", lambda *given: done.append(True) or verdict.compared(*given)
    )
    monkeypatch.setattr(verification, "BatchComparison", lambda i: done.append(True) or BatchComparison(i))
    return done


class Model(nn.Module):
    """`late`: doubles the loss from so many iterations on, which no trace of the first one sees."""

    def __init__(self, late: float = 10.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.options, self.count = nn.Linear(6, 3), SimpleNamespace(late=late), 0

    def forward(self, x: Tensor) -> Tensor:
        if self.options.late < 10:
            self.count += 1
        return self.inner(x).square() * (2 if self.count > self.options.late else 1)


def total(output: Tensor) -> Tensor:
    return output.sum()


def start(folder: Path, module: nn.Module | None = None, loss_fn: Any = total, **options: Any) -> Any:
    """Plan, and train on as many batches as are compared."""
    step = memplan.optimize(
        module or Model(), X, loss_fn=loss_fn, budget="100%", solver="store-all", cache=folder, **options
    )
    for _batch in range(ITERATIONS):
        loss = step(X)
        if "optimizer" not in options:
            loss.backward()
    return step


@pytest.mark.scripts
def test_calls_run_by_themselves_where_the_plan_is_compared(
    tmp_path: Path, compared: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the forms of their results are known, with all that the comparison found."""
    forms: list[bool] = []
    monkeypatch.setattr(
        planning, "trace_real_layouts", lambda *given: forms.append(True) or trace_real_layouts(*given)
    )
    for compare, times in ((None, 1), (None, 1), (False, 2), (True, 3), (None, 3)):
        start(tmp_path, verify=compare)
        assert len(forms) == times
    start(tmp_path, loss_fn=counting)
    assert len(forms) == 4
    assert len(compared) == 3


@pytest.mark.scripts
def test_a_second_start_does_not_compare_and_says_so(tmp_path: Path, compared: list[bool]) -> None:
    first, reported = start(tmp_path), list[ProgressEvent]()
    assert not first.report().plans[0].compared_before
    second = start(tmp_path, progress=reported.append)
    assert len(compared) == 1
    assert second.report().plans[0].compared_before
    assert "compared before" in str(second.report())
    assert [str(each) for each in reported][:2] == ["trace", "compare, compared before"]
    assert {each.phase for each in reported[2:]} <= {"train"}
    other = Model()
    other.inner.weight.data.mul_(2)  # values of weights do not decide
    start(tmp_path, other)
    assert len(compared) == 1


@pytest.mark.scripts
def test_true_compares_always_false_never(tmp_path: Path, compared: list[bool]) -> None:
    start(tmp_path, verify=False)
    assert not compared
    start(tmp_path)  # False has vouched for nothing
    for compare, times in ((True, 2), (False, 2), (None, 2), (True, 3)):
        start(tmp_path, verify=compare)
        assert len(compared) == times


def counting(output: Tensor) -> Tensor:
    LIMITS.get("late")
    return output.sum()


def another_script(given: pytest.MonkeyPatch) -> None:
    given.setattr(sys.modules["__main__"], "__file__", planning.__file__)


def quick(given: pytest.MonkeyPatch) -> None:
    given.setattr(torch, "get_float32_matmul_precision", lambda: "high")


CHANGES: dict[str, tuple[Callable[[pytest.MonkeyPatch], Any], dict[str, Any]]] = {
    "the loss function's code": (lambda _given: None, {"loss_fn": counting}),
    "a value that the code reads": (lambda _given: None, {"module": lambda: Model(11.0)}),
    "a hook": (lambda _given: None, {"module": lambda: hooked(Model())}),
    "a setting": (quick, {}),
    "the environment": (lambda given: given.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8"), {}),
    "the version of PyTorch": (lambda given: given.setattr(torch, "__version__", "2.99"), {}),
    "the script": (another_script, {}),
    "a library": (lambda given: given.setattr(signature, "_libraries", lambda: ("another",)), {}),
    "a file that is not whole": (lambda _given: None, {"spoil": lambda text: text[:10]}),
    "another plan's": (lambda _given: None, {"spoil": lambda _text: json.dumps({"grounds": "0"})}),
}


def hooked(module: nn.Module) -> nn.Module:
    module.register_forward_hook(lambda _module, _given, output: output)
    return module


@pytest.mark.scripts
@pytest.mark.sampled(1)
@pytest.mark.parametrize("change", CHANGES)
def test_what_it_rests_on_has_changed(
    tmp_path: Path, compared: list[bool], monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    alter, given = CHANGES[change]
    start(tmp_path)
    (file,) = tmp_path.glob("*/compared.json")
    file.write_text(given.get("spoil", str)(file.read_text()))
    alter(monkeypatch)
    module, loss_fn = given.get("module", Model)(), given.get("loss_fn", total)
    start(tmp_path, module, loss_fn)
    assert len(compared) == 2
    start(tmp_path, module, loss_fn)
    assert len(compared) == 2


@pytest.mark.scripts
def test_code_that_goes_another_way_later_is_found_though_its_trace_is_the_same(tmp_path: Path) -> None:
    start(tmp_path)
    with pytest.raises(memplan.MemplanError, match=r"uses module\.count, which the iteration itself changes"):
        start(tmp_path, Model(late=1.0))


def test_a_rate_of_zero_proves_nothing_of_others(tmp_path: Path, compared: list[bool]) -> None:
    for number, rate in enumerate((0.0, 0.1, 0.2, 0.0)):
        module = Model()
        start(tmp_path, module, optimizer=torch.optim.SGD(module.parameters(), lr=rate))
        assert len(compared) == (1, 2, 2, 3)[number]


class SetsAtFirst(nn.Linear):
    kind = ""

    def forward(self, x: Tensor) -> Tensor:
        self.kind = self.kind or "classification"
        return super().forward(x)


class Goes(nn.Linear):
    count = 0

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return super().forward(x)


@pytest.mark.scripts
@pytest.mark.parametrize(("kind", "times"), [(SetsAtFirst, 1), (Goes, 2)])
def test_what_may_go_on_otherwise_is_compared_at_each_start(
    tmp_path: Path, compared: list[bool], kind: type[nn.Linear], times: int
) -> None:
    for _ in range(2):
        start(tmp_path, kind(6, 3))
    assert len(compared) == times


@pytest.mark.scripts
@pytest.mark.parametrize("place", ["notebook", "edited"])
def test_code_that_can_not_be_told_is_compared_at_each_start(
    tmp_path: Path, compared: list[bool], monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    if place == "notebook":
        monkeypatch.delattr(sys.modules["__main__"], "__file__")
    else:
        monkeypatch.setattr(signature, "process_began", lambda: 0.0)
    for _ in range(2):
        start(tmp_path)
    assert len(compared) == 2


def test_code_is_told_by_what_it_does() -> None:
    def code(text: str) -> str:
        names: dict[str, Any] = {}
        exec(text, names)
        return signature.code_hash(names["f"].__code__)

    assert code("def f(x): return x + 1") == code("\n\n# told\ndef f(x):\n    return x + 1")
    texts = ["x + 1", "x + 2", "x - 1", "x.a", "x.b", "(lambda: x + 1)()", "(lambda: x + 2)()"]
    assert len({code(f"def f(x): return {text}") for text in texts}) == len(texts)


SCRIPT = """
import sys
import memplan, torch
from torch import nn

class Model(nn.Linear):
    kinds, number = {"one", "two", "three", 4.0}, hash("one")
    def forward(self, x):
        return super().forward(x) * (2 if "one" in self.kinds and "two" in {"one", "two"} else 1)

step = memplan.optimize(Model(6, 3), torch.ones(8, 6), loss_fn=torch.sum, budget="100%", cache=sys.argv[1])
for _ in range(2):
    step(torch.ones(8, 6)).backward()
print(step.report().plans[0].compared_before)
"""


@pytest.mark.scripts
def test_another_process_does_not_compare(tmp_path: Path) -> None:
    script, reported = tmp_path / "train.py", list[str]()
    script.write_text(SCRIPT)
    os.utime(script, (1e9, 1e9))
    for seed in ("1", "2"):
        command = [sys.executable, str(script), str(tmp_path / "kept")]
        environment = {**os.environ, "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"}
        run = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True, timeout=300
        )
        reported.append(run.stdout.split()[0])
    assert reported == ["False", "True"]
