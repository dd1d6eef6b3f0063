"""The command line on models whose weights are updated: profile, solve, run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import memplan
import pytest
import torch
from click.testing import CliRunner, Result
from memplan.cli.main import main
from memplan.devices.device.cpu import Cpu
from memplan.graphs.files.files import load_graph, save_graph
from memplan.graphs.graph import Graph, Kind, Phase
from memplan.graphs.transformations.updates import ADAMW, with_updates
from memplan.planner.baseline import baseline
from replaying import Replaying
from torch import nn

Plan = Callable[..., Result]

MODEL = """
import torch
from torch import nn

def build(width=64, batch=512):
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1)) for _ in range(4)]
    return nn.Sequential(*layers), (torch.randn(batch, width),), lambda output: output.square().mean()

def frozen():
    module, *rest = build()
    return module.requires_grad_(False), *rest
"""

LOW = """
def low():
    module, (x,), loss_fn = build()
    return module.bfloat16(), (x.bfloat16(),), loss_fn
"""

STORE_ALL = ("--solver", "store-all", "--budget", "100%", "-o", "schedule.json")


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)
    return lambda *arguments: CliRunner().invoke(main, [str(argument) for argument in arguments])


def updates_of(graph: Graph) -> list[int]:
    phases = graph.operations.phase.tolist()
    return [o for o, phase in enumerate(phases) if phase == Phase.UPDATE]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "options",
    [
        "--optimizer sgd --momentum 0.9 --nesterov --weight-decay 0.1 --update after --clip-norm 0.01",
        "--optimizer adam --amsgrad --lr 0.01",
        "--optimizer adamw --no-fused",
        "--optimizer lion --weight-decay 0.1",
        "--optimizer adamw --clip-norm 0.01 --early-updates",
    ],
)
def test_from_a_model_to_a_run_equal_to_torch_optim(plan: Plan, options: str) -> None:
    result = plan("profile", "model.py", *options.split(), "-o", "graph.json")
    assert result.exit_code == 0, result.stderr
    assert "weights, states and buffers of 3 iterations bitwise equal" in result.stdout
    graph = load_graph(Path("graph.json"))
    assert len(updates_of(graph)) == 8
    clips = "--clip-norm" in options
    assert [graph.tensors.name[x] for x in graph.results] == ["loss", *["grad_norm"] * clips]
    assert graph.source["optimizer"].get("clip_norm") == (0.01 if clips else None)
    assert graph.source["optimizer"]["fused"] is ("--no-fused" not in options)
    for update in map(graph.operation, updates_of(graph)):
        (mode,) = update.modes
        assert (mode.name, mode.on_host) == ("host", True)
        assert mode.time > 0
    solve = ("solve", "graph.json", "--budget", "75%", "--solver", "rotor")
    assert plan(*solve, "-o", "schedule.json").exit_code == 0
    run = ("run", "schedule.json", "--graph", "graph.json", "--model", "model.py")
    result = plan(*run, "--json", "--timing-repeats", "2")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["equal"] is True
    assert found["predicted"]["peak"] <= 0.75 * baseline(graph).peak
    assert found["measured"]["peak"] == pytest.approx(found["predicted"]["peak"], rel=0.001)


def test_master_weights_from_a_model_to_a_run(plan: Plan) -> None:
    Path("model.py").write_text(MODEL + LOW)
    words = ("--optimizer", "adamw", "--master-weights", "-o", "graph.json")
    result = plan("profile", "model.py:low", *words)
    assert result.exit_code == 0, result.stderr
    assert "weights, states and buffers of 3 iterations bitwise equal" in result.stdout
    graph = load_graph(Path("graph.json"))
    kinds, sizes = graph.tensors.kind, graph.tensors.bytes
    weights, states = (int(sizes[kinds == kind].sum()) for kind in (Kind.PARAMETER, Kind.OPTIMIZER_STATE))
    assert states == 3 * 2 * weights  # a master and two averages, each in float32
    assert plan("solve", "graph.json", *STORE_ALL).exit_code == 0
    run = ("run", "schedule.json", "--graph", "graph.json", "--model", "model.py:low", "--json")
    result = plan(*run, "--timing-repeats", "1")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["equal"] is True
    refused = plan("profile", "model.py", *words)
    assert refused.exit_code == 2
    assert "--master-weights: no weight that is trained is bfloat16 or float16" in refused.stderr


EARLY = ("--optimizer", "adamw", "--clip-norm", "1e-6", "--early-updates")


@pytest.mark.parametrize("together", [(), ("--bucket-size", "1MB")], ids=["alone", "in buckets"])
def test_early_updates_from_a_model_to_its_training(plan: Plan, together: tuple[str, ...]) -> None:
    """The copies of what updates overwrite are in the predicted host memory, and runs that are rolled back
    are counted."""
    assert plan("profile", "model.py", *EARLY, *together, "-o", "graph.json").exit_code == 0
    graph = load_graph(Path("graph.json"))
    kinds, sizes = graph.tensors.kind, graph.tensors.bytes
    kept = sizes[(kinds == Kind.PARAMETER) | (kinds == Kind.OPTIMIZER_STATE)].sum()
    assert plan("solve", "graph.json", *STORE_ALL).exit_code == 0
    of_model = ("schedule.json", "--graph", "graph.json", "--model", "model.py", "--json")
    result = plan("run", *of_model, "--timing-repeats", "1")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["equal"] is True
    assert found["predicted"]["host_peak"] == found["measured"]["host_peak"] == kept
    result = plan("train", *of_model, "--steps", "3", "--checkpoint", "run")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["rolled_back"] == 3
    rows = plan("train", *of_model[:-1], "--steps", "4", "--checkpoint", "run").stdout
    assert "rolled back   1 iterations ran twice (100%): their norm exceeded" in rows


def test_early_updates_of_an_estimate_take_the_time_of_their_copies(plan: Plan) -> None:
    times = list[float]()
    for options in (EARLY, EARLY[:-1]):
        result = plan("profile", "model.py", "--gpu", "rtx3060", *options, "-o", "graph.json")
        assert result.exit_code == 0, result.stderr
        graph = load_graph(Path("graph.json"))
        times.append(sum(graph.operation(update).time for update in updates_of(graph)))
    updated = sum(
        graph.tensors.bytes[graph.tensors.kind == kind].sum()
        for kind in (Kind.PARAMETER, Kind.OPTIMIZER_STATE)
    )
    link = graph.machine and graph.machine.links.d2h
    assert link
    assert times[0] - times[1] == pytest.approx(updated / link.rate, rel=0.2)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (EARLY[2:], "goes with --optimizer"),
        (
            (*EARLY[:2], "--early-updates"),
            "--early-updates goes with --clip-norm: without it no update waits",
        ),
        (
            (*EARLY, "--update", "after"),
            "--early-updates and --update after contradict each other: leave one",
        ),
    ],
    ids=str,
)
def test_early_updates_that_would_wait_for_nothing_are_refused(
    plan: Plan, options: tuple[str, ...], line: str
) -> None:
    result = plan("profile", "model.py", *options)
    assert result.exit_code == 2
    assert line in result.stderr


def test_all_states_on_the_host_and_updated_there(plan: Plan) -> None:
    """What ZeRO-Offload does, by its schedule, and bit by bit what torch.optim does."""
    assert plan("profile", "model.py", "--optimizer", "adamw", "-o", "graph.json").exit_code == 0
    solve = ("solve", "graph.json", "--solver", "zero-offload", "--machine", "rtx3060")
    result = plan(*solve, "-o", "schedule.json")
    assert result.exit_code == 0, result.stderr
    run = ("run", "schedule.json", "--graph", "graph.json", "--model", "model.py")
    result = plan(*run, "--json", "--timing-repeats", "1")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["equal"] is True


@pytest.mark.scripts
def test_a_run_as_a_cuda_graph(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU that stands for a device with graphs; else it is refused in one line."""
    assert plan("profile", "model.py", "--optimizer", "adamw", "-o", "graph.json").exit_code == 0
    assert plan("solve", "graph.json", *STORE_ALL).exit_code == 0
    run = ("run", "schedule.json", "--graph", "graph.json", "--model", "model.py", "--cuda-graph", "--json")
    result = plan(*run)
    assert result.exit_code == 2
    assert "cuda_graph: cpu has no CUDA graphs; leave the option out" in result.stderr
    stands_for = Replaying()
    monkeypatch.setattr(Cpu, "captures", True)
    monkeypatch.setattr(Cpu, "captured", lambda _cpu, *arguments: stands_for.captured(*arguments))
    result = plan(*run)
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["equal"] is True
    assert stands_for.replays > stands_for.captured_count > 0


def test_an_estimate_has_states_and_both_speeds(plan: Plan) -> None:
    result = plan(
        *("profile", "model.py", "--estimate", "--gpu", "rtx3060", "--optimizer", "adamw"),
        *("--update", "after", "--betas", "0.9", "0.95", "-o", "graph.json"),
    )
    assert result.exit_code == 0, result.stderr
    graph = load_graph(Path("graph.json"))
    chosen = {"name": "adamw", "update": "after", "betas": [0.9, 0.95], "fused": True}
    assert graph.source["optimizer"] == chosen
    sizes = graph.tensors.bytes
    states = sizes[graph.tensors.kind == Kind.OPTIMIZER_STATE].sum()
    assert states == 2 * sizes[graph.tensors.kind == Kind.PARAMETER].sum()
    operations = len(graph.operations)
    assert updates_of(graph) == list(range(operations - 8, operations))
    update = graph.operation(graph.operation_index["0.0.weight/update"])
    assert update.modes[0].time == pytest.approx(7 / 20 * 4 * 64 * 64 / 1.1e9)


def test_a_graph_updated_afterwards_can_not_be_run(plan: Plan) -> None:
    assert plan("profile", "model.py", "-o", "plain.json").exit_code == 0
    graph = with_updates(load_graph(Path("plain.json")), optimizer=ADAMW, when="in-backward", device_rate=1e9)
    save_graph(graph, Path("graph.json"))
    assert plan("solve", "graph.json", *STORE_ALL).exit_code == 0
    result = plan("run", "schedule.json", "--graph", "graph.json", "--model", "model.py")
    assert result.exit_code == 2
    assert "no fingerprint" in result.stderr


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("change", "code", "line"),
    [
        ({"name": "sgd"}, 6, "fingerprint"),
        ({"name": "__import__"}, 2, "no optimizer '__import__'"),
        ({"fused": False}, 6, "fingerprint"),
        ({"decay": 0.5}, 2, "unknown field 'decay'"),
    ],
)
def test_another_optimizer_is_a_mismatch(plan: Plan, change: dict[str, object], code: int, line: str) -> None:
    assert plan("profile", "model.py", "--optimizer", "adamw", "-o", "graph.json").exit_code == 0
    assert plan("solve", "graph.json", *STORE_ALL).exit_code == 0
    document = json.loads(Path("graph.json").read_text())
    document["source"]["optimizer"] |= change
    Path("graph.json").write_text(json.dumps(document))
    result = plan("run", "schedule.json", "--graph", "graph.json", "--model", "model.py")
    assert (result.exit_code, result.stderr.count("\n")) == (code, 1), result.stderr
    assert line in result.stderr


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["model.py", "--lr", "0.1"], "--lr goes with --optimizer"),
        (["model.py", "--no-fused"], "--fused goes with --optimizer"),
        (["model.py", "--optimizer", "lamb"], "'lamb' is not one of 'adadelta', 'adafactor', "),
        (["model.py", "--optimizer", "sgd", "--eps", "1"], "sgd has no eps"),
        (["model.py", "--optimizer", "adamw", "--lr", "nan"], "adamw: a number is not finite"),
        (["model.py", "--optimizer", "adamw", "--lr", "-1"], "adamw: Invalid learning rate: -1.0"),
        (["model.py:frozen", "--optimizer", "sgd"], "sgd: optimizer got an empty parameter list"),
    ],
)
def test_an_error_is_one_line(plan: Plan, arguments: list[str], line: str) -> None:
    result = plan("profile", *arguments)
    assert result.exit_code == 2
    assert line in result.stderr
    assert result.stderr.count("\n") == 1 or "Usage" in result.stderr


def test_optimize_takes_the_optimizer() -> None:
    """The step updates the weights: as a loop of PyTorch does."""

    def made() -> tuple[nn.Module, tuple[torch.Tensor], torch.optim.Optimizer]:
        torch.manual_seed(0)
        module = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.GELU()) for _ in range(4)))
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2, foreach=False)
        return module, (torch.randn(256, 32),), optimizer

    module, inputs, optimizer = made()
    step = memplan.optimize(
        module, inputs, budget="90%", loss_fn=torch.sum, optimizer=optimizer, solver="rotor"
    )
    losses = [step(*inputs).item() for _ in range(3)]
    other, inputs, eager = made()
    for expected in losses:
        eager.zero_grad()
        loss = other(*inputs).sum()
        loss.backward()
        eager.step()
        assert loss.item() == expected
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), other.parameters(), strict=True))
