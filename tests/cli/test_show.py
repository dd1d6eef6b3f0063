"""What `plan show` shows: the accounts of time and memory against the simulator, and the picture."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from memplan.cli.main import main
from memplan.cli.printing import breakdown
from memplan.cli.printing.curve import draw
from memplan.graphs.draft import Draft
from memplan.graphs.files.files import save_graph
from memplan.graphs.generators import chain, unet
from memplan.graphs.graph import Kind, Mode, Phase
from memplan.graphs.machine import Links, Machine
from memplan.graphs.units import duration
from memplan.planner.addresses.lifetimes import lifetimes
from memplan.planner.baseline import baseline_schedule
from memplan.planner.schedule.file import save_schedule
from memplan.planner.schedule.schedule import Initial, Schedule, compute, delete, offload, prefetch
from memplan.planner.schedule.sequence import in_default_mode, schedule_of
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.problem import InfeasibleError, Problem
from memplan.solvers.registry import run as registry


@given(st.integers(2, 12), st.integers(0, 50), st.integers(0, 40))
def test_time_is_accounted_for(blocks: int, seed: int, slack: int) -> None:
    """By phase, and between first and later runs, modes included."""
    graph = chain(blocks, seed=seed)
    plain = simulate(graph, baseline_schedule(graph)).figures
    budget = plain.peak * (100 - slack) // 100
    try:
        solution = registry.solve("rotor", Problem(graph, budget), bound_seconds=0)
    except InfeasibleError:
        return
    rows = breakdown.phases(graph, solution.schedule)
    recomputed = breakdown.recomputed(graph, solution.schedule)
    assert sum(row["time"] for row in rows) == pytest.approx(solution.figures.time)
    assert sum(row["recompute_seconds"] for row in rows) == pytest.approx(
        sum(row["recompute_seconds"] for row in recomputed)
    )
    assert sum(row["runs"] - row["operations"] for row in rows) == sum(row["runs"] - 1 for row in recomputed)
    assert [row["recompute_seconds"] for row in recomputed] == sorted(
        (row["recompute_seconds"] for row in recomputed), reverse=True
    )


@given(st.integers(1, 5), st.integers(0, 20))
def test_the_peak_is_accounted_for(depth: int, seed: int) -> None:
    """Of a plain schedule with repeats: the tensors there and `other` are the peak."""
    graph = unet(depth, seed=seed)
    once = list(range(len(graph.operations)))
    first_half = [i for i in once if graph.operations.phase[i] == Phase.FORWARD]
    schedule = schedule_of(graph, in_default_mode([*first_half, *first_half, *once[len(first_half) :]]))
    replay = simulate(graph, schedule)
    found = breakdown.peak(graph, schedule, lifetimes(graph, schedule))
    assert found["bytes"] == replay.figures.peak
    assert sum(found["by_kind"].values()) + found["other"] == replay.figures.peak
    assert sum(tensor["bytes"] for tensor in found["tensors"]) == sum(found["by_kind"].values())
    operation = schedule.targets.item(found["step"])
    made_anew = found["other"] - int(graph.operations.workspace[operation])
    assert 0 <= made_anew <= sum(found["by_kind"].values())


def test_transfers_move_what_is_on_the_device() -> None:
    """w is on the host at first; b runs on the host; x leaves and comes back.

    a: w -> x     c: x -> loss      b (on the host): w -> y
    """
    draft = Draft("host")
    w = draft.tensor("w", 100, Kind.PARAMETER)
    x, y, loss = draft.tensor("x", 10), draft.tensor("y", 1), draft.tensor("loss", 4)
    a = draft.operation("a", time=1, reads=[w], writes=[x])
    on_host = Mode("cpu", 2.0, 0, (y,), on_host=True)
    b = draft.operation("b", time=1, reads=[w], writes=[y], modes=[on_host])
    below = Mode("go", 1.0, 0, (loss,), writes_host=(loss,))
    c = draft.operation("c", time=1, reads=[x], writes=[loss], phase=Phase.LOSS, modes=[below])
    graph = draft.graph([loss, y], Machine(links=Links(d2h=1e3, h2d=1e3)))
    steps = [
        prefetch(w),
        compute(a),
        delete(w),
        offload(x),
        delete(x),
        compute(b, 1),
        prefetch(x),
        compute(c),
    ]
    schedule = Schedule.of(steps, Initial(host=frozenset([w])))
    copied = breakdown.transfers(graph, schedule)
    assert copied == {"offloads": {"steps": 1, "bytes": 10}, "prefetches": {"steps": 2, "bytes": 110}}
    found = breakdown.peak(graph, schedule, lifetimes(graph, schedule))
    # While w comes, the x of the iteration before has gone no further than its delete.
    assert found["by_kind"] == {"parameter": 100, "activation": 20}
    assert found["bytes"] == simulate(graph, schedule).figures.peak == 120
    assert breakdown.phases(graph, schedule)[0] == {
        "phase": "forward",
        "operations": 2,
        "runs": 2,
        "time": 3.0,
        "recompute_seconds": 0.0,
    }


def test_what_waits_for_a_transfer_is_of_its_kind() -> None:
    """g is deleted while its copy to the host runs: at the peak, while d is made, it is there still."""
    draft = Draft("waits")
    g, d = draft.tensor("g", 10, Kind.PARAMETER_GRADIENT), draft.tensor("d", 20, Kind.GRADIENT)
    draft.operation("a", time=1, writes=[g])
    draft.operation("b", time=1, writes=[d], workspace=3)
    graph = draft.graph([g], Machine(links=Links(d2h=1.0)))
    schedule = Schedule.of([compute(0), offload(g), delete(g), compute(1)])
    found = breakdown.peak(graph, schedule, lifetimes(graph, schedule))
    # Of two iterations: the copy of g takes 10 seconds.
    assert found["by_kind"] == {"gradient": 20, "parameter_gradient": 20}
    assert found["other"] == 3
    assert [tensor["tensor"] for tensor in found["tensors"]] == ["d", "g", "g"]


@given(
    st.lists(st.integers(0, 10**12), min_size=1, max_size=400),
    st.none() | st.integers(1, 10**13),
    st.integers(10, 250),
    st.booleans(),
)
def test_the_picture_fits_and_is_to_scale(
    curve: list[int], budget: int | None, width: int, blocks: bool
) -> None:
    lines = [line.plain for line in draw(np.array(curve), budget, width=width, blocks=blocks)]
    assert all(len(line) <= max(width, 26) or "far above" in line for line in lines)
    bars = [
        line for line in lines if ("│" in line or "|" in line) and "budget" not in line and "──" not in line
    ]
    full = "█" if blocks else "#"
    columns = {column for line in bars for column, cell in enumerate(line) if cell == full}
    for column in columns:  # no bar floats
        heights = [row for row, line in enumerate(bars) if len(line) > column and line[column] == full]
        assert heights == list(range(min(heights), len(bars)))
    assert blocks or all(line.isascii() for line in lines)


def test_a_known_picture() -> None:
    """A ramp of four steps up to a budget of 4 KiB; each step is four columns wide."""
    curve = np.array([1024, 2048, 3072, 4096])
    lines = draw(curve, 4096, [(0, "forward"), (2, "backward")], width=31, height=4)
    assert [line.plain for line in lines] == [
        "   4.00 KiB │ ────────────────",
        "            │             ████",
        "            │         ████████",
        "   2.00 KiB │     ████████████",
        "            │ ████████████████",
        "        0 B └─────────────────",
        "              forward backward",
    ]


def test_a_budget_far_above_is_said_not_drawn() -> None:
    lines = [line.plain for line in draw(np.array([5, 10]), 1000, width=80, height=4)]
    assert lines[0].startswith("       10 B │ ")
    assert "the budget, 1000 B, lies far above" in lines[-1]


@pytest.mark.parametrize("width", [20, 80, 200])
def test_show_fills_the_terminal(width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(width))
    graph = unet(6)
    save_graph(graph, "graph.json")
    save_schedule("s.json", graph, baseline_schedule(graph))
    shown = CliRunner().invoke(main, ["show", "s.json", "--graph", "graph.json"])
    assert shown.exit_code == 0, shown.stderr
    assert "0 operations recomputed" in shown.stdout
    longest = max(len(line) for line in shown.stdout.splitlines() if "│" in line)
    assert longest <= max(width, 26)
    assert longest >= min(width, 80) * 0.6
    result = CliRunner().invoke(main, ["show", "s.json", "--graph", "graph.json", "--json"])
    document = json.loads(result.stdout)
    assert document["budget"] is None
    assert document["peak_at"]["bytes"] == document["peak"] == max(document["device_curve"])


def test_an_empty_schedule_of_an_empty_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    graph = Draft("nothing").graph()
    save_graph(graph, "graph.json")
    save_schedule("s.json", graph, baseline_schedule(graph))
    for command in (["show"], ["check"], ["show", "--json"], ["check", "--json"]):
        result = CliRunner().invoke(main, [command[0], "s.json", "--graph", "graph.json", *command[1:]])
        assert result.exit_code == 0, result.stderr
    result = CliRunner().invoke(main, ["solve", "graph.json", "--budget", "60%", "--solver", "store-all"])
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (1.5e-6, "1.50 µs"),
        (0.0123, "12.3 ms"),
        (1, "1.00 s"),
        (123.4, "123 s"),
        (66014, "66,014 s"),
    ],
)
def test_durations_have_three_digits(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(("launch", "limits"), [(0.0, False), (0.001, False), (2.0, True)])
def test_solve_check_and_show_say_where_launches_limit(
    launch: float, limits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    graph = chain(4, seed=1)
    slow = replace(graph.operations, launch=np.full(len(graph.operations), launch))
    save_graph(replace(graph, operations=slow), "g.json")
    alone = launch * len(graph.operations)
    for call in (
        "solve g.json --solver store-all --budget 100% -o s.json",
        *(f"{c} s.json --graph g.json" for c in ("check", "show")),
    ):
        result = CliRunner().invoke(main, call.split())
        assert result.exit_code == 0, result.stderr
        found = [
            line.split(maxsplit=1)[1] for line in result.stdout.splitlines() if line.startswith("launches")
        ]
        computing = duration(graph.operations.time.sum())
        said = f"{duration(alone)}, computations {computing}: launching is what limits"
        assert found == [said] * limits
