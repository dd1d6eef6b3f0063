"""`plan run` of schedules with transfers: the peaks of all memories, planned and measured, and refusals."""

import gc
import json
import random
from pathlib import Path

import memplan
import pytest
from click.testing import CliRunner
from memplan.cli.main import main
from memplan.graphs.graph import Kind
from memplan.graphs.machine import Memory
from memplan.planner.simulator.simulate import simulate
from small_offload import small_case
from transfers import MACHINE, absent

MODEL = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    layers = [nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.3), nn.Linear(32, 4)]
    return nn.Sequential(*layers), (torch.randn(8, 16),), lambda output: output.square().mean()
"""

RUN = ("run", "schedule.json", "--graph", "graph.json", "--model", "model.py", "--timing-repeats", "2")


@pytest.fixture
def plan(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)
    return lambda *arguments: CliRunner().invoke(main, list(map(str, arguments)))


@pytest.fixture
def figures(plan):
    """Of schedule.json: updates on the CPU, states on the host, weights and activations on host and disk."""
    profiled = plan("profile", "model.py", "--optimizer", "adamw", "-o", "graph.json")
    assert profiled.exit_code == 0, profiled.stderr
    graph = memplan.load_graph("graph.json")
    modes = graph.operations.modes
    runs = [(index, int(index in modes)) for index in range(len(graph.operations))]
    kinds, memories = (Kind.ACTIVATION, Kind.PARAMETER), (Memory.HOST, Memory.DISK)
    made = (absent(graph, runs, random.Random(n), kinds=kinds, memories=memories) for n in range(99))
    schedule = next(one for one in made if simulate(graph, one, machine=MACHINE).figures.disk_peak)
    budget = simulate(graph, schedule, machine=MACHINE).figures.least_budget
    memplan.save_schedule("schedule.json", graph, schedule, budget=budget, machine=MACHINE)
    return simulate(graph, schedule, machine=MACHINE, budget=budget).figures


@pytest.mark.scripts
def test_all_memories_planned_and_measured(plan, figures):
    result = plan(*RUN, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["equal"] is True
    assert found["predicted"]["peak"] == figures.peak
    assert 0 < found["measured"]["host_peak"] <= found["predicted"]["host_peak"] == figures.host_peak
    assert found["measured"]["disk_peak"] == found["predicted"]["disk_peak"] == figures.disk_peak > 0
    assert found["measured"]["peak"] == pytest.approx(figures.peak, abs=5056)  # a generator's state
    text = plan(*RUN).stdout
    assert "host peak" in text
    assert "disk peak" in text
    assert "bitwise equal" in text


@pytest.mark.scripts
@pytest.mark.usefixtures("figures")
def test_the_folder_for_the_disk(plan):
    Path("scratch").mkdir()
    assert plan(*RUN, "--disk", "scratch").exit_code == 0
    gc.collect()
    assert not list(Path("scratch").iterdir())
    result = plan(*RUN, "--disk", "nowhere")
    assert result.exit_code == 2
    assert "nowhere: can't offload to it: No such file or directory" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.usefixtures("figures")
def test_a_machine_without_links_or_with_too_little_host_memory(plan):
    document = json.loads(Path("schedule.json").read_text())
    for machine, words in (
        ({"device": {"capacity": 10**9}}, "the machine has no link"),
        ({**document["machine"], "host": {"capacity": 64}}, "the host"),
    ):
        Path("schedule.json").write_text(json.dumps({**document, "machine": machine}))
        result = plan(*RUN)
        assert result.exit_code == 5
        assert words in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1


def test_a_plan_that_can_pin_nothing_says_so_and_holds(plan):
    case = small_case(2)
    memplan.save_graph(case.graph, "small.json")
    both = {"rate": "10B/s", "pageable": "4B/s"}
    host = {"pinned": "1B"}
    Path("machine.json").write_text(json.dumps({"host": host, "links": {"d2h": both, "h2d": both}}))
    words = ("small.json", "--machine", "machine.json", "--budget", f"{case.budget}", "--solver", "l2l")
    solved = plan("solve", *words, "-o", "slow.json")
    assert solved.exit_code == 0, solved.stderr
    assert solved.stderr.count("no schedule was found whose copies fit host.pinned (1 bytes)") == 1
    machine = json.loads(Path("slow.json").read_text())["machine"]
    assert machine["host"] == {"pinned": 0}
    assert machine["links"]["d2h"] == {"rate": 4.0, "pageable": 4.0}
    checked = plan("check", "slow.json", "--graph", "small.json", "--json")
    assert checked.exit_code == 0, checked.stderr
    assert json.loads(checked.stdout)["pinned_peak"] == 0
    refused = plan("check", "slow.json", "--graph", "small.json", "--machine", "machine.json")
    assert refused.exit_code == 5
    assert "pinned host memory" in refused.stderr
