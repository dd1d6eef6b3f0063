"""This machine measured: plausible rates, a disk left as it was, and the command around it."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from memplan.cli.main import main
from memplan.graphs.errors import InputError
from memplan.graphs.files.files import save_graph
from memplan.graphs.files.machine import load_machine
from memplan.graphs.generators import chain
from memplan.runtime.measuring import disk_rates as disk
from memplan.runtime.measuring import link_rates, rates, this_machine, update_rates
from memplan.runtime.measuring.rates import rate_of, repeated

MIB = 2**20
Plan = Callable[..., Result]


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Run `plan` where measuring is quick: small sizes, few times."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rates, "TARGET_SECONDS", 0.0)
    monkeypatch.setattr(link_rates.link_rates, "__defaults__", ((MIB, 2 * MIB),))
    monkeypatch.setattr(update_rates.update_rate, "__defaults__", (MIB,))
    monkeypatch.setattr(disk.disk_rates, "__defaults__", (MIB, 8))
    return lambda *arguments: CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_a_rate_is_the_median_of_the_repeats() -> None:
    taken = [1.0, 2.0, 4.0, 5.0, 8.0]
    rate = rate_of("copy", 40, taken)
    assert (rate.low, rate.median, rate.high) == (8.0, 10.0, 20.0)
    assert rate.spread == pytest.approx(1.2)
    again = iter([100.0, *taken])
    assert repeated("copy", 40, lambda: next(again)) == rate  # the first, the warm-up, does not count


def test_copies_run_at_the_speed_of_memory() -> None:
    found = link_rates.link_rates("cpu", (MIB, 32 * MIB))
    assert [rate.bytes for rate in found.d2h] == [MIB, 32 * MIB]
    for rate in (*found.d2h, *found.h2d, *found.both):
        assert 1e8 < rate.low <= rate.median <= rate.high < 1e12


def test_both_ways_last_until_the_slower_is_done() -> None:
    pauses: list[Callable[[], object]] = [lambda: None, lambda: torch.randn(10**6).sort()]
    alone = link_rates._seconds(pauses[1:], "cpu")
    assert link_rates._seconds(pauses, "cpu") > alone / 4
    assert link_rates._seconds(pauses[:1], "cpu") < alone


def test_an_update_moves_at_least_seven_times_its_weights() -> None:
    """Read the weight, the gradient, two states; write three of them: no faster than memory lets it."""
    update = update_rates.update_rate("cpu", "host", 16 * MIB)
    copy = link_rates.link_rates("cpu", (16 * MIB,)).d2h[0]
    assert update.what == "AdamW on the host"
    assert update.median < copy.high * 2 / 7 * 4  # of two accesses a copied byte; within a noisy factor


# ── the disk ────────────────────────────────────────────────────────────────────────────────────────


def test_a_disk_is_read_past_the_cache_and_left_as_it_was(tmp_path: Path) -> None:
    found = disk.disk_rates(tmp_path, MIB, 8)
    assert found.read.bytes == found.write.bytes == MIB
    assert 1e6 < found.read.median < 1e11
    assert 0 < found.free < 2**60
    assert not list(tmp_path.iterdir())


def test_a_file_system_that_cannot_go_direct_is_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed = list[int]()
    real = os.fdatasync
    monkeypatch.setattr(disk, "_go_direct", lambda _file, _block: False)
    monkeypatch.setattr(os, "fdatasync", lambda file: (flushed.append(file), real(file)))
    assert not disk.disk_rates(tmp_path, MIB, 5).direct
    assert len(flushed) == 5


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    """The block that the rates are made of comes back from the disk, block by block."""
    with (tmp_path / "blocks").open("w+b", buffering=0) as file, mmap.mmap(-1, MIB) as block:
        block.write(os.urandom(MIB))
        content = bytes(block[:])
        disk._measured(file.fileno(), block, 4, 0)
        assert bytes(block[:]) == content
        assert (tmp_path / "blocks").stat().st_size == 4 * MIB
        assert (tmp_path / "blocks").read_bytes() == 4 * content


def test_ctrl_c_leaves_no_file(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_arguments: object) -> int:
        assert not list(tmp_path.iterdir())  # even now it has no name
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "preadv", interrupted)
    result = plan("machine", "--disk", tmp_path, "-o", "machine.yaml")
    assert result.exit_code == 130
    assert not list(tmp_path.iterdir())


def test_memory_is_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "file_system", lambda _folder: "tmpfs")
    with pytest.raises(InputError, match="lies in memory"):
        disk.disk_rates(tmp_path)


def test_a_full_disk_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 3 * MIB})
    monkeypatch.setattr("shutil.disk_usage", lambda _folder: usage)
    with pytest.raises(InputError, match=r"too little room .*: 3,145,728 B are free"):
        disk.disk_rates(tmp_path, MIB)


def test_the_kind_of_a_file_system() -> None:
    assert disk.file_system(Path("/proc")) == "proc"


# ── capacities ──────────────────────────────────────────────────────────────────────────────────────


def test_the_container_limits_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit, none = tmp_path / "memory.max", tmp_path / "none"
    limit.write_text("1048576\n")
    none.write_text("max\n")
    monkeypatch.setattr(this_machine, "CGROUP_LIMITS", (str(limit), str(none), str(tmp_path / "no")))
    assert this_machine.host_memory() == MIB
    monkeypatch.setattr(this_machine, "CGROUP_LIMITS", (str(none),))
    assert this_machine.host_memory() > 2**28


# ── the command ─────────────────────────────────────────────────────────────────────────────────────


def test_the_measured_machine_is_one_to_solve_for(plan: Plan) -> None:
    Path("there").mkdir()
    result = plan("machine", "--disk", "there", "-o", "machine.yaml", "--json")
    assert result.exit_code == 0, result.stderr
    told, machine = json.loads(result.stdout), load_machine(Path("machine.yaml"))
    rates_of = {one["what"]: one for one in told["measured"]}  # the last is of the largest size
    assert told["device"] == "cpu"
    assert machine.device_capacity == machine.host_capacity == this_machine.host_memory()
    assert machine.links.d2h == machine.links.h2d
    assert np.isclose(machine.links.d2h, rates_of["each way, both at once"]["median"], rtol=0.01)
    assert np.isclose(machine.links.disk_read, rates_of["disk read"]["median"], rtol=0.01)
    assert np.isclose(machine.updates.host, rates_of["AdamW on the host"]["median"], rtol=0.01)
    assert "same memory" in result.stderr
    save_graph(chain(4), Path("chain.json"))
    assert plan("solve", "chain.json", "--machine", "machine.yaml", "--solver", "store-all").exit_code == 0
    table = plan("machine")
    assert "each way, both at once" in table.stdout
    assert "MiB" in table.stdout


def test_the_list_and_one_machine(plan: Plan) -> None:
    listed = json.loads(plan("machine", "--list", "--json").stdout)["machines"]
    assert {"rtx3060", "rtx4090", "v100", "a100-40gb", "h200", "lohan"} <= {one["name"] for one in listed}
    assert "rtx3060" in plan("machine", "--list").stdout
    shown = plan("machine", "rtx3060", "-o", "m.json", "--json")
    assert json.loads(shown.stdout)["machine"]["links"]["d2h"] == 10.4e9
    assert load_machine(Path("m.json")).updates.host == 1.1e9
    text = plan("machine", "RTX 3060").stdout
    assert "10.4 GB/s" in text
    assert "table 4.2" in text


def test_a_name_goes_wherever_a_machine_file_goes(plan: Plan) -> None:
    save_graph(chain(4), Path("chain.json"))
    solve = plan("solve", "chain.json", "--machine", "rtx3060", "--solver", "store-all", "-o", "s.json")
    assert solve.exit_code == 0, solve.stderr
    assert plan("check", "s.json", "--graph", "chain.json", "--machine", "a100").exit_code == 0
    unknown = plan("solve", "chain.json", "--machine", "rtx306")
    assert unknown.exit_code == 2
    assert "no GPU or machine named 'rtx306' is known; close names: rtx3060" in unknown.stderr


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["rtx306"], "no GPU or machine named 'rtx306' is known; close names: rtx3060"),
        (["rtx3060", "--list"], "do not go together"),
        (["rtx3060", "--device", "cpu"], "do not go together"),
        (["--list", "-o", "m.yaml"], "does not go with --list"),
        (["--device", "tpu"], "device 'tpu' is neither cpu nor cuda"),
        (["--disk", "nowhere"], "nowhere: no such folder"),
        (["--disk", "a-file"], "a-file: not a folder"),
        (["--disk", "/proc"], "/proc: "),
        (["-o", "m.txt"], "the suffix must be"),
        (["-o", "no/m.yaml"], "cannot be written"),
    ],
)
def test_a_wrong_call_is_one_line_before_anything_is_measured(
    plan: Plan, arguments: list[str], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(this_machine, "link_rates", None)
    Path("a-file").write_text("")
    result = plan("machine", *arguments)
    assert result.exit_code == 2
    assert line in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_here(plan: Plan) -> None:
    result = plan("machine", "--device", "cuda")
    assert result.exit_code == 2
    assert "no CUDA device" in result.stderr


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_measured() -> None:
    found = this_machine.measure_machine("cuda")
    assert found.machine.device_capacity < torch.cuda.mem_get_info()[1]
    assert 1e9 < found.machine.links.d2h < 1e12
    assert found.machine.updates.device > found.machine.updates.host
