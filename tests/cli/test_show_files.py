"""The files that `plan show` writes: traces in both formats, tables; faults are one line."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from memplan.cli.main import main
from memplan.graphs.files.files import save_graph
from memplan.graphs.generators import chain
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

Show = Callable[..., Result]


@pytest.fixture
def show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Show:
    monkeypatch.chdir(tmp_path)
    save_graph(chain(6), "g.json")
    words = ["solve", "g.json", "--budget", "75%", "--solver", "rotor", "--bound-time", "0", "-o", "s.json"]
    assert CliRunner().invoke(main, words).exit_code == 0
    return lambda *words: CliRunner().invoke(main, ["show", "s.json", "--graph", "g.json", *words])


def test_traces_and_a_table(show: Show) -> None:
    ended = show("--trace", "t.pftrace", "--csv", "c.csv", "--json")
    assert ended.exit_code == 0, ended.stderr
    said = json.loads(ended.stdout)
    assert show("--trace", "t.json").exit_code == 0
    packets = proto.Trace.FromString(Path("t.pftrace").read_bytes()).packet
    values = {p.track_event.counter_value for p in packets if p.track_event.HasField("counter_value")}
    assert values == {*said["device_curve"], said["budget"]}
    begun = sum(p.track_event.type == proto.TrackEvent.TYPE_SLICE_BEGIN for p in packets)
    rows = json.loads(Path("t.json").read_text())["traceEvents"]
    assert begun == sum(row["ph"] == "X" for row in rows) > 0
    with open("c.csv", newline="") as file:
        assert [int(row["device"]) for row in csv.DictReader(file)] == said["device_curve"]


def test_packed_is_the_same(show: Show) -> None:
    for name in ("t.pftrace", "t.pftrace.gz"):
        assert show("--trace", name).exit_code == 0
    assert gzip.decompress(Path("t.pftrace.gz").read_bytes()) == Path("t.pftrace").read_bytes()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--trace", "t.txt"), "t.txt: the suffix must be .pftrace or .json"),
        (("--trace", "t.gz"), "t.gz: the suffix must be .pftrace or .json"),
        (("--csv", "c.json"), "c.json: the suffix must be .csv"),
        (("--trace", "no/t.json"), "no/t.json: cannot be written: No such file or directory"),
    ],
)
def test_faults_are_one_line(show: Show, words: tuple[str, ...], says: str) -> None:
    ended = show(*words)
    assert ended.exit_code == 2
    assert says in ended.stderr
    assert not ended.stdout
