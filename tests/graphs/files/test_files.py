"""plan-graph/1 on disk: what is written is read back; what is malformed is refused in one line."""

from __future__ import annotations

import copy
import gzip
import json
import os
import re
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from memplan.graphs.draft import Draft
from memplan.graphs.errors import InputError
from memplan.graphs.files.documents import MOST_BYTES, read_document, regular_size, write_whole
from memplan.graphs.files.files import graph_digest, load_graph, save_graph
from memplan.graphs.files.read import graph_from_document
from memplan.graphs.files.write import graph_to_document
from memplan.graphs.generators import chain, layered, unet
from memplan.graphs.graph import Graph, Kind, Phase
from memplan.graphs.machine import Link

GOOD: dict[str, Any] = {
    "format": "plan-graph/1",
    "name": "tiny",
    "machine": {
        "device": {"capacity": "12GB"},
        "links": {"d2h": "12e9", "h2d": {"rate": "3GB/s", "latency": "20us"}},
    },
    "tensors": [
        {"name": "x0", "bytes": 10, "kind": "input"},
        {"name": "w", "bytes": "2KB", "kind": "parameter", "layer": "fc"},
        {"name": "x1", "bytes": 30, "kind": "activation"},
        {"name": "dw", "bytes": 2000, "kind": "parameter_gradient"},
    ],
    "operations": [
        {
            "name": "F",
            "phase": "forward",
            "time": 0.5,
            "launch": 2e-5,
            "reads": ["x0", "w"],
            "writes": ["x1"],
            "modes": {"dha": {"reads_host": ["w"], "time": 0.7}, "ff": {"writes": [], "launch": 0}},
        },
        {
            "name": "B",
            "phase": "backward",
            "time": 1,
            "reads": ["x1"],
            "writes": ["dw"],
            "workspace": 7,
            "modes": {"go": {"writes_host": ["dw"], "time": 2}},
        },
        {
            "name": "U",
            "phase": "update",
            "time": 0.1,
            "reads": ["dw"],
            "mutates": ["w"],
            "modes": {"cpu": {"on": "host"}},
        },
    ],
    "results": ["dw"],
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """GOOD with one place replaced; `...` removes it. Places: 'operations.0.time'."""
    document = copy.deepcopy(GOOD)
    *steps, last = path.split(".")
    place: Any = document
    for step in steps:
        place = place[int(step)] if isinstance(place, list) else place[step]
    if value is ...:
        del place[last]
    elif isinstance(place, list):
        place[int(last)] = value
    else:
        place[last] = value
    return document


MALFORMED = {
    "another-format": ("format", "plan-schedule/1", "format is 'plan-schedule/1'"),
    "another-version": ("format", "plan-graph/3", "format is 'plan-graph/3'"),
    "spread-in-version-1": ("tensors.0.spread", True, "unknown field 'spread'"),
    "no-tensors": ("tensors", ..., "field 'tensors' is missing"),
    "no-results": ("results", ..., "field 'results' is missing"),
    "unknown-field": ("budget", 1, "unknown field 'budget'"),
    "tensors-not-a-list": ("tensors", {}, "tensors must be a list"),
    "tensor-not-a-mapping": ("tensors.0", "x0", "tensors[0]: an entry must be a mapping"),
    "tensor-without-bytes": ("tensors.0.bytes", ..., "tensors[0] (x0): field 'bytes' is missing"),
    "tensor-unknown-field": ("tensors.0.size", 3, "tensors[0] (x0): unknown field 'size'"),
    "tensor-twice": ("tensors.1.name", "x0", "tensors[1] (x0): the name stands twice"),
    "operation-twice": ("operations.1.name", "F", "operations[1] (F): the name stands twice"),
    "nameless": ("tensors.0.name", "", "must be a non-empty text"),
    "negative-bytes": ("tensors.0.bytes", -1, "tensors[0] (x0): field 'bytes'"),
    "fractional-nonsense": ("tensors.0.bytes", True, "is not a number of bytes"),
    "infinite-bytes": ("tensors.0.bytes", float("inf"), "not a finite"),
    "nan-bytes": ("tensors.0.bytes", float("nan"), "not a finite"),
    "astronomic-bytes": ("tensors.0.bytes", 10**30, "more bytes than any machine has"),
    "unknown-unit": ("tensors.1.bytes", "2 Gbit", "unknown unit 'Gbit'"),
    "unknown-kind": ("tensors.0.kind", "weight", "unknown kind 'weight'"),
    "unhashable-kind": ("tensors.0.kind", [], "unknown kind []"),
    "unknown-phase": ("operations.0.phase", "middle", "operations[0] (F): unknown phase 'middle'"),
    "negative-time": ("operations.0.time", -0.1, "operations[0] (F): field 'time' must be finite"),
    "nan-time": ("operations.0.time", float("nan"), "field 'time' must be finite"),
    "infinite-time": ("operations.0.time", float("inf"), "field 'time' must be finite"),
    "huge-integer-time": ("operations.0.time", 10**400, "field 'time' must be finite"),
    "text-time": ("operations.0.time", "soon", "must be a number of seconds"),
    "negative-launch": ("operations.0.launch", -1, "operations[0] (F): field 'launch' must be finite"),
    "text-launch": ("operations.1.launch", "20us", "field 'launch' must be a number of seconds"),
    "astronomic-launch": ("operations.0.launch", 1e19, "to launch the operations takes more than 1e+18 s"),
    "mode-launch": ("operations.0.modes.dha.launch", None, "mode 'dha': field 'launch' must be a number"),
    "negative-workspace": ("operations.1.workspace", -7, "field 'workspace'"),
    "unknown-tensor-read": ("operations.0.reads.0", "x9", "'reads' names the unknown tensor 'x9'"),
    "unhashable-tensor": ("operations.0.reads.0", {}, "names the unknown tensor {}"),
    "unknown-tensor-written": ("operations.0.writes.0", "x9", "'writes' names the unknown tensor"),
    "tensor-read-twice": ("operations.0.reads", ["w", "w"], "'reads' names a tensor twice"),
    "unknown-result": ("results.0", "nope", "'results' names the unknown tensor 'nope'"),
    "result-never-made": ("operations", GOOD["operations"][:1], "results: dw is written by no operation"),
    "read-before-written": ("operations.0.reads.0", "dw", "F): reads dw before it could be written"),
    "reads-its-own-output": ("operations.0.reads.0", "x1", "F): reads x1 before it could be written"),
    "read-of-what-nobody-writes": ("operations.0.writes", [], "B): reads x1 before it could"),
    "writes-a-parameter": ("operations.0.writes", ["x1", "w"], "F): writes w, of kind parameter"),
    "changes-too-early": ("operations.0.mutates", ["dw"], "F): changes dw before it could be written"),
    "two-losses": ("operations.1.phase", "loss", "operations[1] (B): a second loss operation"),
    "flag-as-text": ("operations.0.recompute", "yes", "must be true or false"),
    "mode-unknown-field": ("operations.0.modes.dha.memory", 1, "mode 'dha': unknown field 'memory'"),
    "mode-elsewhere": ("operations.2.modes.cpu.on", "moon", "mode 'cpu': unknown on 'moon'"),
    "mode-writes-more": ("operations.0.modes.ff.writes", ["dw"], "mode 'ff' writes dw too"),
    "mode-reads-another": ("operations.0.modes.dha.reads_host", ["dw"], "reads dw from the host"),
    "mode-changes-what-it-reads-on-host": ("operations.2.modes.cpu.reads_host", ["w"], "changes w in place"),
    "mode-writes-another": (
        "operations.1.modes.go.writes_host",
        ["x1"],
        "writes x1 to the host, which it does",
    ),
    "mode-writes-less": (
        "operations.1.modes.go.writes",
        [],
        "writes dw to the host, which it does not write",
    ),
    "mode-on-host-writes-there": (
        "operations.1.modes.go.on",
        "host",
        "it writes all: leave 'writes_host' out",
    ),
    "machine-unknown-field": ("machine.tpu", {}, "unknown field 'tpu'"),
    "machine-without-rate": ("machine.links.d2h", 0, "field 'd2h'"),
    "machine-unknown-link": ("machine.links.nvlink", 1, "unknown field 'nvlink'"),
    "source-not-a-mapping": ("source", "here", "source must be a mapping"),
}


@pytest.mark.parametrize("fault", MALFORMED)
def test_malformed_graph_is_refused(fault: str) -> None:
    path, value, expected = MALFORMED[fault]
    document = changed(path, value)
    if fault == "two-losses":
        document["operations"][0]["phase"] = "loss"
    with pytest.raises(InputError) as refusal:
        graph_from_document(document, "folder/graph.yaml")
    message = str(refusal.value)
    assert message.startswith("folder/graph.yaml: ")
    assert expected in message
    assert "\n" not in message


def test_the_good_graph_is_read() -> None:
    graph = graph_from_document(GOOD, "graph")
    forward = graph.operation(0)
    assert forward.phase == Phase.FORWARD
    assert [graph.tensors.name[x] for x in forward.reads] == ["x0", "w"]
    assert forward.modes[0].time == 0.7
    assert forward.modes[0].writes == forward.writes
    assert forward.modes[1].writes == ()
    assert graph.operation(2).modes[0].on_host
    gradient = graph.tensor_index["dw"]
    assert graph.operation(1).modes[0].writes_host == graph.made_on_host(1, 1) == (gradient,)
    assert (graph.made_on_host(1, 0), graph.made_on_host(0, 1), graph.made_on_host(2, 1)) == ((), (), ())
    assert graph.tensor(1).bytes == 2000
    assert graph.tensor(1).kind == Kind.PARAMETER
    assert graph.machine is not None
    assert graph.machine.device_capacity == 12_000_000_000
    assert graph.machine.links.d2h == Link(12e9)
    assert graph.machine.links.h2d == Link(3e9, 2e-5)
    assert [graph.launch(0, mode) for mode in range(3)] == [2e-5, 2e-5, 0.0]
    assert graph.launch(1) == 0.0
    assert graph.machine.links.disk_read is None


def same(a: Graph, b: Graph) -> bool:
    columns = [
        (a.tensors.bytes, b.tensors.bytes),
        (a.tensors.kind, b.tensors.kind),
        (a.operations.time, b.operations.time),
        (a.operations.launch, b.operations.launch),
        (a.operations.workspace, b.operations.workspace),
        (a.operations.phase, b.operations.phase),
        *(
            (getattr(getattr(a.operations, edge), part), getattr(getattr(b.operations, edge), part))
            for edge in ("reads", "writes", "mutates")
            for part in ("start", "columns")
        ),
    ]
    return (
        all(np.array_equal(x, y) for x, y in columns)
        and list(a.tensors.name) == list(b.tensors.name)
        and list(a.operations.name) == list(b.operations.name)
        and dict(a.operations.modes) == dict(b.operations.modes)
        and list(a.results) == list(b.results)
        and a.machine == b.machine
    )


@pytest.mark.parametrize("suffix", [".json", ".yaml", ".yml", ".json.gz", ".yaml.gz"])
@pytest.mark.parametrize("graph", [chain(6), unet(3), layered(40), graph_from_document(GOOD, "good")])
def test_written_graphs_are_read_back(graph: Graph, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"graph{suffix}"
    save_graph(graph, path)
    first = path.read_bytes()
    recomputed = load_graph(path)
    assert same(graph, recomputed)
    assert graph_digest(graph) == graph_digest(recomputed)
    save_graph(recomputed, path)
    assert path.read_bytes() == first


def test_the_digest_sees_what_a_schedule_depends_on() -> None:
    baseline = graph_digest(graph_from_document(GOOD, "a"))
    assert baseline == graph_digest(graph_from_document(changed("machine", ...), "b"))
    assert baseline == graph_digest(graph_from_document(changed("name", "other"), "c"))
    assert baseline != graph_digest(graph_from_document(changed("tensors.0.bytes", 11), "d"))
    assert baseline != graph_digest(graph_from_document(changed("operations.0.time", 0.6), "e"))


def text_file(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 10)}]\n" for i in range(9)
)

UNREADABLE = {
    "not-json": ("g.json", "{", "line 1: not JSON"),
    "nan-in-json": ("g.json", '{"a": NaN}', "NaN is not a number"),
    "field-twice-json": ("g.json", '{"a": 1, "a": 2}', "field 'a' stands twice"),
    "nested-json": ("g.json", "[" * 100_000, "nested too deeply"),
    "huge-number": ("g.json", "1" * 5000, "a number of more than 4,300 digits"),
    "not-yaml": ("g.yaml", "a: [1", "line 2:"),
    "field-twice-yaml": ("g.yaml", "a: 1\na: 2", "field 'a' stands twice"),
    "nested-yaml": ("g.yaml", "[" * 100_000, "nested too deeply"),
    "billion-laughs": ("g.yaml", LAUGHS, "the aliases multiply"),
    "yaml-code": (
        "g.yaml",
        "a: !!python/object/apply:os.system [true]",
        "apply:os.system is not",
    ),
    "yaml-number-as-field": ("g.yaml", "1: 2", "1 is not a field's name"),
    "not-text": ("g.json", b"\xff\xfe{}", "not UTF-8"),
    "not-gzip": ("g.json.gz", "{}", "not a whole gzip file"),
    "half-a-gzip": ("g.json.gz", gzip.compress(b"{}" * 100)[:-9], "not a whole gzip file"),
    "suffix": ("g.toml", "a = 1", "the suffix must be .json"),
}


@pytest.mark.parametrize("fault", UNREADABLE)
def test_unreadable_file_is_refused(fault: str, tmp_path: Path) -> None:
    name, content, expected = UNREADABLE[fault]
    path = text_file(tmp_path, name, content)
    with pytest.raises(InputError) as refusal:
        load_graph(path)
    assert str(refusal.value).startswith(f"{path}: ")
    assert expected in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load_graph(tmp_path / "none.json")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(InputError, match="cannot be read"):
        load_graph(tmp_path / "folder.json")


def test_a_file_larger_than_the_limit_is_not_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MOST_BYTES, ".json", 1 << 20)
    bomb = text_file(tmp_path, "bomb.json.gz", gzip.compress(b" " * (64 << 20)))
    with pytest.raises(InputError, match="larger than the 1 MiB"):
        read_document(bomb)


def test_an_alias_that_does_not_multiply_is_read(tmp_path: Path) -> None:
    path = text_file(tmp_path, "a.yaml", "a: &x [1, 12e9]\nb: *x\non: yes")
    assert read_document(path) == {"a": [1, 12e9], "b": [1, 12e9], "on": "yes"}


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = text_file(tmp_path, "g.json", "old")

    def fail(*_args: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_whole(b"new", path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_write_left_is_swept_later(tmp_path: Path) -> None:
    old, young = tmp_path / ".memplan-old", tmp_path / ".memplan-young"
    for path in (old, young):
        path.write_bytes(b"half")
    before = time.time() - 7200
    os.utime(old, (before, before))
    write_whole(b"new", tmp_path / "g.json")
    assert {path.name for path in tmp_path.iterdir()} == {"g.json", young.name}


def test_unwritable_place_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        save_graph(chain(2), tmp_path / "no" / "folder.json")


@pytest.mark.clock
def test_a_hundred_thousand_operations_are_read_in_ten_times_what_json_takes(tmp_path: Path) -> None:
    """Three to six times: some 2 s. The least ratio of up to fifteen pairs, as machines are shared."""
    path = tmp_path / "large.json"
    save_graph(layered(100_000), path)

    def seconds(read: Callable[[], object]) -> float:
        start = time.process_time()
        assert read()
        return time.process_time() - start

    pairs = (
        (seconds(lambda: load_graph(path)), seconds(lambda: json.loads(path.read_bytes()))) for _ in range(15)
    )
    assert any(own / baseline < 10 for own, baseline in pairs)


def test_every_public_graph_is_read(public: Path) -> None:
    graphs = [path for path in public.glob("*.json") if "plan-graph/1" in path.read_text()[:100]]
    graphs += public.glob("weight-offload/*.graph.json.gz")
    assert len(graphs) == 18
    for path in graphs:
        graph = load_graph(path)
        assert same(graph, graph_from_document(json.loads(json.dumps(graph_to_document(graph))), "again"))


def test_a_name_with_line_ends_leaves_an_error_one_line(tmp_path: Path) -> None:
    path = tmp_path / "g.json"
    tensor = {"name": "a\r\n\x1b[2Jé", "bytes": 1}
    path.write_text(
        json.dumps(
            {"format": "plan-graph/1", "name": "g", "tensors": [tensor], "operations": [], "results": []}
        )
    )
    with pytest.raises(InputError) as caught:
        load_graph(path)
    assert str(caught.value) == f"{path}: tensors[0] (a\\r\\n\\x1b[2Jé): field 'kind' is missing"


@pytest.mark.parametrize("graph", [chain(400), Draft("empty").graph([])], ids=lambda graph: graph.name)
def test_the_digest_is_that_of_the_whole_text(graph: Graph) -> None:
    """Though it is taken of some rows at a time."""
    document = graph_to_document(graph)
    content = [document[part] for part in ("tensors", "operations", "results")]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    assert graph_digest(graph) == sha256(text.encode()).hexdigest()


def test_a_name_with_a_typo_is_told_the_one_like_it(tmp_path: Path) -> None:
    for name in ("model.schedule.json", "model.schedule.yaml", "other.json"):
        (tmp_path / name).write_text("{}")
    for wrong, hint in (
        ("model.schedul.json", rf": is it {re.escape(str(tmp_path))}/model\.schedule\.json\?$"),
        ("nothing.json", "nothing.json: no such file$"),
        ("modl", r": is it .*/model\.schedule\.json or .*/model\.schedule\.yaml\?$"),
        ("othr", r"no such file or folder: is it .*/other\.json\?$"),
        ("other.jsn", r": is it .*/other\.json\?$"),
        ("weights", "no such file or folder$"),
    ):
        with pytest.raises(InputError, match=hint):
            regular_size(tmp_path / wrong)
    with pytest.raises(InputError, match=r"no such file$"):
        regular_size(tmp_path / "none" / "model.schedule.json")
