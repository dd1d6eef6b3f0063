"""Buffer assignments of XLA: whose the arena is when most of it is in use, by live ranges and names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from memplan.exchange.recorded.owners import kinds, lines, modules
from memplan.exchange.recorded.read import read_recording
from memplan.graphs.errors import InputError
from xla_dumps import ASSIGNMENT, NAME, PROGRAM, RANGES, REPORT, dump


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    dump()


def by_kind(path: str = f"{NAME}-buffer-assignment.txt") -> dict[str, int]:
    return {one.name: one.size for one in kinds(read_recording(Path(path)))}


def test_the_owners_of_the_peak() -> None:
    """At place 4 of the program h0, h1 and the gradient g1 are live; g0 has the bytes of h1 later."""
    recording = read_recording(Path(f"{NAME}-buffer-assignment.txt"))
    assert recording.peak == 1000 + 1000 + 400 + 1000 + 8 + 3000
    assert by_kind() == {
        "weights and buffers": 1000,
        "optimizer states": 1000,
        "activations": 1600,
        "gradients and backward": 1000,
        "other parameters of the program": 400,
        "outputs": 1000,
        "constants": 8,
        "gaps in the arena": 400,
    }
    found = {one.name: (one.size, one.kind) for one in lines(recording)}
    assert found["train.py:6 net"] == (1600 + 1000, "activations")
    assert found["train.py:13 step"] == (1000, "outputs")
    assert found["state.params['w']"] == (1000, "weights and buffers")
    assert {one.name: one.size for one in modules(recording)} == {"Net/Dense_0": 1000, "Net/Dense_1": 1600}


@pytest.mark.parametrize("end", ["memory-usage-report", "live-range"])
def test_files_next_to_it_lead_to_it(end: str) -> None:
    assert by_kind(f"{NAME}-{end}.txt") == by_kind()


def test_live_ranges_in_the_same_file_and_lines_in_the_metadata() -> None:
    """As older versions of XLA write them."""
    program = PROGRAM.replace("stack_frame_id=3", 'source_file="/a/train.py" source_line=6')
    Path("old.txt").write_text(f"{ASSIGNMENT}\n{RANGES}\n{program[program.index('ENTRY') :]}")
    assert by_kind("old.txt") == by_kind()
    assert any(one.name == "train.py:6 dot_general" for one in lines(read_recording(Path("old.txt"))))


def test_without_live_ranges_the_arena_is_one_block() -> None:
    Path(f"{NAME}-live-range.txt").unlink()
    assert by_kind()["other temporaries"] == 3000


def test_memory_of_the_host_is_left_out() -> None:
    text = ASSIGNMENT.replace("allocation 1: size 1000,", "allocation 1: size 1000, color 5,")
    Path(f"{NAME}-buffer-assignment.txt").write_text(text)
    assert "optimizer states" not in by_kind()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("BufferAssignment:\n", "has no allocations: is the file whole?"),
        (ASSIGNMENT.rpartition("allocation 5")[0], "do not sum to 6408 bytes"),
        (ASSIGNMENT.replace("size=600", "size=6000"), "line 17: the value is larger than its allocation"),
        (ASSIGNMENT.replace("size 3000", f"size {10**30}"), "line 13: too many bytes"),
        (ASSIGNMENT.replace(" (size=600", " (dim=600"), "line 17: not a value of an allocation"),
    ],
)
def test_what_is_wrong_is_one_line(text: str, line: str) -> None:
    Path(f"{NAME}-buffer-assignment.txt").write_text(text)
    with pytest.raises(InputError, match=line):
        by_kind()


def test_a_report_alone_names_the_file_that_it_needs() -> None:
    Path(f"{NAME}-buffer-assignment.txt").unlink()
    with pytest.raises(InputError, match=f"needs {NAME}-buffer-assignment.txt next to it"):
        by_kind(f"{NAME}-memory-usage-report.txt")
    Path("report.txt").write_text(REPORT)
    with pytest.raises(InputError, match=r"has rounded sizes; give the file …-buffer-assignment\.txt"):
        by_kind("report.txt")
    with pytest.raises(InputError, match="--device is for files of several GPUs"):
        read_recording(Path("report.txt"), 1)


def test_jax_writes_what_is_read(tmp_path: Path) -> None:
    """XLA says itself what is live at its peak."""
    pytest.importorskip("jax")
    code = "import jax, jax.numpy as j; x = j.ones((64, 64)); "
    code += "jax.jit(lambda x, w: j.tanh(x @ w) @ w).lower(x, x).compile()"
    env = {"XLA_FLAGS": f"--xla_dump_to={tmp_path}/d --xla_dump_hlo_as_text", "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path), **env})
    (path,) = tmp_path.glob("d/*lambda*-buffer-assignment.txt")
    recording = read_recording(path)
    report = path.with_name(path.name.replace("buffer-assignment", "memory-usage-report")).read_text()
    assert f"Total bytes: {recording.peak} " in report
