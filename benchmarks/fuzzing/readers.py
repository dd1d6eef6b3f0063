"""Files of all kinds, changed as documents and as bytes: read, or refused in one line that names the file."""

from __future__ import annotations

import gzip
import io
import json
import tempfile
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache
from math import isclose
from pathlib import Path
from random import Random
from time import process_time
from typing import Any, NamedTuple

from memplan.comparison.file import read_rows
from memplan.comparison.published import load_published
from memplan.comparison.trials import COLUMNS
from memplan.graphs.errors import InputError
from memplan.graphs.files.documents import read_document, write_document
from memplan.graphs.files.files import graph_digest, load_graph, save_graph
from memplan.graphs.files.machine import (
    load_machine,
    machine_file,
    machine_from_document,
    machine_to_document,
)
from memplan.graphs.files.write import graph_to_document
from memplan.graphs.files.yaml_dialect import dump_yaml
from memplan.graphs.graph import Graph
from memplan.planner.baseline import baseline, baseline_schedule
from memplan.planner.schedule.file import load_schedule, save_schedule
from odd_graphs import odd_graph, odd_machine
from reference_replay import Accepted, replay
from strategies import Case, random_graph
from two_replays import disagreement

from .area import Area, Fault, Verdict
from .shrink import without

LONGEST_LINE = 2000
SLOW_SECONDS = 2.0

DIFFERENT = 500
"""Sound documents of each kind."""

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**53 + 1, 2**62, 2**63, 2**64, 10**400, -(10**400)),
    *(0.5, -0.0, 5e-324, 1.7e308, float("nan"), float("inf"), float("-inf")),
    *("", " ", "x", "0", "12GB", "1e999GB", "-1", "NaN", "\ud800", "\x00", "\x1b[2J", "é\n\nb", "a" * 5000),
    *([], {}, [[]], {"": {}}, [None], {"name": 1}, [["compute", "F"]], {"capacity": -1}, {"d2h": 0}),
)
TOKENS = (
    *(
        b'{"',
        b"}",
        b"[",
        b"]",
        b":",
        b",",
        b'"',
        b"\\",
        b"\\ud800",
        b"\\u0000",
        b"NaN",
        b"-Infinity",
        b"1e999",
    ),
    *(
        b"9" * 400,
        b"9" * 5000,
        b"-",
        b"0x",
        b"1_000",
        b"null",
        b"true",
        b"\xff",
        b"\xef\xbb\xbf",
        b"\x00",
        b"\n",
    ),
    *(
        b"!!int ",
        b"!!timestamp ",
        b"!!map ",
        b"!!set ",
        b"!!binary ",
        b"!!bool ",
        b"!!null ",
        b"!!python/name:os ",
    ),
    *(
        b"&a ",
        b"*a",
        b"<<: *a",
        b"? ",
        b"| ",
        b">-\n",
        b"---\n",
        b"...\n",
        b"%YAML 9.9\n",
        b"# ",
        b"'",
        b"\t",
        b"- ",
    ),
    *(
        b"!!float x",
        b"!!omap [a]",
        b"!!pairs [a]",
        b"!!seq a",
        b"!!str [a]",
        b"!foo ",
        b"!!merge <<",
        b"!!value =",
    ),
)


class FileCase(NamedTuple):
    """what: graph, machine, schedule, table or published. graph: of a schedule."""

    what: str
    suffix: str
    data: bytes
    graph: Graph | None = None


class Readers(Area):
    name = "readers"

    def __init__(self) -> None:
        self.folder = Path(tempfile.gettempdir())

    def warm_up(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="memplan-fuzz-readers-"))

    def make(self, random: Random) -> FileCase:
        what = random.choice(
            ("graph", "graph", "graph", "machine", "schedule", "schedule", "table", "published")
        )
        if what == "table":
            return FileCase(what, ".csv", _bytes(random, _table(random)))
        document, graph = _sound(what, random.randrange(DIFFERENT))
        suffix = random.choice((".json", ".json", ".yaml", ".yml"))
        if random.random() < 0.7:
            document = changed(random, document)
        data = _json(random, document) if suffix == ".json" else _yaml(document)
        if random.random() < 0.6:
            data = _bytes(random, data)
        if random.random() < 0.15:
            data, suffix = gzip.compress(data, mtime=0), f"{suffix}.gz"
            if random.random() < 0.5:
                data = _bytes(random, data)
        return FileCase(what, suffix, data, graph)

    def judge(self, case: FileCase) -> Verdict:
        path = self.folder / f"case{case.suffix}"
        path.write_bytes(case.data)
        start = process_time()
        try:
            faults = READERS[case.what](path, case)
            outcome = "read"
        except InputError as error:
            faults, outcome = list(line_faults(str(error), path)), "refused"
        except Exception as error:
            fault = f"{case.what}: {type(error).__name__}"
            faults, outcome = [Fault(fault, f"{fault}: {str(error)[:300]}")], "failed"
        seconds = process_time() - start
        if seconds > SLOW_SECONDS:
            faults.append(Fault(f"{case.what}: slow", f"{len(case.data):,} bytes took {seconds:.1f} s"))
        return Verdict(faults, {outcome: 1})

    def smaller(self, case: FileCase) -> Iterator[FileCase]:
        for data in without(case.data):
            yield case._replace(data=bytes(data))

    def write(self, case: FileCase, folder: Path, fault: Fault | None) -> list[str]:
        name = f"file{case.suffix}"
        (folder / name).write_bytes(case.data)
        if case.graph is not None:
            save_graph(case.graph, folder / "graph.json")
        sound = "sound.json"
        if case.what in ("machine", "table", "published"):
            write_document(
                {"format": "plan-graph/1", "name": "sound", "tensors": [], "operations": [], "results": []},
                folder / sound,
            )
        return {
            "graph": [f"plan solve {name} --budget 100% --solver store-all"],
            "machine": [f"plan solve {sound} --solver store-all --budget 1 --machine {name}"],
            "schedule": [f"plan check {name} --graph graph.json"],
            "table": [f"plan bench {sound} --solvers store-all -o {name}"],
            "published": [f"plan bench {sound} --solvers store-all --published {name}"],
        }[case.what]


def line_faults(line: str, path: Path) -> Iterator[Fault]:
    if not line.startswith(f"{path}: "):
        yield Fault("no place", f"the line does not begin with the file: {line[:300]}")
    if len(line) > LONGEST_LINE:
        yield Fault("long line", f"a line of {len(line):,} characters: {line[:200]}")
    if "\n" in line or "\r" in line:
        yield Fault("several lines", repr(line[:300]))


# What is read must be what it seems


def _read_graph(path: Path, case: FileCase) -> list[Fault]:
    graph = load_graph(path)
    repeat = path.with_name("again.yaml")
    save_graph(graph, repeat)
    if graph_digest(load_graph(repeat)) != graph_digest(graph):
        return [Fault("graph: not the same again", "written and read again it is another graph")]
    second, first = replay(graph, baseline_schedule(graph)), baseline(graph)
    same = isinstance(second, Accepted) and second.peak == first.peak and isclose(second.time, first.time)
    return [] if same else [Fault("graph: the replays differ", f"{first} and {second}")]


def _read_machine(path: Path, case: FileCase) -> list[Fault]:
    machine = load_machine(path)
    if machine_from_document(machine_to_document(machine)) != machine:
        return [Fault("machine: not the same again", "written and read again it is another machine")]
    return []


def _read_schedule(path: Path, case: FileCase) -> list[Fault]:
    assert case.graph is not None
    file = load_schedule(path, case.graph)
    repeat = path.with_name("again.json")
    save_schedule(repeat, case.graph, file.schedule, budget=file.budget, machine=file.machine)
    if list(load_schedule(repeat, case.graph).schedule) != list(file.schedule):
        return [Fault("schedule: not the same again", "written and read again it is another schedule")]
    difference = disagreement(Case(case.graph, file.schedule, file.budget, file.machine))
    return [Fault("schedule: the replays differ", difference)] if difference else []


def _read_table(path: Path, case: FileCase) -> list[Fault]:
    read_rows(path)
    return []


def _read_published(path: Path, case: FileCase) -> list[Fault]:
    load_published(path)
    return []


READERS: dict[str, Callable[[Path, FileCase], list[Fault]]] = {
    "graph": _read_graph,
    "machine": _read_machine,
    "schedule": _read_schedule,
    "table": _read_table,
    "published": _read_published,
}


# Where the files come from


@cache
def _sound(what: str, seed: int) -> tuple[Any, Graph | None]:
    """A document to be changed; and the graph of a schedule."""
    random = Random(seed)
    if what == "graph":
        return graph_to_document(odd_graph(random)), None
    if what == "machine":
        return machine_file(odd_machine(random)), None
    if what == "published":
        return _published(random), None
    graph = random_graph(random)
    return _schedule_document(graph), graph


def _schedule_document(graph: Graph) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "schedule.json"
        save_schedule(path, graph, baseline_schedule(graph), budget=100, predicted={"peak": 3, "time": 1.0})
        return read_document(path)


def _table(random: Random) -> bytes:
    lines = [",".join(COLUMNS)]
    cells = ("a", "", "1", "0.5", "ok", "nan", "1e999", '"a,b"', '"x\ny"', "-3", "9" * 400)
    rows = range(random.randint(0, 4))
    lines += [",".join(random.choice(cells) for _column in COLUMNS) for _row in rows]
    return ("\n".join(lines) + "\n").encode()


def _published(random: Random) -> Any:
    row = {"graph": "g", "budget_percent": 80, "rotor": [3.5, 80, 1.2], "checkmate": None}
    return {"rows": [dict(row) for _row in range(random.randint(0, 2))]}


def _json(random: Random, document: Any) -> bytes:
    text = json.dumps(document, ensure_ascii=random.random() < 0.7, indent=random.choice((None, None, 1)))
    return text.encode(errors="surrogatepass")


def _yaml(document: Any) -> bytes:
    stream = io.StringIO()
    try:
        dump_yaml(document, stream)
    except Exception:  # what YAML cannot say, in JSON's words, which YAML reads
        return json.dumps(document).encode()
    return stream.getvalue().encode(errors="surrogatepass")


# Changes


def changed(random: Random, document: Any) -> Any:
    """One to four changes somewhere in the tree."""
    document = deepcopy(document)
    for _change in range(random.choice((1, 1, 2, 4))):
        places = list(_places(document))
        if not places:
            return random.choice(VALUES)
        holder, key = random.choice(places)
        _other, other_key = random.choice(places)
        kind = random.randrange(7)
        if kind < 3:
            holder[key] = deepcopy(random.choice(VALUES))
        elif kind == 3:
            del holder[key]
        elif kind == 4 and isinstance(holder, list):
            holder.insert(random.randint(0, len(holder)), deepcopy(holder[key]))
        elif kind == 5 and isinstance(holder, dict):
            holder[random.choice(("name", "bytes", "time", "modes", "x", "", str(other_key)))] = holder.pop(
                key
            )
        else:
            holder[key] = deepcopy(_other[other_key])
    return document


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(document, dict | list):
        for key in document if isinstance(document, dict) else range(len(document)):
            yield document, key
            yield from _places(document[key])


def _bytes(random: Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _change in range(random.choice((1, 1, 2, 4, 8))):
        start = random.randint(0, len(changed))
        end = min(len(changed), start + random.choice((1, 1, 2, 8, 64)))
        kind = random.randrange(8)
        if kind == 0 and start < len(changed):
            changed[start] ^= 1 << random.randrange(8)
        elif kind == 1:
            del changed[start:end]
        elif kind == 2:
            changed[start:start] = changed[start:end] * random.choice((1, 1, 3, 100, 1000))
        elif kind == 3:
            del changed[start:]
        elif kind == 4:
            other = random.randint(0, len(changed))
            changed[start:start] = changed[other : other + 40]
        elif kind == 5:
            changed[start:end] = random.randbytes(random.randint(0, 4))
        else:
            changed[start:start] = random.choice(TOKENS)
    return bytes(changed[: 2**18])


AREA = Readers()
