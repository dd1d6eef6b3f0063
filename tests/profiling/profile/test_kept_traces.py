"""Traces on disk: taken while all that they depend on is as it was, and made anew otherwise."""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from memplan.devices.absent_gpu.capability import Capability
from memplan.graphs.files.files import graph_digest
from memplan.graphs.folders.cache import cache_folder
from memplan.graphs.machines.presets import find_preset
from memplan.model.file import load_model_file
from memplan.profiling.profile import kept_traces
from memplan.profiling.profile.estimate import Traced, traced
from memplan.profiling.profile.estimates import Estimates
from memplan.profiling.profile.kept_traces import KeptTraces
from memplan.updates.choice import OptimizerChoice

MODEL = """
import os
from pathlib import Path
import torch
from torch import nn
import width_of_layers

def build(batch=2):
    sizes = [int(word) for word in Path("sizes.txt").read_text().split()]
    layers = [nn.Linear(width_of_layers.WIDTH, size) for size in sizes]
    attention = nn.TransformerEncoderLayer(width_of_layers.WIDTH, 2, 32, batch_first=True)
    return nn.Sequential(attention, *layers), (torch.ones(batch, 8, width_of_layers.WIDTH),), torch.sum
"""
PRESET, UPDATES = find_preset("rtx3060"), OptimizerChoice("adamw")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "width_of_layers", raising=False)
    import_module("torch._dynamo")  # sets environment variables when it is first imported
    Path("width_of_layers.py").write_text("WIDTH = 16\n")
    Path("sizes.txt").write_text("16")
    Path("model.py").write_text(MODEL)
    return tmp_path / "model.py"


Count = Callable[..., int]


@pytest.fixture
def traces(model: Path) -> Count:
    """A function that estimates the model and returns how often it was traced for that."""

    def count(*options: object, batch: int = 2) -> int:
        lines = list[str]()
        kept = KeptTraces(model, *options)
        with kept.watching():
            file = load_model_file("model.py")
        estimates = Estimates(file, UPDATES, lines.append, kept)
        own = Estimates(load_model_file("model.py"), UPDATES, lambda _line: None)
        assert graph_digest(estimates.graph(batch, PRESET)) == graph_digest(own.graph(batch, PRESET))
        return len(lines)

    return count


def entries() -> list[Path]:
    folder = cache_folder()
    assert folder is not None
    return sorted((folder / "traces").glob("*"))


@pytest.mark.scripts
def test_a_trace_is_made_once(traces: Count) -> None:
    assert [traces(), traces(), traces("other options"), traces(batch=3), traces(batch=3)] == [1, 0, 1, 1, 0]
    assert len(entries()) == 3


@pytest.mark.scripts
@pytest.mark.parametrize("name", ["sizes.txt", "width_of_layers.py", "model.py"])
def test_a_file_that_was_read_or_imported_is_another(
    traces: Count, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [traces(), traces()] == [1, 0]
    Path(name).write_text(f"{Path(name).read_text()}\n")
    assert [traces(), traces()] == [1, 0]


@pytest.mark.scripts
def test_variables_of_pytorch_count_and_others_do_not(traces: Count, monkeypatch: pytest.MonkeyPatch) -> None:
    assert traces() == 1
    monkeypatch.setenv("LAYERS", "12")
    assert traces() == 0
    monkeypatch.setenv("TORCH_LAYERS", "12")
    assert [traces(), traces()] == [1, 0]


READERS = {
    "get": "os.environ.get('LAYERS')",
    "getenv": "os.getenv('LAYERS')",
    "in": "'LAYERS' in os.environ",
    "item": "os.environ['LAYERS' if 'LAYERS' in os.environ else 'PATH']",
    "default": "os.environ.setdefault('LAYERS', '3')",
    "bytes": "os.environb.get(b'LAYERS')",
    "all": "dict(os.environ)",
    "names": "sorted(os.environ)",
    "copy": "os.environ.copy()",
    "program": "subprocess.run(['true'], check=True)",
}


@pytest.mark.scripts
@pytest.mark.sampled(3)
@pytest.mark.parametrize("place", ["build", "file"])
@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_a_variable_that_the_model_reads_counts(
    model: Path, traces: Count, monkeypatch: pytest.MonkeyPatch, reader: str, place: str
) -> None:
    monkeypatch.delenv("LAYERS", raising=False)
    text = f"import subprocess\n{model.read_text()}"
    line = f"    {reader}\n    sizes = " if place == "build" else f"{reader}\n\ndef build("
    model.write_text(text.replace("    sizes = " if place == "build" else "def build(", line))
    counts = list[int]()
    for value in (None, None, "12", "12", "13"):
        with monkeypatch.context() as patched:  # what the model sets is gone, as in the next process
            patched.delenv("LAYERS", raising=False)
            if value is not None:
                patched.setenv("LAYERS", value)
            counts.append(traces())
    assert counts == [1, 0, 1, 0, 1]


def test_the_environment_is_as_it_was_after_a_trace(traces: Count) -> None:
    kind = type(os.environ)
    before = kind.__getitem__, kind.__iter__
    assert traces() == 1
    assert (kind.__getitem__, kind.__iter__) == before


@pytest.mark.scripts
def test_a_file_that_the_model_file_reads_when_it_is_run_counts(model: Path, traces: Count) -> None:
    model.write_text(f"{model.read_text()}\nWORDS = Path('words.txt').read_text()\n")
    Path("words.txt").write_text("one")
    assert [traces(), traces()] == [1, 0]
    Path("words.txt").write_text("two, three")
    assert [traces(), traces()] == [1, 0]


@pytest.mark.scripts
@pytest.mark.parametrize(
    "damage", [lambda data: data[:-9], lambda data: b"", lambda data: data[:-9] + b"x" * 9]
)
def test_a_damaged_entry_is_made_anew(traces: Count, damage: Callable[[bytes], bytes]) -> None:
    assert traces() == 1
    (entry,) = entries()
    entry.write_bytes(damage(entry.read_bytes()))
    assert [traces(), traces()] == [1, 0]


@pytest.mark.scripts
def test_the_least_recently_used_are_removed(traces: Count, monkeypatch: pytest.MonkeyPatch) -> None:
    traces()
    (first,) = entries()
    monkeypatch.setattr(kept_traces, "MOST", first.stat().st_size * 3 // 2)
    assert [traces(batch=3), traces(batch=3), traces()] == [1, 0, 1]


def test_nothing_is_kept_where_others_can_write(traces: Count, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    with pytest.warns(UserWarning, match=r"nothing is cached in .*memplan: other users can write to"):
        assert [traces(), traces()] == [1, 1]


def test_what_json_can_not_hold_is_not_kept(model: Path) -> None:
    made, kind = traced(load_model_file("model.py"), 2, UPDATES, PRESET.gpu), Capability(8, 6)
    kept = KeptTraces(model)
    held = made._replace(program=replace(made.program, generators={("noise",): torch.Generator()}))
    assert kept.trace(lambda: held, 2, kind).program.generators == held.program.generators
    assert entries() == []
    assert kept.trace(lambda: made, 2, kind).program.reads is None
    assert len(entries()) == 1


@pytest.mark.scripts
def test_a_trace_is_taken_for_all_gpus_that_it_holds_for(model: Path) -> None:
    made = traced(load_model_file("model.py"), 2, UPDATES, PRESET.gpu)
    kinds = frozenset({Capability(8, 6), Capability(9, 0)})
    assert KeptTraces(model).trace(lambda: made._replace(kinds=kinds), 2, Capability(8, 6)).kinds == kinds
    calls = list[int]()

    def trace() -> Traced:
        calls.append(1)
        return made

    assert KeptTraces(model).trace(trace, 2, Capability(9, 0)).kinds == kinds
    assert calls == []
    KeptTraces(model).trace(trace, 2, Capability(7, 5))
    assert calls == [1]


@pytest.mark.scripts
def test_what_code_sets_before_other_options_changes_nothing(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, kept = traced(load_model_file("model.py"), 2, UPDATES, PRESET.gpu), KeptTraces(model)
    monkeypatch.setenv("TORCH_SET_BY_AN_IMPORT", "1")
    kept.with_options("lora").trace(lambda: made, 2, Capability(8, 6))
    monkeypatch.delenv("TORCH_SET_BY_AN_IMPORT")
    monkeypatch.setattr(kept_traces, "_imported", set[str])
    KeptTraces(model).with_options("lora").trace(pytest.fail, 2, Capability(8, 6))


@pytest.mark.scripts
def test_a_forged_entry_is_traced_anew_and_runs_nothing(
    traces: Count, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that this user owns, with the right head; and another entry's content."""
    monkeypatch.setenv("PLANTED", str(tmp_path / "planted"))
    assert traces() == 1
    (entry,) = entries()
    head, _newline, body = entry.read_bytes().partition(b"\n")
    operator = body.replace(b'"operator","aten"', b'"operator","load_library"')
    for forged, more in ((pickle.dumps(Planted()), {}), (operator, {}), (body, {"name": "0" * 32})):
        about = {**json.loads(head), "digest": sha256(forged).hexdigest(), **more}
        entry.write_bytes(json.dumps(about).encode() + b"\n" + forged)
        assert traces() == 1
    assert traces() == 0
    assert not (tmp_path / "planted").exists()


class Planted:
    """Makes a folder where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (os.environ["PLANTED"],)


@pytest.mark.scripts
@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can give a file away")
def test_a_trace_of_another_user_is_not_read(traces: Count) -> None:
    assert traces() == 1
    os.chown(entries()[0], 12345, -1)
    with pytest.warns(UserWarning, match="belongs to another user"):
        assert traces() == 1
