"""plan-schedule/1 on disk."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from memplan.graphs.draft import Draft
from memplan.graphs.errors import InputError
from memplan.graphs.files.files import graph_digest
from memplan.graphs.generators import chain
from memplan.graphs.graph import Graph, Kind, Mode
from memplan.graphs.machine import Link, Links, Machine, Memory, Tier
from memplan.planner.baseline import baseline_schedule
from memplan.planner.schedule.file import load_schedule, save_schedule
from memplan.planner.schedule.schedule import Initial, Schedule, compute, delete, offload, prefetch
from memplan.planner.simulator.simulate import simulate


def small() -> Graph:
    draft = Draft("small")
    w = draft.tensor("w", 4, Kind.PARAMETER)
    x = draft.tensor("x", 4)
    draft.operation("F", time=1, reads=[w], writes=[x], modes=[Mode("dha", 2, 0, (x,), (w,))])
    return draft.graph([x])


ALL_VERBS = Schedule.of(
    [
        prefetch(0, Memory.HOST),
        prefetch(0),
        offload(0, Memory.DISK),
        offload(0),
        compute(0, 1),
        compute(0),
        delete(1),
        delete(0, Memory.HOST),
        delete(0, Memory.DISK),
    ],
    Initial(disk=frozenset({0})),
)


FOUR = Machine(
    links=Links(2.0, 2.0, 2.0, 2.0), disk_name="cxl", deeper=(Tier("disk", 100, Link(2.0), Link(2.0)),)
)
"""device, host, cxl, disk"""


def test_a_fourth_memory_is_named_by_the_machine(tmp_path: Path) -> None:
    """Its steps are read back by the names in the schedule's own machine, or in the graph's; without either
    the file is refused, not misread."""
    graph, path = small(), tmp_path / "schedule.json"
    steps = [
        prefetch(0, 2), prefetch(0, 1), prefetch(0), compute(0), delete(0), delete(0, 1), delete(0, 2),
        offload(1), offload(1, 2), offload(1, 3), delete(1), delete(1, 1), delete(1, 2),
    ]  # fmt: skip
    schedule = Schedule.of(steps, Initial(groups=[((3,), [0])]))
    simulate(graph, schedule, machine=FOUR)
    save_schedule(path, graph, schedule, machine=FOUR)
    document = json.loads(path.read_text())
    assert document["initial"] == {"host": [], "cxl": [], "both": [], "disk": ["w"]}
    assert document["steps"][:3] == [["prefetch", "w", "cxl"], ["prefetch", "w", "host"], ["prefetch", "w"]]
    assert document["steps"][8:10] == [["offload", "x", "cxl"], ["offload", "x", "disk"]]
    del document["machine"]
    without = tmp_path / "without.json"
    without.write_text(json.dumps(document))
    for file in (load_schedule(path, graph), load_schedule(without, replace(graph, machine=FOUR))):
        assert list(file.schedule) == steps
        assert file.schedule.initial == schedule.initial
    with pytest.raises(InputError, match="prefetch has no memory 'cxl': one of device, host"):
        load_schedule(without, graph)


def test_tensors_may_start_in_any_memories(tmp_path: Path) -> None:
    graph, path = small(), tmp_path / "schedule.json"
    for groups, field in (
        ([((1, 2), [0])], "host+cxl"),
        ([((0, 3), [0])], "device+disk"),
        ([((0, 1), [0])], "both"),
        ([((0, 1, 2, 3), [0])], "device+host+cxl+disk"),
    ):
        schedule = Schedule.of([compute(0)], Initial(groups=groups))
        save_schedule(path, graph, schedule, machine=FOUR)
        assert json.loads(path.read_text())["initial"][field] == ["w"]
        assert load_schedule(path, graph).schedule.initial == schedule.initial


@pytest.mark.parametrize("suffix", [".json", ".yaml", ".json.gz"])
def test_every_step_is_read_back(tmp_path: Path, suffix: str) -> None:
    graph, machine = small(), Machine(100, links=Links(d2h=2.0))
    path = tmp_path / f"schedule{suffix}"
    save_schedule(
        path,
        graph,
        ALL_VERBS,
        budget=99,
        machine=machine,
        solver={"name": "hand", "seconds": 0.5},
        predicted={"peak": 8, "lower_bound": None},
    )
    file = load_schedule(path, graph)
    assert list(file.schedule) == list(ALL_VERBS)
    assert file.schedule.initial == ALL_VERBS.initial
    assert (file.budget, file.machine) == (99, machine)
    assert (file.graph_name, file.graph_sha256) == ("small", graph_digest(graph))
    assert (file.solver["name"], file.predicted["lower_bound"]) == ("hand", None)


def test_the_words_of_the_format(tmp_path: Path) -> None:
    save_schedule(tmp_path / "s.json", small(), ALL_VERBS)
    document = json.loads((tmp_path / "s.json").read_text())
    assert document["format"] == "plan-schedule/1"
    assert document["initial"] == {"host": [], "disk": ["w"], "both": []}
    assert document["steps"] == [
        ["prefetch", "w", "host"],
        ["prefetch", "w"],
        ["offload", "w", "disk"],
        ["offload", "w"],
        ["compute", "F", "dha"],
        ["compute", "F"],
        ["delete", "x"],
        ["delete", "w", "host"],
        ["delete", "w", "disk"],
    ]


MALFORMED: dict[str, tuple[str, Any, str]] = {
    "another-format": ("format", "plan-graph/1", "format is 'plan-graph/1'"),
    "unknown-field": ("note", "", "unknown field 'note'"),
    "no-steps": ("steps", None, "steps must be a list"),
    "no-graph-digest": ("graph", {"name": "g"}, "field 'sha256' is missing"),
    "bad-budget": ("budget", "12 Gbit", "field 'budget'"),
    "bad-machine": ("machine", {"links": {"d2h": -1}}, "field 'd2h'"),
    "step-is-text": ("steps", ["F"], "steps[0] ('F'): a step must be a list"),
    "step-too-short": ("steps", [["compute"]], "a step is a verb, a name"),
    "step-too-long": ("steps", [["delete", "x", "host", "now"]], "a step is a verb, a name"),
    "step-with-number": ("steps", [["compute", 0]], "a step is a verb, a name"),
    "unknown-verb": ("steps", [["run", "F"]], "unknown verb 'run'"),
    "unknown-operation": ("steps", [["compute", "G"]], "the graph has no operation 'G'"),
    "unknown-tensor": ("steps", [["delete", "F"]], "the graph has no tensor 'F'"),
    "unknown-mode": ("steps", [["compute", "F", "fast"]], "the operation has no mode 'fast': it has dha"),
    "unknown-memory": ("steps", [["delete", "x", "moon"]], "delete has no memory 'moon'"),
    "offload-to-device": ("steps", [["offload", "x", "device"]], "offload has no memory 'device'"),
    "prefetch-to-disk": ("steps", [["prefetch", "x", "disk"]], "prefetch has no memory 'disk'"),
    "initial-unknown": ("initial", {"host": ["q"]}, "'initial.host' names the unknown tensor 'q'"),
    "initial-place": ("initial", {"moon": []}, "unknown field 'moon'"),
    "initial-on-the-device": ("initial", {"device": ["w"]}, "unknown field 'device'"),
    "initial-out-of-order": ("initial", {"disk+host": ["w"]}, "unknown field 'disk+host'"),
    "initial-part-unknown": ("initial", {"host+moon": ["w"]}, "unknown field 'host+moon'"),
    "initial-one-twice": ("initial", {"host+host": ["w"]}, "unknown field 'host+host'"),
}


@pytest.mark.parametrize("fault", MALFORMED)
def test_malformed_schedule_is_refused(fault: str, tmp_path: Path) -> None:
    path = tmp_path / "schedule.json"
    save_schedule(path, small(), ALL_VERBS)
    document = json.loads(path.read_text())
    field, value, expected = MALFORMED[fault]
    path.write_text(json.dumps({**document, field: value}))
    with pytest.raises(InputError) as refusal:
        load_schedule(path, small())
    assert str(refusal.value).startswith(f"{path}: ")
    assert expected in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_same_schedule_same_bytes(tmp_path: Path) -> None:
    graph = chain(9)
    for name in ("a.json.gz", "b.json.gz"):
        save_schedule(tmp_path / name, graph, baseline_schedule(graph))
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()
