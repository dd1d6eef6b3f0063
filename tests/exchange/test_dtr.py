"""DTR's logs: the graph is the simulator's problem; refusals name the line."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from memplan.exchange.formats import Options, read
from memplan.graphs.errors import InputError
from memplan.graphs.graph import Graph, Kind, Phase
from memplan.planner.baseline import baseline

Row = dict[str, Any]


def constant(name: str, size: int) -> list[Row]:
    return [
        {"INSTRUCTION": "CONSTANT", "NAME": name},
        {"INSTRUCTION": "MEMORY", "NAME": name, "MEMORY": str(size)},
    ]


def call(name: str, time: int, args: list[str], results: list[tuple[str, int, int]]) -> list[Row]:
    """results: name, bytes, and the argument of which it is a view."""
    rows: list[Row] = [
        {
            "INSTRUCTION": "CALL",
            "NAME": name,
            "TIME": str(time),
            "ARGS": args,
            "RESULT": [result for result, _size, _of in results],
        }
    ]
    for result, size, of in results:
        rows.append({"INSTRUCTION": "MEMORY", "NAME": result, "MEMORY": str(size)})
        rows.append({"INSTRUCTION": "ALIAS", "NAME": result, "ALIAS": str(of)})
    return rows


LOG: list[Row] = [
    {"INSTRUCTION": "CONSTANT", "NAME": "of no interest"},
    {"INSTRUCTION": "ANNOTATE", "ANNOTATION": "START"},
    *constant("w", 100),
    {"INSTRUCTION": "COPY", "DST": "w2", "SRC": "w"},
    {"INSTRUCTION": "RELEASE", "NAME": "w"},
    *call("mm", 7, ["w2"], [("a", 30, -1)]),
    *call("t", 1, ["a"], [("v", 30, 0)]),
    *call("split", 2, ["v"], [("u", 15, 0), ("s", 4, -1)]),
    {"INSTRUCTION": "RELEASE", "NAME": "unknown"},
    {"INSTRUCTION": "ANNOTATE", "ANNOTATION": "BACKWARD"},
    {"INSTRUCTION": "MUTATE", "NAME": "add_", "TIME": "5", "ARGS": ["a", "s"], "MUTATE": [0]},
    *call("mul", 3, ["u", "a"], [("g", 8, -1)]),
    {"INSTRUCTION": "COPY_FROM", "DST": "s", "SRC": "g"},
    {"INSTRUCTION": "RELEASE", "NAME": "g"},
    {"INSTRUCTION": "RELEASE", "NAME": "v"},
    {"INSTRUCTION": "RELEASE", "NAME": "a"},
]


def write(rows: list[Row], path: Path) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return path


def names(graph: Graph, tensors: Any) -> list[str]:
    return [str(graph.tensors.name[x]) for x in tensors]


def test_views_share_memory_changes_make_copies_and_names_that_are_left_are_results(tmp_path: Path) -> None:
    graph = read("dtr", write(LOG, tmp_path / "mlp-6-8e9-2020.log"), Options())
    assert graph.name == "dtr-mlp"
    operations = graph.operations
    assert [*operations.name] == ["mm/1", "t/2", "split/3", "add_/4", "mul/5"]
    assert operations.time.tolist() == pytest.approx([7e-9, 1e-9, 2e-9, 5e-9, 3e-9])
    assert operations.phase.tolist() == [Phase.FORWARD] * 3 + [Phase.BACKWARD] * 2
    assert [sorted(names(graph, row)) for row in operations.reads.lists()] == [
        ["w"],
        ["a"],
        ["a", "v"],
        ["a", "s"],
        # u is a view of what a was before it was changed
        ["a", "a/4", "u"],
    ]
    assert [names(graph, row) for row in operations.writes.lists()] == [
        ["a"],
        ["v"],
        ["u", "s"],
        ["a/4"],
        ["g"],
    ]
    sizes = dict(zip(graph.tensors.name, graph.tensors.bytes.tolist(), strict=True))
    assert sizes == {"w": 100, "a": 30, "v": 0, "u": 0, "s": 4, "a/4": 30, "g": 8}
    assert graph.tensors.kind[0] == Kind.INPUT
    # u and with it the memory of a, and s, which is what was g
    assert sorted(names(graph, graph.results)) == ["a", "g", "u"]
    assert baseline(graph).peak == 100 + 30 + 30 + 8


def test_a_unit_of_time_may_be_given(tmp_path: Path) -> None:
    graph = read("dtr", write(LOG, tmp_path / "a.log"), Options(time_unit=1e-6))
    assert graph.operations.time[0] == pytest.approx(7e-6)
    assert graph.name == "dtr-a"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([{"INSTRUCTION": "SWAP"}], r"line 28: the instruction 'SWAP' is not known"),
        (call("mm", 1, ["x"], [("y", 1, -1)]), "line 28: no field or tensor 'x' before it"),
        (call("mm", 1, ["u"], [("y", 1, 1)]), "y is a view of argument 1, of 1"),
        (call("mm", 1, ["u"], [("y", 1, -1)])[:2], "ALIAS of y does not follow"),
        (call("mm", -1, ["u"], [("y", 1, -1)]), "TIME must be a whole number"),
        (constant("w2", 1), "w2 is there already"),
        ([{"INSTRUCTION": "MUTATE", "NAME": "m", "TIME": "1", "ARGS": ["u"], "MUTATE": [1]}], "argument 1"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_line(
    more: list[Row], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        read("dtr", write(LOG + more, tmp_path / "a.log"), Options())


def test_an_archive_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "logs.zip").write_bytes(b"PK\x03\x04\xff\xfe\x00")
    with pytest.raises(InputError, match="unzip it first"):
        read("dtr", tmp_path / "logs.zip", Options())


def test_damaged_logs_are_read_or_refused_in_one_line(tmp_path: Path) -> None:
    random = Random(0)
    for _case in range(300):
        rows = [dict(row) for row in LOG]
        row = random.choice(rows)
        key = random.choice([*row])
        values: list[Any] = [None, "", "x", 3, -1, "99", [], ["a"], {}, 2**80, "9" * 30]
        row[key] = random.choice(values)
        if random.random() < 0.3:
            del rows[random.randrange(len(rows))]
        refused = ""
        try:
            read("dtr", write(rows, tmp_path / "a.log"), Options())
        except InputError as error:
            refused = str(error)
        assert "\n" not in refused
