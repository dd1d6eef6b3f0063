"""Plans on disk: found again, or made anew where they are not whole or not for this."""

from __future__ import annotations

import json
import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import memplan
import pytest
import torch
from memplan.graphs.errors import InputError
from memplan.graphs.folders.private import PrivateFolder
from memplan.graphs.machine import Link, Links, Machine
from memplan.planner.baseline import baseline_schedule
from memplan.solvers.registry.run import solve_or_unpin
from memplan.tracing.trace import trace
from memplan.training.plans import budgeted, front_end, plan_cache
from torch import nn
from torch.nn import functional
from transfers import adamw, seeded, unmeasured


def step(keep: bool | str | Path, budget: str = "100%", width: int = 16):
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 3))
    given: dict[str, Any] = {
        "targets": torch.randint(3, (32,)),
        "loss_fn": functional.cross_entropy,
        "solver": "rotor",
    }
    return memplan.optimize(module, torch.randn(32, 6), budget=budget, cache=keep, **given)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was measured and solved."""
    done: list[str] = []
    for owner, name in ((front_end, "measure_program"), (budgeted, "solve")):
        before = getattr(owner, name)
        monkeypatch.setattr(
            owner,
            name,
            lambda *given, name=name, before=before, **more: done.append(name) or before(*given, **more),
        )
    return done


def test_a_second_start_measures_and_solves_nothing(tmp_path: Path, counted: list[str]) -> None:
    first = step(tmp_path)
    assert counted == ["measure_program", "solve"]
    second = step(tmp_path)
    assert counted == ["measure_program", "solve"]
    assert second.plans[0].budget == first.plans[0].budget
    assert second.plans[0].source == first.plans[0].source
    x, labels = torch.randn(32, 6), torch.randint(3, (32,))
    assert torch.equal(first(x, targets=labels), second(x, targets=labels))


def test_a_plan_with_other_bytes_is_none_of_this_program(tmp_path: Path) -> None:
    """One of several ranks may have the bytes of whichever needs most; the plan of a rank alone may not."""
    program = trace(seeded("perceptron", adamw))
    graph = unmeasured(program)
    graph = replace(graph, tensors=replace(graph.tensors, bytes=graph.tensors.bytes + 512))
    plan = plan_cache.Plan(program, graph, baseline_schedule(graph), 10**9)
    folder, asked = PrivateFolder(tmp_path), ("a question",)
    plan_cache.keep(folder, plan, None, asked)
    assert plan_cache.find(folder, program, None, asked) is None
    assert plan_cache.find(folder, program, None, asked, same_bytes=False) is not None


@pytest.mark.scripts
def test_other_questions_have_other_plans(tmp_path: Path, counted: list[str]) -> None:
    for budget, width in (("100%", 16), ("1MB", 16), ("100%", 24)):
        step(tmp_path, budget, width)
    assert counted == ["measure_program", "solve"] * 3
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.scripts
def test_a_gap_is_the_solver_s_and_part_of_the_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, reported = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)), list[object]()

    def solve(*given: Any, **more: Any) -> object:
        reported.append(given[3])
        return solve_or_unpin(*given, **more)

    monkeypatch.setattr(budgeted, "solve", solve)
    given: dict[str, Any] = {
        "targets": torch.randint(3, (32,)),
        "loss_fn": functional.cross_entropy,
        "budget": "100%",
    }
    for gap in (None, "1%", "1%", 0.02):
        memplan.optimize(module, torch.randn(32, 6), cache=tmp_path, verify=False, gap=gap, **given)
    assert reported == [{}, {"gap": "1%"}, {"gap": "0.02"}]


@pytest.mark.parametrize(
    ("solver", "gap", "message"),
    [
        ("auto", "near", "auto: the setting gap must be a number, not 'near'"),
        ("auto", 1.0, "auto: gap 1.0: a gap is below 1, that is 100%: write 1%"),
        ("auto", 0.5, "auto: gap 0.5 can be read in two ways: write 0.5% or 50%"),
        ("search", 0.01, "search has no setting 'gap'"),
    ],
)
def test_gaps_that_cannot_be_meant_are_refused(solver: str, gap: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        memplan.optimize(nn.Linear(2, 2), torch.randn(1, 2), budget="100%", solver=solver, gap=gap)


def test_when_weights_are_updated_is_part_of_the_question(tmp_path: Path, counted: list[str]) -> None:
    """The same operations in another order have the same fingerprint."""
    orders: list[list[int]] = []
    for update in ("in-backward", "after", "in-backward"):
        module = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
        made = memplan.optimize(
            module,
            torch.randn(32, 6),
            loss_fn=torch.sum,
            budget="100%",
            optimizer=torch.optim.AdamW(module.parameters()),
            update=update,
            solver="store-all",
            cache=tmp_path,
        )
        orders.append([int(operation.phase) for operation in made.plans[0].program.operations])
    assert counted == ["measure_program", "solve"] * 2
    assert orders[0] == orders[2] != orders[1]


@pytest.mark.scripts
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["graph.json", "schedule.json"])
@pytest.mark.parametrize("spoil", ["cut", "changed", "gone"])
def test_what_is_not_whole_is_planned_anew(tmp_path: Path, counted: list[str], name: str, spoil: str) -> None:
    step(tmp_path)
    (file,) = tmp_path.glob(f"*/{name}")
    if spoil == "gone":
        file.unlink()
    elif spoil == "cut":
        file.write_bytes(file.read_bytes()[:100])
    else:
        document = json.loads(file.read_text())
        part = document["operations" if name == "graph.json" else "steps"]
        del part[0]
        file.write_text(json.dumps(document))
    step(tmp_path)
    assert counted == ["measure_program", "solve"] * 2
    step(tmp_path)
    assert counted == ["measure_program", "solve"] * 2


@pytest.mark.scripts
def test_plans_that_were_not_used_for_longest_go_where_a_folder_is_full(
    tmp_path: Path, counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for width in (16, 20):
        step(tmp_path, width=width)
    (tmp_path / "notes").mkdir()
    one, other = sorted(
        (place for place in tmp_path.iterdir() if place.name != "notes"), key=os.path.getmtime
    )
    monkeypatch.setattr(plan_cache, "MOST", sum(file.stat().st_size for file in other.iterdir()) + 1)
    step(tmp_path, width=24)
    assert one.exists()  # all were used within the hour
    for place in (one, other):
        os.utime(place, (1e9, 1e9))
    step(tmp_path, width=16)  # found, so used
    assert counted == ["measure_program", "solve"] * 3
    step(tmp_path, width=28)
    assert one.exists()
    assert not other.exists()
    assert (tmp_path / "notes").exists()


def test_a_folder_that_takes_nothing_costs_the_copy_alone(tmp_path: Path, counted: list[str]) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.warns(UserWarning, match=r"nothing is cached in .*: Not a directory") as reported:
        step(tmp_path / "taken" / "below")
    assert counted == ["measure_program", "solve"]
    assert len([one for one in reported if "cached" in str(one.message)]) == 1


@pytest.mark.scripts
def test_the_default_is_the_users_cache_and_false_is_nowhere(
    tmp_path: Path, counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    step(False)
    assert not list(tmp_path.rglob("schedule.json"))
    step(True)
    assert len(list((tmp_path / "memplan" / "plans").glob("*/schedule.json"))) == 1


def test_a_folder_that_is_a_file_and_things_that_are_no_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cache=.*file: plans are kept in a folder, and this is a file"):
        step(tmp_path / "file")
    with pytest.raises(InputError, match="cache=3: give a folder"):
        step(3)  # pyright: ignore[reportArgumentType]


def test_a_plan_that_pins_nothing_is_told_when_it_is_made_and_kept(tmp_path: Path) -> None:
    """Where no copies fit what can be pinned."""
    link = Link(1e9, pageable=5e8)
    machine = Machine(links=Links(link, link), pinned=1)

    def step() -> memplan.Step:
        torch.manual_seed(1)
        module = nn.Sequential(*(nn.Linear(16, 16) for _layer in range(4)))
        optimizer, batch = torch.optim.SGD(module.parameters(), 0.1), torch.randn(4, 16)
        given = {"optimizer": optimizer, "loss_fn": lambda output: output.square().mean(), "solver": "l2l"}
        return memplan.optimize(module, batch, budget="90%", machine=machine, cache=tmp_path, **given)

    with pytest.warns(UserWarning, match=r"fit host.pinned \(1 bytes\): this one pins nothing") as reported:
        first = step()
    assert len(reported) == 1
    with warnings.catch_warnings(action="error"):
        second = step()
    assert torch.equal(first(torch.ones(4, 16)), second(torch.ones(4, 16)))
    held = json.loads(next(tmp_path.rglob("schedule.json")).read_text())
    assert held["machine"]["host"] == {"pinned": 0}
