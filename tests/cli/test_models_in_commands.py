"""The command line on PyTorch models: profile, solve, run; and what a user's model file can do wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from memplan.cli.main import main
from memplan.graphs.files.files import load_graph, save_graph
from memplan.graphs.generators import chain
from memplan.planner.baseline import baseline

Plan = Callable[..., Result]

MODEL = """
import torch
from torch import nn

def build(width=64, batch=512):
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1)) for _ in range(8)]
    return nn.Sequential(*layers), (torch.randn(batch, width),), lambda output: output.square().mean()

def larger():
    return build(batch=640)

def no_loss():
    return build()[:2]

def broken():
    raise ValueError("no data here")

def nothing():
    return None

def talkative():
    print("building")
    class Talkative(nn.Linear):
        def forward(self, x):
            print("forward")
            return super().forward(x).sum()
    return Talkative(4, 4), (torch.ones(2, 4),)

def leaving():
    class Leaving(nn.Linear):
        def forward(self, x):
            raise SystemExit(7)
    return Leaving(4, 4), (torch.ones(2, 4),)

def hungry():
    class Hungry(nn.Linear):
        def forward(self, x):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
    return Hungry(4, 4), (torch.ones(2, 4),)

def without_a_loss_to_speak_of():
    module, inputs, loss = build()
    return module, inputs, lambda output: loss(output) * float("nan")

def data_dependent():
    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
        def forward(self, x):
            y = self.linear(x)
            return (y if y.sum().item() > 0 else -y).sum()
    return Branch(), (torch.randn(2, 4),)
"""


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)
    return lambda *arguments: CliRunner().invoke(main, [str(argument) for argument in arguments])


@cache
def profiled() -> tuple[str, str]:
    """Of model.py in the current folder, once a process: its graph, and a schedule of it at 60 %."""
    for call in (
        ("profile", "model.py", "-o", "graph.yaml"),
        ("solve", "graph.yaml", "--budget", "60%", "--set", "moves=20", "-o", "schedule.json"),
    ):
        result = CliRunner().invoke(main, call)
        assert result.exit_code == 0, result.stderr
    return Path("graph.yaml").read_text(), Path("schedule.json").read_text()


@pytest.fixture
def ready(plan: Plan) -> None:
    """graph.yaml of model.py, and schedule.json of it at 60 %."""
    graph, schedule = profiled()
    Path("graph.yaml").write_text(graph)
    Path("schedule.json").write_text(schedule)


@pytest.mark.scripts
@pytest.mark.usefixtures("ready")
def test_from_a_model_to_a_run_equal_to_eager(plan: Plan) -> None:
    run = ("run", "schedule.json", "--graph", "graph.yaml", "--model", "model.py")
    result = plan(*run, "--json", "--timing-repeats", "2")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["equal"] is True
    plain = baseline(load_graph("graph.yaml")).peak
    assert found["predicted"]["peak"] <= 0.6 * plain
    assert found["measured"]["peak"] == pytest.approx(found["predicted"]["peak"], rel=0.01)
    assert found["eager"]["peak"] > found["measured"]["peak"]
    assert min(found["eager"]["time"], found["measured"]["time"]) > 0
    assert "bitwise equal" in plan(*run, "--timing-repeats", "1").stdout


@pytest.mark.scripts
def test_profile_says_what_it_measured(plan: Plan) -> None:
    found = json.loads(plan("profile", "model.py", "--json").stdout)
    assert found["operations"] > 30
    assert found["source"]["eager"]["equal"] is True
    assert found["source"]["measured"]["signatures"] < found["operations"]
    assert found["source"]["fingerprint"].startswith("sha256:")


def test_estimate_for_a_gpu_that_is_not_here(plan: Plan) -> None:
    result = plan("profile", "model.py", "--estimate", "--gpu", "rtx3060", "-o", "gpu.json")
    assert result.exit_code == 0, result.stderr
    graph = load_graph("gpu.json")
    assert graph.machine is not None
    assert graph.machine.device_capacity
    assert plan("solve", "gpu.json").exit_code == 0


@pytest.mark.usefixtures("ready")
def test_another_model_is_a_mismatch(plan: Plan) -> None:
    result = plan("run", "schedule.json", "--graph", "graph.yaml", "--model", "model.py:larger")
    assert result.exit_code == 6
    assert "fingerprint" in result.stderr


def test_a_graph_that_was_changed_by_hand_is_a_mismatch(plan: Plan) -> None:
    """Its fingerprint is still the model's, and a schedule was found for it."""
    assert plan("profile", "model.py", "-o", "graph.json").exit_code == 0
    document = json.loads(Path("graph.json").read_text())
    smaller = next(tensor for tensor in document["tensors"] if tensor["kind"] == "activation")
    smaller["bytes"] //= 2
    Path("graph.json").write_text(json.dumps(document))
    solve = ("solve", "graph.json", "--budget", "100%", "--solver", "store-all", "-o", "schedule.json")
    assert plan(*solve).exit_code == 0
    result = plan(
        "run", "schedule.json", "--graph", "graph.json", "--model", "model.py", "--timing-repeats", "1"
    )
    assert result.exit_code == 6
    assert "graph.json: the graph was changed since it was profiled" in result.stderr


@pytest.mark.usefixtures("ready")
def test_a_run_that_differs_from_eager_fails(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    from memplan.profiling.compare import verdict
    from memplan.profiling.compare.comparison import Comparison

    monkeypatch.setattr(verdict, "compare", lambda *_, **_named: Comparison("0.0.weight.grad", 0.5, 17))
    result = plan(
        *(
            "run",
            "schedule.json",
            "--graph",
            "graph.yaml",
            "--model",
            "model.py",
            "--json",
            "--timing-repeats",
            "1",
        )
    )
    assert result.exit_code == 5
    found = json.loads(result.stdout)
    assert (found["equal"], found["first_difference"]) == (False, "0.0.weight.grad")
    assert "0.0.weight.grad differs from eager by up to 0.5" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.usefixtures("ready")
def test_a_run_that_takes_more_than_planned_is_a_fault_of_ours(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    from memplan.profiling.compare import side_by_side
    from memplan.profiling.compare.peaks import peaks

    monkeypatch.setattr(side_by_side, "peaks", lambda *run: peaks(*run)._replace(host=7))
    run = ("run", "schedule.json", "--graph", "graph.yaml", "--model", "model.py", "--timing-repeats", "1")
    result = plan(*run)
    assert result.exit_code == 1
    line = "an internal error: the planned run took 7 bytes on the host, 7 more than planned"
    assert result.stderr.splitlines() == [f"plan: error: {line}"]


@pytest.mark.usefixtures("ready")
def test_where_eager_does_not_fit_the_plan_runs_alone(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from memplan.profiling.compare import comparison

    def too_large(*_given: object, **_named: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    monkeypatch.setattr(comparison, "run_eager", too_large)
    run = ("run", "schedule.json", "--graph", "graph.yaml", "--model", "model.py", "--timing-repeats", "1")
    found = json.loads(plan(*run, "--json").stdout)
    assert (found["eager"], found["equal"]) == (None, None)
    assert found["measured"]["peak"] == pytest.approx(found["predicted"]["peak"], rel=0.01)
    assert "not compared" in plan(*run).stdout
    result = plan("profile", "model.py")
    assert result.exit_code == 0
    assert "not compared with eager PyTorch" in result.stderr


def test_a_profile_that_differs_from_eager_is_an_error(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    from memplan.profiling.compare import verdict
    from memplan.profiling.compare.comparison import Comparison

    monkeypatch.setattr(verdict, "compare", lambda *_, **_named: Comparison("loss", 0.5, 17))
    result = plan("profile", "model.py", "-o", "graph.yaml")
    assert result.exit_code == 5
    assert "the traced iteration is not the model's: loss differs from eager by up to 0.5" in result.stderr
    assert result.stdout == ""
    assert not Path("graph.yaml").exists()


def test_what_the_model_prints_is_not_the_result(plan: Plan) -> None:
    result = plan("profile", "model.py:talkative", "--json", "-o", "graph.yaml")
    assert json.loads(result.stdout)["name"] == "model-talkative"
    assert "forward" in result.stderr
    assert plan("solve", "graph.yaml", "--budget", "100%", "-o", "s.json").exit_code == 0
    run = ("run", "s.json", "--graph", "graph.yaml", "--model", "model.py:talkative", "--json")
    assert json.loads(plan(*run).stdout)["equal"] is True


@pytest.mark.scripts
def test_a_loss_that_is_no_number(plan: Plan) -> None:
    """Equal to eager's, bit by bit; JSON has no word for it."""
    name = "model.py:without_a_loss_to_speak_of"
    assert plan("profile", name, "-o", "graph.yaml").exit_code == 0
    assert plan("solve", "graph.yaml", "--budget", "80%", "--solver", "rotor", "-o", "s.json").exit_code == 0
    result = plan(
        "run", "s.json", "--graph", "graph.yaml", "--model", name, "--json", "--timing-repeats", "1"
    )
    found = json.loads(result.stdout)
    assert (found["equal"], found["measured"]["loss"]) == (True, None)


@pytest.mark.usefixtures("ready")
def test_a_graph_is_run_where_it_was_traced(plan: Plan) -> None:
    import torch

    run = ("run", "schedule.json", "--graph", "graph.yaml", "--model", "model.py", "--device")
    result = plan(*run, "cuda")
    assert result.exit_code == (6 if torch.cuda.is_available() else 2)
    assert len(result.stderr.splitlines()) == 1
    assert plan(*run, "meta").exit_code == 2
    assert plan(*run, "gpu 1").exit_code == 2


def test_a_graph_that_no_model_made_can_not_be_run(plan: Plan) -> None:
    save_graph(chain(4), "chain.json")
    assert plan("solve", "chain.json", "--budget", "100%", "-o", "s.json").exit_code == 0
    result = plan("run", "s.json", "--graph", "chain.json", "--model", "model.py")
    assert result.exit_code == 2
    assert "has no fingerprint" in result.stderr


ERRORS = {
    "no-such-file": (["profile", "modle.py"], "modle.py: no such file"),
    "no-such-entry": (["profile", "model.py:biuld"], "no function biuld()"),
    "no-loss": (["profile", "model.py:no_loss"], "loss"),
    "build-fails": (["profile", "model.py:broken"], "ValueError: no data here"),
    "build-returns-nothing": (["profile", "model.py:nothing"], "not (module, example_inputs)"),
    "data-dependent": (["profile", "model.py:data_dependent"], "value"),
    "model-exits": (["profile", "model.py:leaving"], "7"),
    "out-of-memory": (["profile", "model.py:hungry"], "memory"),
    "unknown-gpu": (["profile", "model.py", "--estimate", "--gpu", "rtx3061"], "3060"),
    "unknown-device": (["profile", "model.py", "--device", "tpu"], "neither cpu nor cuda"),
    "output-suffix": (["profile", "model.py", "-o", "graph.txt"], "the suffix must be"),
}


@pytest.mark.sampled(9)
@pytest.mark.parametrize("fault", ERRORS)
def test_an_error_is_one_line(fault: str, plan: Plan) -> None:
    arguments, expected = ERRORS[fault]
    result = plan(*arguments)
    assert result.exit_code == (3 if fault == "out-of-memory" else 2), result.stderr
    assert expected in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_syntax_error_in_the_model_is_named(plan: Plan) -> None:
    Path("typo.py").write_text("def build(:\n    pass\n")
    result = plan("profile", "typo.py")
    assert result.exit_code == 2
    assert "typo.py:1" in result.stderr


def test_neighbours_of_the_model_are_its_own(plan: Plan) -> None:
    """A user's folder may hold files with our names."""
    Path("graphs.py").write_text("WIDTH = 48\n")
    Path("cli.py").write_text("raise RuntimeError('not this one')\n")
    Path("user.py").write_text(
        MODEL.replace("def build(width=64", "import graphs\ndef build(width=graphs.WIDTH")
    )
    result = plan("profile", "user.py")
    assert result.exit_code == 0, result.stderr
