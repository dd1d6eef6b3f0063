"""The command line as a process: without torch, its standard streams, and a Ctrl-C from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import solved, write_files
from memplan.graphs.files.files import load_graph, save_graph
from memplan.graphs.generators import chain
from memplan.planner.baseline import baseline_schedule
from memplan.planner.schedule.file import load_schedule, save_schedule
from memplan.planner.simulator.simulate import simulate

PLAN = [sys.executable, "-c", "from memplan.cli.main import main; main()"]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working folder, with the files of command_line.py."""
    monkeypatch.chdir(tmp_path)
    write_files()


WITHOUT_TORCH = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name == "torch" or name.startswith("torch."):
            raise ModuleNotFoundError(f"No module named {name!r}", name="torch")
sys.meta_path.insert(0, Blocked())
from memplan.cli.main import main
main()
"""


@pytest.mark.scripts
def test_without_torch_graphs_are_solved_and_models_are_not() -> None:
    solve = ["solve", "chain.json", "--budget", "60%", "-o", "t.json"]
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *solve], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    Path("m.py").write_text("def build(): ...\n")
    profile = [sys.executable, "-c", WITHOUT_TORCH, "profile", "m.py"]
    failed = subprocess.run(profile, capture_output=True, text=True)
    assert failed.returncode == 4
    assert "torch" in failed.stderr
    assert "pip install 'memplan[torch]'" in failed.stderr
    assert len(failed.stderr.splitlines()) == 1


REMARKS = """
import torch
from transformers.utils import logging
def build():
    logging.get_logger("transformers.models").warning("a remark")
    logging.get_logger("transformers.models").error("a fault")
    return torch.nn.Bilinear(8, 8, 1), (torch.ones(8), torch.ones(8)), lambda output: output.sum()
"""


@pytest.mark.scripts
def test_remarks_of_transformers_are_not_printed_unless_they_are_asked_for() -> None:
    pytest.importorskip("transformers")
    Path("m.py").write_text(REMARKS)
    for verbosity, there in ({}, False), ({"TRANSFORMERS_VERBOSITY": "warning"}, True):
        environment = {
            **{key: text for key, text in os.environ.items() if "VERBOSITY" not in key},
            **verbosity,
        }
        done = subprocess.run([*PLAN, "profile", "m.py"], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        assert "a fault" in done.stderr
        assert ("a remark" in done.stderr) == there


WITH_TORCH_AT_HAND = """
import sys
from memplan.cli.main import main
for call in {calls}:
    try:
        main(call)
    except SystemExit as ended:
        assert not ended.code, call
    assert "torch" not in sys.modules, call
"""


@pytest.mark.scripts
def test_graph_files_need_no_torch() -> None:
    """Nor wait for it where it is installed."""
    solved()
    calls = [
        ["--help"],
        ["run", "--help"],
        ["profile", "--help"],
        ["solvers"],
        ["solve", "chain.json", "--budget", "60%", "-o", "s.json"],
        ["check", "s.json", "--graph", "chain.json"],
        ["show", "s.json", "--graph", "chain.json"],
    ]
    code = WITH_TORCH_AT_HAND.format(calls=calls)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device here")
def test_a_full_disk_behind_standard_output() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*PLAN, "solvers"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("plan: error: standard output cannot be written")
    assert len(done.stderr.splitlines()) == 1


def test_a_terminal_without_block_characters() -> None:
    solved()
    done = subprocess.run(
        [*PLAN, "show", "s.json", "--graph", "chain.json"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert b"####" in done.stdout


def test_a_closed_pipe_is_no_fault() -> None:
    graph = load_graph("chain.json")
    save_schedule("p.json", graph, baseline_schedule(graph))
    call = [*PLAN, "show", "p.json", "--graph", "chain.json", "--json"]
    process = subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()
    assert process.wait() == 0


@pytest.mark.scripts
def test_interrupted_the_best_so_far_is_written() -> None:
    """Checkmate, stopped while it searches, on a graph that it needs long for."""
    save_graph(chain(30), "long.json")
    with Path("progress").open("wb") as progress:
        solve = ["solve", "long.json", "--budget", "45%", "--solver", "checkmate", "-o", "best.json"]
        process = subprocess.Popen(
            [*PLAN, *solve],
            stdout=subprocess.DEVNULL,
            stderr=progress,
            env={**os.environ, "FORCE_COLOR": "1"},
        )
        end = time.monotonic() + 100
        while b"elapsed" not in Path("progress").read_bytes():
            assert process.poll() is None, "solved too fast to be interrupted"
            assert time.monotonic() < end
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=100) == 130
    graph = load_graph("long.json")
    file = load_schedule("best.json", graph)
    simulate(graph, file.schedule, budget=file.budget)
