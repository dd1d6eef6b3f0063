"""Small mistakes of a first try: each is answered in one line by what was given."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import memplan
import pytest
import torch
from click.testing import CliRunner, Result
from memplan.cli.main import main
from memplan.graphs.errors import InputError
from memplan.graphs.files.documents import regular_size
from memplan.graphs.files.files import save_graph
from memplan.graphs.generators import chain
from memplan.graphs.units import counted
from memplan.planner.baseline import baseline
from memplan.planner.schedule.file import save_schedule
from memplan.planner.schedule.sequence import in_default_mode, schedule_of
from torch import nn

GRAPH = chain(4)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save_graph(GRAPH, "g.graph.json")
    runs = in_default_mode(range(len(GRAPH.operations)))
    save_schedule("g.schedule.json", GRAPH, schedule_of(GRAPH, runs), budget=baseline(GRAPH).peak)
    return tmp_path


def plan(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def refusal(*arguments: str) -> str:
    done = plan(*arguments)
    assert done.exit_code == 2, done.output
    return done.stderr


@pytest.mark.usefixtures("folder")
def test_files_of_another_kind_are_named_by_what_they_are() -> None:
    assert "it is a schedule: its graph is expected here" in refusal(
        "solve", "g.schedule.json", "--budget", "1MB"
    )
    assert "is not a Hugging Face configuration: it is a graph" in refusal(
        "size", "g.graph.json", "--gpu", "rtx4090"
    )


NOT_PICKLES = {
    "model.py": (
        "import torch\nfrom torch import nn\n",
        "is not a pickle: it does not begin or end like one",
    ),
    "sizes.json": ('{"a": [1]}', "is not a pickle: it is JSON"),
    "rows.sqlite": ("SQLite format 3\0" + "\0" * 100, "is not a pickle: it is an SQLite database"),
    "old.pickle": ("(lp0\nI1\na.", "is not a DFGraph"),
}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", NOT_PICKLES)
@pytest.mark.parametrize("form", ["checkmate", "snapshot"])
def test_what_is_no_pickle_is_not_read_as_one(name: str, form: str) -> None:
    text, line = NOT_PICKLES[name]
    Path(name).write_text(text)
    told = refusal("import", form, name, "-o", "made.json")
    assert (line in told) == (name != "old.pickle")
    assert "it could run anything" not in told


LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", ["model.onnx", "memory.pickle", "g.json", "model.safetensors"])
def test_a_pointer_of_git_lfs_is_no_file(name: str) -> None:
    Path(name).write_text(LFS)
    with pytest.raises(InputError, match="is a Git LFS pointer, not the file itself: git lfs pull"):
        regular_size(Path(name))
    command = {"model.onnx": "onnx", "memory.pickle": "snapshot"}.get(name)
    if command or name == "g.json":
        gpu = ["--gpu", "rtx4090"] if command == "onnx" else []
        arguments = ["import", command, name, *gpu] if command else ["solve", name, "--budget", "1MB"]
        assert "git lfs pull fetches it" in refusal(*arguments, "-o", "made.json")


@pytest.mark.usefixtures("folder")
def test_a_close_name_is_said_once() -> None:
    Path("shadow").write_text("")
    Path("shadow-").write_text("")
    assert ": is it shadow?" in refusal("solve", "shadow0", "--budget", "1MB")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("seconds", ["-1", "0", "inf"])
def test_a_time_limit_must_be_above_0(seconds: str) -> None:
    told = refusal("solve", "g.graph.json", "--budget", "1MB", "--time-limit", seconds)
    assert f"the time must be above 0 seconds and finite, not {seconds}" in told


@pytest.mark.scripts
@pytest.mark.usefixtures("folder")
def test_the_folder_of_plots_is_made() -> None:
    done = plan("bench", "g.graph.json", "--budgets", "90%", "--solvers", "store-all,rotor", "--plots", "a/b")
    assert "no such folder" not in done.output
    assert list(Path("a/b").glob("*.svg"))
    Path("file").write_text("")
    assert "file/below: cannot be made: Not a directory" in refusal(
        "bench", "g.graph.json", "--budgets", "90%", "--plots", "file/below"
    )


def test_one_is_no_plural() -> None:
    assert [counted(1, "operation"), counted(2, "operation"), counted(1, "prefetch")] == [
        "1 operation",
        "2 operations",
        "1 prefetch",
    ]
    assert counted(1200, "prefetch") == "1,200 prefetches"


@pytest.mark.usefixtures("folder")
def test_a_budget_in_bits_is_said_to_be_bytes() -> None:
    arguments = ("solve", "g.graph.json", "--solver", "store-all", "-o", "s.json", "--budget")
    assert "12Gb is taken for bytes: 12,000,000,000 B" in plan(*arguments, "12Gb").stderr
    for quiet in ("12GB", "12gb", "100%"):
        assert "taken for bytes" not in plan(*arguments, quiet).stderr
    assert plan(*arguments, "12Gb", "--quiet").stderr == ""


def test_names_of_the_package() -> None:
    with pytest.raises(AttributeError, match=r"has no attribute 'optimise'\. Did you mean 'optimize'"):
        _ = memplan.optimise  # pyright: ignore
    with pytest.raises(AttributeError, match=r"has no attribute 'xyz'$"):
        _ = memplan.xyz  # pyright: ignore
    public = {name for name in dir(memplan) if not name.startswith("__")}
    assert {"optimize", "solve", "Problem"} <= public
    assert not public & {"Any", "TYPE_CHECKING", "annotations", "import_module", "logging", "sys"}


@pytest.mark.parametrize("problem", ["60%", GRAPH, None, memplan.Problem("g.json", 5)])  # pyright: ignore
def test_what_is_no_problem_is_not_solved(problem: object) -> None:
    with pytest.raises(InputError, match=r"Problem\(memplan.load_graph\('g.json'\), budget\)"):
        memplan.solve("g.json", problem)  # pyright: ignore[reportArgumentType]


def test_a_batch_on_meta_has_no_values() -> None:
    module, batch = nn.Linear(2, 2), torch.empty(3, 2, device="meta")
    with pytest.raises(InputError, match=r"the batch is on meta, without values \(") as refused:
        memplan.optimize(module, batch, budget="100%", cache=False)
    assert "torch.zeros_like(batch, device='cpu')" in str(refused.value)
    given = torch.zeros_like(batch, device="cpu")  # as the line says
    step = memplan.optimize(
        module, given, budget="100%", cache=False, loss_fn=torch.sum, solver="store-all", verify=False
    )
    assert torch.equal(step(given), module(given).sum())


ON_META = """
import torch
from torch import nn

def batch():
    return nn.Linear(2, 2), (torch.ones(3, 2, device="meta"),), torch.sum

def weights():
    with torch.device("meta"):
        return nn.Linear(2, 2), (torch.ones(3, 2, device="cpu"),), torch.sum
"""


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("entry", "what"), [("batch", "input"), ("weights", "weight or buffer weight")])
def test_a_model_file_on_meta_is_estimated_alone(entry: str, what: str) -> None:
    Path("meta.py").write_text(ON_META)
    assert f"the {what}" in (line := refusal("profile", f"meta.py:{entry}"))
    assert "an estimate needs no values: --gpu NAME" in line
    assert plan("profile", f"meta.py:{entry}", "--gpu", "rtx3060").exit_code == 0  # as the line says


LABELS_IN_A_CLOSURE = """
import torch
from torch import nn

labels = torch.randint(0, 4, (3,))

def captured():
    return nn.Linear(2, 4), (torch.ones(3, 2),), lambda output: nn.functional.cross_entropy(output, labels)

def build():
    return nn.Linear(2, 4), (torch.ones(3, 2),), nn.functional.cross_entropy, labels
"""


@pytest.mark.usefixtures("folder")
def test_labels_of_a_closure_are_refused_with_what_a_model_file_returns() -> None:
    Path("model.py").write_text(LABELS_IN_A_CLOSURE)
    assert "(a model file: return model, inputs, loss_fn, targets)" in refusal("profile", "model.py:captured")
    assert plan("profile", "model.py").exit_code == 0  # as the line says


@pytest.mark.usefixtures("folder")
def test_a_file_without_build_is_told_what_to_write() -> None:
    Path("loop.py").write_text("import torch\n")
    assert "write one that returns model and example batch" in refusal("size", "loop.py", "--gpu", "rtx3060")


@pytest.mark.usefixtures("folder")
def test_an_8_bit_optimizer_has_the_name_that_people_give_it() -> None:
    Path("model.py").write_text(LABELS_IN_A_CLOSURE)
    for name in ("adam8bit", "adamw8bit"):
        assert plan("profile", "model.py", "--gpu", "rtx3060", "--optimizer", name).exit_code == 0


def test_the_site_names_its_authors_and_year() -> None:
    conf = (Path(__file__).parents[2] / "docs" / "conf.py").read_text()
    assert re.search(r'^copyright = f"20\d\d, \{author\}"$', conf, re.M)
    assert re.search(r'^author = ".+"$', conf, re.M)


@pytest.mark.skipif(sys.platform != "linux", reason="sends POSIX signals")
@pytest.mark.parametrize("seconds", [0.15, 0.4])
def test_ctrl_c_ends_it_while_it_is_imported(tmp_path: Path, seconds: float) -> None:
    """As `python -m memplan`; its first import of a package takes long, and says that it has begun."""
    code = "import builtins, runpy, sys, time; real = builtins.__import__\n" + SLOW
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    time.sleep(seconds)
    os.kill(process.pid, signal.SIGINT)
    _out, told = process.communicate(timeout=60)
    assert (process.returncode, told) == (130, "plan: interrupted\n")


SLOW = """
def slowly(name, *given, **more):
    if name == "click":
        print("begun", flush=True)
        time.sleep(30)
    return real(name, *given, **more)
builtins.__import__ = slowly
sys.argv = ["plan", "solve", "g.json"]
runpy.run_module("memplan", run_name="__main__")
"""
