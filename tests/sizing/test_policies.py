"""FSDP2's policies in sizing, tuned layer by layer too, against the solvers on the same graph."""

from __future__ import annotations

import json
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from memplan.cli.main import main
from memplan.graphs.machine import Links, Machine
from memplan.graphs.machines.networks import find_network
from memplan.graphs.machines.presets import find_preset
from memplan.planner.simulator.simulate import simulate
from memplan.sizing.loops import Loops
from memplan.sizing.policies import Policies
from memplan.sizing.subject import LoopOptions, open_subject
from memplan.sizing.trial import Known
from memplan.solvers.problem import Problem
from memplan.solvers.registry import run as registry
from torch import nn

BATCH, RANKS, BUDGET = 4096, 4, 171_600_000
MODEL = """
import torch
from torch import nn

def build(batch=8):
    layer = lambda: nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256), nn.GELU())
    return nn.Sequential(*(layer() for _ in range(4))), (torch.ones(batch, 256),), torch.sum
"""


def build(batch: int = 8) -> tuple[nn.Module, tuple[torch.Tensor, ...], Any]:
    made: dict[str, Any] = {}
    exec(MODEL, made)
    return made["build"](batch)


@pytest.fixture(scope="module")
def policies() -> Policies:
    peers = find_network("pcie4", RANKS)
    subject = open_subject(build, None, None, "adamw", "in-backward", LoopOptions(), lambda _line: None)
    loops = Loops(subject.estimates, find_preset("rtx3060"), peers=peers)
    return Policies(loops, Machine(links=Links(peers=peers)))


def test_the_tuned_policy_is_that_of_the_solver(policies: Policies) -> None:
    fastest, known = policies.figures(BATCH, BUDGET)[0], Known()
    assert policies.with_tuned(BATCH, BUDGET, known)[0] == fastest  # no other was tried
    policies.tune(BATCH, BUDGET)
    tuned, *others = policies.with_tuned(BATCH, BUDGET, known)
    assert tuple(others) == policies.figures(BATCH, BUDGET)
    graph = policies.loops.ordinary(BATCH).graph
    solved = registry.solve("fsdp-tuned", Problem(graph, BUDGET, policies.machine), bound_seconds=0)
    assert (tuned.name, tuned.seconds) == (solved.policy, pytest.approx(solved.figures.time))
    assert tuned.least <= BUDGET
    assert tuned.seconds is not None
    assert tuned.seconds < (fastest.seconds or 0.0)
    # In a plan's loop the same policy is valid, and updates come earlier.
    loop, machine = policies.loops.planned(BATCH).graph, policies.machine
    planned = known.best(loop, machine, BUDGET)
    assert planned is not None
    assert simulate(loop, planned, budget=BUDGET, machine=machine).figures.time <= tuned.seconds


def test_policies_tried_for_one_budget_are_known_for_another(policies: Policies) -> None:
    policies.tune(BATCH, BUDGET)
    first, second = (policies.with_tuned(BATCH, b, Known())[0] for b in (BUDGET, int(1.02 * BUDGET)))
    assert (second.seconds or inf) <= (first.seconds or 0.0)
    # All that needs no recomputation fits, or nothing does: nothing is faster than the 2 × 3.
    for budget in (10 * BUDGET, 1):
        assert policies.with_tuned(BATCH, budget, Known()) == policies.figures(BATCH, budget)


@pytest.mark.scripts
def test_no_plan_is_slower_than_the_tuned_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)
    words = ("size", "model.py", "--gpu", "rtx3060", "--ranks", RANKS, "--link", "pcie4", "--batch", BATCH)
    more = ("--budget", "180MB", "--solver", "fsdp", "--json")
    result = CliRunner().invoke(main, [str(word) for word in (*words, *more)])
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    (row,) = found["batches"]
    names = [one["policy"] for one in row["policies"]]
    assert len(names) == 7
    assert names[0].startswith("reshard 0 of 4 layers, selective checkpoints on ")
    assert row["time"] <= row["policies"][0]["time"] * (1 + 1e-9)
    assert names[0] in found["answer"]
    for point in found["curve"]:
        if point["policy_seconds"] is not None:
            assert point["seconds"] <= point["policy_seconds"] * (1 + 1e-9)
