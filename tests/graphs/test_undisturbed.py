"""Scripts that change what memplan's late imports, compilers and lines on standard error rely on."""

from __future__ import annotations

import ast
import builtins
import decimal
import inspect
import io
import locale
import os
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import memplan
import numpy as np
import pytest
import torch
from memplan.graphs.undisturbed import undisturbed
from memplan.training.progress import Line, PlanningLine, ProgressEvent, progress_callback
from torch import nn

SCRIPT = """
import builtins, os, sys, tempfile, torch, warnings
first = builtins.print
def print(*texts, **options): first(*texts, **options)
builtins.print = print
warnings.simplefilter("error", DeprecationWarning)
folder = tempfile.mkdtemp()
os.chdir(folder); os.rmdir(folder)
sys.stdout.close(); sys.stderr.close()
import memplan
module, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
options = dict(budget="100%", states=0, solver="store-all", cache=False)
step = memplan.optimize(module, x, loss_fn=torch.sum, **options)
if not torch.equal(step(x), module(x).sum()) or builtins.print is not print: os._exit(1)
os._exit(7)
"""


@pytest.mark.scripts
def test_a_script_may_change_builtins_streams_warnings_and_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    assert subprocess.run([sys.executable, path], check=False, timeout=300).returncode == 7


@pytest.mark.scripts
def test_without_asserts_and_docstrings_a_step_trains_and_the_command_works(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    assert subprocess.run([sys.executable, "-OO", path], check=False, timeout=300).returncode == 7
    command = [sys.executable, "-OO", "-m", "memplan", "instances", "--json"]
    assert subprocess.run(command, check=True, capture_output=True, timeout=100).stdout.startswith(b"{")


def test_blocks_that_overlap_leave_the_scripts_builtins(monkeypatch: pytest.MonkeyPatch) -> None:
    own, mine = builtins.print, lambda *_texts: None
    monkeypatch.setattr(builtins, "print", mine)
    filters = list(warnings.filters)
    first, second = undisturbed(), undisturbed()
    first.__enter__()
    second.__enter__()
    assert builtins.print is own
    first.__exit__(None, None, None)
    assert builtins.print is own
    second.__exit__(None, None, None)
    assert builtins.print is mine
    assert warnings.filters == filters


def test_a_working_folder_that_is_gone_is_left_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gone").mkdir()
    os.chdir("gone")
    (tmp_path / "gone").rmdir()
    with undisturbed():
        assert os.getcwd() == "/"
    with pytest.raises(FileNotFoundError):
        os.getcwd()


class Bare:
    """A script's stream, which has `write` alone, and refuses."""

    def write(self, _text: str) -> None:
        raise OSError("full")


@pytest.mark.parametrize("stream", [None, Bare(), "closed"])
def test_lines_need_no_stream(stream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if stream == "closed":
        stream = io.StringIO()
        stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    assert not isinstance(progress_callback(True), Line)
    Line()(ProgressEvent("train"))
    line = PlanningLine()
    with line.phase("trace"):
        pass
    monkeypatch.setattr("memplan.training.progress.PATIENCE", 0.0)
    line.planned("nothing")


def recursion_limit() -> None:
    sys.setrecursionlimit(len(inspect.stack(0)) + 60)


def decimal_comma() -> None:
    try:
        locale.setlocale(locale.LC_ALL, "de_DE.UTF-8")
    except locale.Error:
        pytest.skip("this system has no locale with a decimal comma")


CHANGES: dict[str, Callable[[], object]] = {
    "recursion limit": recursion_limit,
    "default device": lambda: torch.set_default_device("meta"),
    "default dtype": lambda: torch.set_default_dtype(torch.half),
    "numpy's errors": lambda: np.seterr(all="raise"),
    "no hook of exceptions": lambda: setattr(sys, "excepthook", None),
    "no hook of threads": lambda: setattr(threading, "excepthook", None),
    "one digit": lambda: decimal.setcontext(decimal.Context(1, traps=[decimal.Inexact])),
    "decimal comma": decimal_comma,
    "no environment": lambda: os.environ.clear(),
}


@pytest.fixture
def surroundings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    limit, digits, environment = sys.getrecursionlimit(), decimal.getcontext(), dict(os.environ)
    words = locale.setlocale(locale.LC_ALL)
    numbers, dtype = np.geterr(), torch.get_default_dtype()
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    yield
    sys.setrecursionlimit(limit)
    decimal.setcontext(digits)
    locale.setlocale(locale.LC_ALL, words)
    os.environ.update(environment)
    np.seterr(**numbers)
    torch.set_default_dtype(dtype)
    torch.set_default_device(None)


def plan(module: nn.Module, x: torch.Tensor) -> memplan.Step:
    options: dict[str, Any] = {"budget": "100%", "states": 0, "solver": "store-all", "cache": False}
    return memplan.optimize(module, x, loss_fn=torch.sum, **options)


def gradients_of(module: nn.Module) -> list[Any]:
    return [weight.grad for weight in module.parameters()]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.usefixtures("surroundings")
def test_a_script_may_change_what_is_a_process_wide_setting(change: Callable[[], object]) -> None:
    module, x = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Dropout(0.5)), torch.randn(2, 4)
    torch.manual_seed(0)
    expected = module(x).sum()
    expected.backward()
    gradients = gradients_of(module)
    module.zero_grad()
    change()
    changed = sys.getrecursionlimit(), sys.excepthook
    step = plan(module, x)
    assert (sys.getrecursionlimit(), sys.excepthook) == changed
    torch.manual_seed(0)
    loss = step(x)
    loss.backward()
    assert torch.equal(loss, expected)
    assert all(map(torch.equal, gradients_of(module), gradients))


@pytest.mark.parametrize(
    ("off", "advised"),
    [
        (torch.no_grad, torch.enable_grad),
        (torch.inference_mode, partial(torch.inference_mode, False)),
    ],
)
def test_gradients_that_are_off_are_named(off: Callable[[], Any], advised: Callable[[], Any]) -> None:
    """The block that the line advises works where memplan was called."""
    module, x = nn.Linear(4, 4), torch.randn(2, 4)
    with off():
        line = r"torch.enable_grad\(\):" if off is torch.no_grad else r"torch.inference_mode\(False\):"
        with pytest.raises(memplan.InputError, match=f"plan and train .* `with {line}`$"):
            plan(module, x)
        with advised():
            plan(module, x)(x).backward()
    assert module.weight.grad is not None


def later(_module: nn.Module, gradients: Any, *_: Any) -> Any:
    return tuple(each if each is None else each * 3 for each in gradients)


HOOKS: dict[str, tuple[str, Callable[..., Any]]] = {
    "forward": ("forward_hook", lambda _module, _given, output: output * 1.5),
    "before forward": ("forward_pre_hook", lambda _module, given: (given[0] + 1,)),
    "backward": ("full_backward_hook", later),
    "before backward": ("full_backward_pre_hook", later),
}


@pytest.mark.parametrize("kind", HOOKS)
@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_a_hook_on_all_modules_is_planned_with_them(kind: str) -> None:
    """It is called of the model's modules, not of those that memplan makes."""
    place, hook = HOOKS[kind]
    module, x = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4)), torch.randn(2, 4)
    handle = getattr(nn.modules.module, f"register_module_{place}")(hook)
    try:
        expected = module(x).sum()
        expected.backward()
        gradients = gradients_of(module)
        module.zero_grad()
        loss = plan(module, x)(x)
        loss.backward()
    finally:
        handle.remove()
    assert torch.equal(loss, expected)
    assert all(map(torch.equal, gradients_of(module), gradients))


FACTORY = re.compile(
    r"torch\.(arange|as_tensor|empty|empty_strided|eye|full|linspace|ones|rand|randint|randn|randperm|"
    r"scalar_tensor|tensor|zeros)"
)


def test_every_tensor_that_memplan_makes_says_where() -> None:
    """A script's `torch.set_default_device` is for the script's code."""
    found: list[str] = []
    for path in sorted(Path(memplan.__file__).parent.glob("*/**/*.py")):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if FACTORY.search(text) else ():
            if isinstance(node, ast.Call) and FACTORY.fullmatch(ast.unparse(node.func)):
                given = {each.arg for each in node.keywords}
                found += [] if given & {"device", None} else [f"{path}:{node.lineno}"]
    assert found == []
