"""`plan explain`: the peak's owners and the next command, for people and as JSON."""

from __future__ import annotations

import copy
import json
import pickle
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from memplan.cli.main import main
from memplan.exchange.recorded.owners import KINDS
from xla_dumps import ASSIGNMENT, NAME, dump

SCHEMA = Path(__file__).parents[2] / "docs" / "schemas" / "plan-output.schema.json"
TORCH = "/usr/lib/python3/site-packages/torch/"
USER = {"filename": "/a/train.py", "name": "f", "line": 9}


def entry(address: int, size: int, file: str, name: str) -> dict[str, Any]:
    frames = [
        {"filename": TORCH + file, "name": name, "line": 1},
        {"filename": "/a/train.py", "name": "f", "line": 9},
    ]
    return {"action": "alloc", "addr": address, "size": size, "frames": frames}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trace = [
        entry(0, 2**20, "nn/modules/module.py", "_apply"),
        entry(2**22, 2**21, "nn/modules/linear.py", "forward"),
        entry(2**24, 2**20, "optim/adamw.py", "step"),
        {"action": "oom", "size": 2**22, "frames": []},
    ]
    segment = {"device": 0, "address": 2**30, "total_size": 2**23, "blocks": []}
    Path("snapshot.pickle").write_bytes(pickle.dumps({"segments": [segment], "device_traces": [trace]}))


def plan(*words: str) -> Result:
    return CliRunner().invoke(main, ["explain", *words])


def test_the_peak_its_owners_and_the_next_command() -> None:
    result = plan("snapshot.pickle")
    assert result.exit_code == 0, result.stderr
    for line in (
        "peak           4,194,304 B = 4.00 MiB on cuda:0, in 3 blocks",
        "out of memory  an allocation of 4,194,304 B = 4.00 MiB failed",
        "8.00 MiB, 4.00 MiB more than the peak: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True may use it",
        "2.00 MiB    50%       1  activations",
        "train.py:9 f",
        "can recompute or offload activations, 2.00 MiB: at most 50% less",
        "2.00 MiB of weights and optimizer states can be offloaded in addition",
        "plan optimize model.py --budget 75%",
        'memplan.optimize(model, inputs, budget="75%")',
    ):
        assert line in result.stdout, result.stdout


def test_a_program_of_xla() -> None:
    dump()
    result = plan(f"{NAME}-buffer-assignment.txt")
    assert result.exit_code == 0, result.stderr
    for line in (
        f"peak  6,408 B = 6.26 KiB of {NAME}, in 9 blocks",
        "can recompute or offload activations, 1.56 KiB: at most 25% less",
        "1.95 KiB of weights and optimizer states can be offloaded in addition",
        "1000 B take no parameter's bytes: jax.jit(…, donate_argnums=…) lets them",
        "plan optimize model.py --budget 86%",
        "of PyTorch/XLA, JAX has jax.checkpoint",
    ):
        assert line in result.stdout, result.stdout
    assert "memplan.optimize" not in result.stdout


def test_json_is_of_the_schema() -> None:
    jsonschema: Any = pytest.importorskip("jsonschema")
    schema = json.loads(SCHEMA.read_text())
    dump()
    for file in ("snapshot.pickle", f"{NAME}-buffer-assignment.txt"):
        document = json.loads(plan(file, "--json").stdout)
        jsonschema.validate(document, {**schema, "$ref": "#/$defs/explain"})
    assert document["source"] == "xla"
    of_kind = schema["$defs"]["explain"]["properties"]["kinds"]["items"]["properties"]["name"]["enum"]
    assert of_kind == [*KINDS]


@pytest.mark.scripts
def test_junk_anywhere_in_an_assignment_is_one_line() -> None:
    """Each word and number of the file replaced: it is read, or refused in one line."""
    dump()
    path = Path(f"{NAME}-buffer-assignment.txt")
    for word in re.finditer(r"\w+|[^\w\s]", ASSIGNMENT):
        for junk in ("", "x", "-1", "9" * 40, "\n", "é"):
            path.write_text(ASSIGNMENT[: word.start()] + junk + ASSIGNMENT[word.end() :])
            result = plan(str(path))
            assert result.exit_code in (0, 2), (word, junk, result.exception)
            assert len(result.stderr.splitlines()) <= 1, (word, junk)


def test_json_has_the_bytes() -> None:
    document = json.loads(plan("snapshot.pickle", "--json").stdout)
    assert (document["peak"], document["failed_allocation"], document["reserved"]) == (2**22, 2**22, 2**23)
    assert {one["name"]: one["bytes"] for one in document["kinds"]} == {
        "weights and buffers": 2**20, "optimizer states": 2**20, "activations": 2**21,
    }  # fmt: skip
    assert (document["recomputable"], document["offloadable"]) == (2**21, 2**22)
    assert document["lines"] == [{"name": "train.py:9 f", "bytes": 2**22, "blocks": 3, "kind": "activations"}]


def test_without_stacks_nothing_is_promised() -> None:
    trace = [{"action": "alloc", "addr": 0, "size": 4096}]
    Path("bare.pickle").write_bytes(pickle.dumps({"segments": [], "device_traces": [trace]}))
    assert "what it could save is unknown: no stack says what the blocks are" in plan("bare.pickle").stdout


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["snapshots.pickle"], "snapshots.pickle: no such file: is it snapshot.pickle?"),
        (["snapshot.pickle", "--device", "2"], "has nothing of device 2, but of 0"),
        (["."], ".: cannot be read: it is a folder"),
        (
            ["nsight.sqlite"],
            "is an export of Nsight Systems, which knows no tensors; PyTorch",
        ),
        (["other.db"], "is an SQLite database; PyTorch writes its snapshots as pickles: torch.cuda.memory._"),
    ],
)
def test_what_is_wrong_is_one_line(words: list[str], line: str) -> None:
    for name, table in (("nsight.sqlite", "CUPTI_ACTIVITY_KIND_KERNEL"), ("other.db", "blocks")):
        database = sqlite3.connect(name)
        database.execute(f"CREATE TABLE {table} (id INTEGER)")
        database.close()
    result = plan(*words)
    assert result.exit_code == 2
    assert line in result.stderr


JUNK: list[Any] = [None, True, -1, 2**70, 1e300, float("inf"), float("nan"), "x", [], {}, [[]], {"a": []}]


def _places(thing: Any) -> list[tuple[Any, Any]]:
    """Return each container of a document with each of its keys."""
    keys = list(thing) if isinstance(thing, dict) else range(len(thing)) if isinstance(thing, list) else ()
    return [(thing, key) for key in keys] + [place for key in keys for place in _places(thing[key])]


@pytest.mark.parametrize("kind", ["snapshot", "trace"])
def test_junk_anywhere_is_one_line(kind: str) -> None:
    snapshot: Any = pickle.loads(Path("snapshot.pickle").read_bytes())
    memory = {"Addr": 7, "Bytes": 64, "Total Allocated": 64, "Device Type": 1, "Device Id": 0}
    events = [
        {"ph": "i", "name": "[memory]", "ts": 2.0, "tid": 1, "args": memory},
        {"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": 1.0, "dur": 3.0, "tid": 1},
    ]
    sound = {"snapshot": snapshot, "trace": {"traceEvents": events}}[kind]
    for number in range(len(_places(sound))):
        for junk in JUNK:
            document = copy.deepcopy(sound)
            container, key = _places(document)[number]
            container[key] = junk
            if kind == "snapshot":
                Path("junk.pickle").write_bytes(pickle.dumps(document))
            else:
                Path("junk.json").write_text(json.dumps(document))
            result = plan("junk.pickle" if kind == "snapshot" else "junk.json")
            assert result.exit_code in (0, 2), (key, junk, result.exception)
            assert len(result.stderr.splitlines()) <= 1, (key, junk)
