"""Scripts that change what memplan's late imports, compilers and lines on standard error rely on."""

from __future__ import annotations

import builtins
import io
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from memplan.graphs.undisturbed import undisturbed
from memplan.training.progress import Line, PlanningLine, ProgressEvent, progress_callback

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
