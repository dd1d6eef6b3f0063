"""Files that were made to break the readers: one line each, in bounded time and memory."""

from __future__ import annotations

import gzip
import json
import os
import random
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner
from memplan.cli.main import main
from memplan.graphs.errors import InputError
from memplan.graphs.files.documents import MOST_UNPACKED, read_document
from memplan.graphs.files.files import load_graph, save_graph
from memplan.graphs.files.machine import load_machine
from memplan.graphs.files.yaml_dialect import load_yaml
from memplan.graphs.generators import chain
from memplan.graphs.graph import Graph
from memplan.planner.baseline import baseline, baseline_schedule
from memplan.planner.schedule.file import load_schedule, save_schedule


def test_one_field_twice_among_many_is_found_at_once(tmp_path: Path) -> None:
    for suffix, start in ((".json", "{"), (".yaml", "{")):
        path = tmp_path / f"twice{suffix}"
        path.write_text(start + "".join(f'"k{i}": 0, ' for i in range(100_000)) + '"k99999": 0}')
        begun = time.process_time()
        with pytest.raises(InputError, match="'k99999' stands twice"):
            read_document(path)
        assert time.process_time() - begun < 5.0


def test_what_unpacks_to_too_much_is_not_unpacked(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.json.gz"
    bomb.write_bytes(gzip.compress(b"[" + b"{}," * (20 << 20) + b"{}]"))
    tracemalloc.start()
    with pytest.raises(InputError, match=f"more than {MOST_UNPACKED} times its size"):
        read_document(bomb)
    assert tracemalloc.get_traced_memory()[1] < 4 * MOST_UNPACKED * bomb.stat().st_size
    tracemalloc.stop()


WORST = {
    "empty-objects": (".json", "{},", 32),
    "small-objects": (".json", '{"":0},', 32),
    "empty-lists": (".json", "[],", 32),
    "short-texts": (".json", '"ab",', 32),
    "yaml-objects": (".yaml", "{a},", 64),
    "yaml-empty": (".yaml", "{},", 64),
    "yaml-numbers": (".yaml", ".1,", 64),
    "yaml-texts": (".yaml", "ab,", 64),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("what", WORST)
def test_reading_takes_memory_in_proportion_to_the_file(what: str, tmp_path: Path) -> None:
    suffix, part, most = WORST[what]
    path = tmp_path / f"file{suffix}"
    path.write_text("[" + part * 40_000 + "0]")
    tracemalloc.start()
    read_document(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < most * path.stat().st_size + 2**18


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    for read in (load_graph, load_machine):
        with pytest.raises(InputError, match="no regular file"):
            read(pipe)
    save_graph(chain(2), tmp_path / "g.json")
    os.mkfifo(tmp_path / "rows.csv")
    result = CliRunner().invoke(main, ["bench", str(tmp_path / "g.json"), "-o", str(tmp_path / "rows.csv")])
    assert (result.exit_code, "no regular file" in result.stderr) == (2, True)


@pytest.mark.parametrize("number", ["1" + "0" * 400, "-1" + "0" * 400, "1e999"])
def test_numbers_beyond_floats(number: str, tmp_path: Path) -> None:
    machine = tmp_path / "machine.yaml"
    for text in (f"device: {{capacity: {number}}}", f"links: {{d2h: {number}}}"):
        machine.write_text(text)
        with pytest.raises(InputError, match=r"machine\.yaml: field"):
            load_machine(machine)


@pytest.mark.parametrize("recorded", [10**400, -1e308, 1e999])
def test_recorded_figures_that_are_no_numbers_are_not_believed(recorded: float, tmp_path: Path) -> None:
    from memplan.cli.printing.output import Output
    from memplan.cli.replay import open_schedule

    graph = chain(4)
    save_graph(graph, tmp_path / "g.json")
    save_schedule(tmp_path / "s.json", graph, baseline_schedule(graph), predicted={"lower_bound": 0.125})
    text = (tmp_path / "s.json").read_text().replace("0.125", str(recorded).replace("inf", "1e999"))
    (tmp_path / "s.json").write_text(text)
    held = open_schedule(tmp_path / "s.json", tmp_path / "g.json", Output(quiet=True))
    report = held.report(held.replay())
    assert 0 <= (report.lower_bound or 0.0) <= baseline(graph).time


YAML_TEXTS = {
    "a: &x 1\nb: *x": {"a": 1, "b": 1},
    "!!str 12": "12",
    '! "12"': "12",
    "'12'": "12",
    "[!!int 0x1F, !!float 1e3, !!null ~, !!bool True]": [31, 1000.0, None, True],
    "": None,
    "--- {a: [], b: {}}": {"a": [], "b": {}},
    "a: |\n  two\n  lines\n": {"a": "two\nlines\n"},
}

NO_YAML = {
    "a: *x": "the alias 'x' stands for nothing",
    "&a [*a]": "stands within what it stands for",
    "a\n--- b": "line 2:",
    "{[a]: 1}": "is not a field's name",
    "{{a: 1}: 1}": "is not a field's name",
    "{? 1}": "is not a field's name",
    "0x" + "f" * 5000: "a number of 5,002 digits",
    '"\\ud800"': "line 1:",
    "!!binary aaaa": "is not one of YAML's core",
    "!!set {a}": "is not that of a mapping",
    "a: b: c": "line 1:",
    "@": "line 1:",
}


@pytest.mark.parametrize("text", YAML_TEXTS)
def test_yaml_that_is_read(text: str) -> None:
    assert load_yaml(text) == YAML_TEXTS[text]


@pytest.mark.parametrize("text", NO_YAML)
def test_yaml_that_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^.+$") as refusal:
        load_yaml(text)
    assert NO_YAML[text] in str(refusal.value)


def test_mutated_files_are_read_or_refused_in_one_line(tmp_path: Path) -> None:
    """Bytes changed, cut, doubled and put in at random places: InputError or a graph, nothing else."""
    graph: Graph = chain(3)
    chance = random.Random(0)
    for suffix in (".json", ".yaml"):
        save_graph(graph, tmp_path / f"whole{suffix}")
        save_schedule(tmp_path / f"plan{suffix}", graph, baseline_schedule(graph))
        texts = [(tmp_path / f"{name}{suffix}").read_bytes() for name in ("whole", "plan")]
        path = tmp_path / f"mutated{suffix}"
        for _ in range(400):
            which = chance.randrange(2)
            path.write_bytes(mutated(texts[which], chance))
            with suppress(InputError):
                _ = load_graph(path) if which == 0 else load_schedule(path, graph)


PARTS = [
    b'"',
    b"[",
    b"{",
    b"}",
    b":",
    b",",
    b"-",
    b"1e999",
    b"\xff",
    b"!!int ",
    b"&a ",
    b"*a",
    b"\\ud800",
    b"null",
]
PARTS += [b"0", b"9" * 400, b"\x00", b"\n", b"NaN", b"true", b"[[", b"? "]


def mutated(text: bytes, chance: random.Random) -> bytes:
    for _ in range(chance.randint(1, 4)):
        at, to = sorted(chance.randrange(len(text) + 1) for _ in range(2))
        to = min(to, at + chance.randint(0, 12))
        text = text[:at] + chance.choice([chance.choice(PARTS), text[at:to] * 2, b""]) + text[to:]
    return text


def test_a_document_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    from memplan.graphs.files.documents import write_document

    for value in (float("inf"), "\ud800"):
        with pytest.raises(InputError, match="cannot be written"):
            write_document({"a": value}, tmp_path / "g.json")
    assert json.dumps(list(tmp_path.iterdir())) == "[]"
