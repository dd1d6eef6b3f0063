"""This machine measured: plausible rates, a disk left as it was, and the command around it."""

from __future__ import annotations

import json
import os
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from memplan.cli.main import main
from memplan.devices.device import host_capacity
from memplan.devices.device.choice import device_of
from memplan.devices.measuring import disk_rates as disk
from memplan.devices.measuring import link_rates, rates, this_machine, update_rates
from memplan.devices.measuring import pinnable as pinning
from memplan.devices.measuring.rates import CopyRates, Rate, latency, rate_of, repeated
from memplan.devices.measuring.this_network import with_slots
from memplan.devices.storage.disk import Disk
from memplan.graphs.errors import InputError
from memplan.graphs.files.files import save_graph
from memplan.graphs.files.machine import load_machine
from memplan.graphs.files.shared import check_joint_rates
from memplan.graphs.generators import chain
from memplan.graphs.machine import JointRate, Links, Machine
from memplan.graphs.machines.nodes import part_of_node
from not_none import not_none
from simulated_device.device import SimulatedDevice
from simulated_device.threads import Delays

MIB = 2**20
Plan = Callable[..., Result]


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Run `plan` where measuring is quick: small sizes, few times."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rates, "TARGET_SECONDS", 0.0)
    monkeypatch.setattr(link_rates.link_rates, "__defaults__", ((MIB, 2 * MIB),))
    monkeypatch.setattr(update_rates.update_rates, "__defaults__", (MIB,))
    monkeypatch.setattr(disk.disk_rates, "__defaults__", (MIB, 8))
    return lambda *arguments: CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_a_rate_is_the_median_of_the_repeats() -> None:
    taken = [1.0, 2.0, 4.0, 5.0, 8.0]
    rate = rate_of("copy", 40, taken)
    assert (rate.low, rate.median, rate.high) == (8.0, 10.0, 20.0)
    assert rate.spread == pytest.approx(1.2)
    recomputed = iter([100.0, *taken])
    assert repeated("copy", 40, lambda: next(recomputed)) == rate  # the first, the warm-up, does not count


@pytest.mark.parametrize(("seconds", "found"), [((3.0, 5.0), 2.5), ((3.0, 3.0), 3.0), ((1.0, 9.0), 0.0)])
def test_a_latency_lies_on_the_line_through_two_sizes(seconds: tuple[float, float], found: float) -> None:
    """Of copies of 4 and 20 bytes. It is never below 0."""
    small, large = (Rate("copy", size, 0, size / one, 0) for size, one in zip((4, 20), seconds, strict=True))
    assert latency(small, large) == pytest.approx(found)


def test_copies_of_several_sizes_take_what_was_measured() -> None:
    """Seconds of 10, 100 and 1,000 bytes, three digits of each: never fewer than of a smaller copy."""
    small = Rate("small", 1, 0, 1000.0, 0)  # 1 ms

    def rates_of(*seconds: float) -> tuple[Rate, ...]:
        return tuple(Rate("copy", 10 ** (k + 1), 0, 10 ** (k + 1) / s, 0) for k, s in enumerate(seconds))

    one = CopyRates(small, rates_of(0.5, 0.25, 2.0), rates_of(0.123456, 0.1, 3.0), rates_of(1.0, 1.0, 4.0))
    assert one.link().measured == ((10, 0.123), (100, 0.123), (1000, 3.0))
    assert one.link(shared=True).measured == ((10, 0.5), (100, 0.5), (1000, 2.0))
    assert (one.link().rate, one.link(shared=True).rate, one.link().pageable) == (333.0, 500.0, 250.0)
    slow = Rate("small", 1, 0, 1.0, 0)
    least = latency(slow, one.alone[-1])
    assert 0.5 < least < 1.0  # the first two copies take no less than one of no bytes
    assert one._replace(small=slow).link().measured[0][1] == float(f"{least:.3g}")
    assert copies(50.0, 40.0).link().measured == ()
    table = rates.all_rates(one, one._replace(small=slow))
    assert table == [small, slow, *one.alone, *one.both, *one.pageable]


def test_copies_run_at_the_speed_of_memory() -> None:
    d2h, h2d = link_rates.link_rates("cpu", (MIB, 32 * MIB))
    assert [rate.bytes for rate in d2h.alone] == [MIB, 32 * MIB]
    for rate in (*d2h.alone, *h2d.alone, *d2h.both):
        assert 1e8 < rate.low <= rate.median <= rate.high < 1e12
    assert d2h.link().rate == h2d.link().rate == pytest.approx(d2h.both[1].median, rel=0.01)
    assert d2h.link().pageable is None


def test_copies_from_memory_that_is_not_pinned_are_measured_both_ways_at_once() -> None:
    """Each keeps its thread waiting, for three pauses."""

    class Steady(Delays):
        def pause(self) -> None:
            time.sleep(0.04)

    found = link_rates.pageable_rate(SimulatedDevice(delays=Steady), MIB)
    assert found.what == "each way, both at once, not pinned"
    assert 0.12 <= MIB / found.median < 0.22
    assert link_rates.link_rates("cpu", (MIB,))[0].pageable == ()


def test_small_copies_take_what_the_device_takes_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three pauses, in the queue of the device, however many bytes there are."""
    monkeypatch.setattr(rates, "TARGET_SECONDS", 0.0)

    class Steady(Delays):
        def pause(self) -> None:
            time.sleep(0.0003)

    device = SimulatedDevice(delays=Steady)
    for small, large in zip(link_rates.small_rates(device), link_rates._rates(device, MIB)[:2], strict=True):
        assert 0.0009 <= small.bytes / small.median < 0.0025
        assert 0.0005 <= latency(small, large) < 0.0025


def copies(alone: float, both: float) -> CopyRates:
    """Rates of copies of 100 bytes, one direction alone and both at once; 1 ms for each copy."""
    small = Rate("small", 1, 0, 1000.0, 0)
    return CopyRates(small, (Rate("alone", 100, 0, alone, 0),), (Rate("both", 100, 0, both, 0),))


WAYS = {
    # Rates alone and at once of both directions -> what they share, and the links' rates.
    "apart": ((50.0, 40.0, 50.0, 40.0), (), (), (40.0, 40.0)),
    "in turns": ((50.0, 25.0, 50.0, 25.0), (("d2h", "h2d"),), (), (50.0, 50.0)),
    "other rates in turns": ((60.0, 30.0, 20.0, 10.0), (("d2h", "h2d"),), (), (60.0, 20.0)),
    "worse than in turns": ((50.0, 20.0, 50.0, 20.0), (("d2h", "h2d"),), (), (40.0, 40.0)),
    "up to a rate": ((50.0, 35.0, 50.0, 30.0), (), (JointRate(("d2h", "h2d"), 65.0),), (50.0, 50.0)),
    "no less than one alone": (
        *((90.0, 20.0, 20.0, 20.0), (), (JointRate(("d2h", "h2d"), 90.0),), (90.0, 20.0)),
    ),
}


@pytest.mark.parametrize(("measured", "shared", "joint_rates", "found"), WAYS.values(), ids=WAYS)
def test_what_two_directions_share(
    measured: tuple[float, float, float, float],
    shared: tuple[tuple[str, ...], ...],
    joint_rates: tuple[JointRate, ...],
    found: tuple[float, float],
) -> None:
    pair = rates.pair_of(("d2h", "h2d"), (copies(*measured[:2]), copies(*measured[2:])))
    assert (pair.shared, pair.joint_rates) == (shared, joint_rates)
    assert tuple(link.rate for link in pair.links) == pytest.approx(found)
    check_joint_rates(Machine(links=Links(*pair.links), joint_rates=pair.joint_rates))


def test_what_the_ranks_of_a_node_share() -> None:
    """Two ranks that reach 30 B/s each way together, where one alone reaches 40: 120 B/s for both."""
    machine = Machine(links=Links(40.0, 40.0))
    assert with_slots(machine, 38.0, 2) == machine
    assert with_slots(machine, 20.0, 1) == machine
    slots = with_slots(machine, 30.0, 2)
    assert slots.joint_rates == (JointRate(("d2h", "h2d"), 120.0, slots=2),)
    assert part_of_node(slots, 2).joint_rates == (JointRate(("d2h", "h2d"), 60.0),)
    # One rank's directions share something already: nothing more if the ranks are no slower together.
    for alone in (replace(machine, shared=(("d2h", "h2d"),)), Machine(links=machine.links, joint_rates=HALF)):
        assert with_slots(alone, 19.0, 2) == alone
        assert with_slots(alone, 10.0, 2).joint_rates[-1] == JointRate(("d2h", "h2d"), 40.0, slots=2)


HALF = (JointRate(("d2h", "h2d"), 40.0),)


def test_both_ways_last_until_the_slower_is_done() -> None:
    pauses: list[Callable[[], object]] = [lambda: None, lambda: torch.randn(10**6).sort()]
    alone = link_rates._seconds(pauses[1:], device_of("cpu"))
    assert link_rates._seconds(pauses, device_of("cpu")) > alone / 4
    assert link_rates._seconds(pauses[:1], device_of("cpu")) < alone


def test_an_update_moves_at_least_seven_times_its_weights() -> None:
    """Read the weight, the gradient, two states; write three of them: no faster than memory lets it."""
    unfused, fused = update_rates.update_rates(None, 16 * MIB)
    copy = link_rates.link_rates("cpu", (16 * MIB,))[0].alone[0]
    assert (unfused.what, fused.what) == ("AdamW on the host", "AdamW, fused, on the host")
    assert 1.5 * unfused.median < fused.median  # 20 passes and 7
    assert fused.median < copy.high * 2 / 7 * 4  # of two accesses a copied byte; within a noisy factor


# ── the disk ────────────────────────────────────────────────────────────────────────────────────────


def test_a_disk_is_read_past_the_cache_and_left_as_it_was(tmp_path: Path) -> None:
    found = disk.disk_rates(tmp_path, MIB, 8)
    for rate in rates.all_rates(found.read, found.write):
        assert rate.bytes == (disk.SMALL if "small" in rate.what else MIB)
        assert 1e4 < rate.median < 1e11
    assert 0 < found.free < 2**60
    assert not list(tmp_path.iterdir())


def test_a_file_system_that_cannot_go_direct_is_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed = list[int]()
    real = os.fsync
    monkeypatch.setattr(Disk, "_go_direct", lambda _disk: False)
    monkeypatch.setattr(os, "fsync", lambda file: (flushed.append(file), real(file)))
    assert not disk.disk_rates(tmp_path, MIB, 5).direct
    assert len(flushed) >= 5 + 5 + 5  # written, written again, read


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


@pytest.mark.parametrize("version", [1, 2])
def test_the_container_limits_the_host(version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the process's group and those above it, of either version; less what it uses, but for caches."""
    mount = tmp_path / "memory" if version == 1 else tmp_path
    limit = "memory.limit_in_bytes" if version == 1 else "memory.max"
    used = "memory.usage_in_bytes" if version == 1 else "memory.current"
    group = mount / "pod" / "own"
    group.mkdir(parents=True)
    (group / limit).write_text("max\n" if version == 2 else "9223372036854771712\n")
    (group.parent / limit).write_text(f"{8 * MIB}\n")
    (group.parent / used).write_text(f"{5 * MIB}\n")
    (group.parent / "memory.stat").write_text(f"cache 1\ninactive_file {2 * MIB}\n")
    (tmp_path / "groups").write_text("4:memory:/pod/own\n0::/\n" if version == 1 else "0::/pod/own\n")
    monkeypatch.setattr(host_capacity, "GROUPS", tmp_path / "groups")
    monkeypatch.setattr(host_capacity, "MOUNTS", (tmp_path, tmp_path / "unified"))
    assert host_capacity.host_memory() == (8 * MIB, str(group.parent / limit))
    assert host_capacity.available_bytes() == (8 - 5 + 2) * MIB
    (group.parent / limit).unlink()
    assert host_capacity.host_memory().bytes > 2**28
    assert not_none(host_capacity.available_bytes()) > 8 * MIB
    monkeypatch.setattr(host_capacity, "GROUPS", tmp_path / "none")
    assert host_capacity.host_memory().bytes > 2**28


def test_a_device_is_asked_what_it_can_pin(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of half of what is free, or what it gives, to within a piece; it has all back."""
    device = SimulatedDevice(pinned_limit=13 * MIB)
    monkeypatch.setattr(pinning, "available_bytes", lambda: 20 * MIB)
    found = pinning.pinnable(device, MIB)
    assert found.bytes == 10 * MIB
    assert "half of the 20.00 MiB that are free" in found.source
    monkeypatch.setattr(pinning, "available_bytes", lambda: 100 * MIB)
    found = pinning.pinnable(device, MIB)
    assert found.bytes == 13 * MIB
    assert "13,631,488 bytes of pinned memory are all there are; ulimit -l is" in found.source
    assert device.pinned.reserved == 0
    assert pinning.pinnable(device_of("cpu")).bytes is None


# ── the command ─────────────────────────────────────────────────────────────────────────────────────


def test_the_measured_machine_is_one_to_solve_for(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "APART", 0.0)  # whatever a busy machine shows: rates of both at once
    Path("there").mkdir()
    result = plan("machine", "--disk", "there", "-o", "machine.yaml", "--json")
    assert result.exit_code == 0, result.stderr
    reported, machine = json.loads(result.stdout), load_machine(Path("machine.yaml"))
    rates_of = {one["what"]: one for one in reported["measured"]}  # the last is of the largest size
    assert reported["device"] == "cpu"
    assert machine.device_capacity == machine.host_capacity == host_capacity.host_memory().bytes
    assert machine.pinned is None
    assert "pinned: cpu copies from any host memory at one rate" in result.stderr
    offload, prefetch = not_none(machine.links.d2h), not_none(machine.links.h2d)
    assert offload.rate == prefetch.rate
    for way, field in (("device to host", "d2h"), ("host to device", "h2d"), ("disk read", "disk_read")):
        small, alone = rates_of[f"{way}, small"], rates_of[way]
        taken = [one["bytes"] / one["median"] for one in (small, alone)]
        slope = (taken[1] - taken[0]) / (alone["bytes"] - small["bytes"])
        link = getattr(machine.links, field)
        assert np.isclose(link.latency, max(0, taken[0] - small["bytes"] * slope), rtol=0.01)
    for rate, what in (
        (offload.rate, "each way, both at once"),
        (not_none(machine.links.disk_read).rate, "disk read, both at once"),
        (not_none(machine.updates.host), "AdamW on the host"),
        (not_none(machine.updates.host_fused), "AdamW, fused, on the host"),
    ):
        assert np.isclose(rate, rates_of[what]["median"], rtol=0.01)
    assert "of them for updates on the host" in result.stderr
    assert "same memory" in result.stderr
    save_graph(chain(4), Path("chain.json"))
    assert plan("solve", "chain.json", "--machine", "machine.yaml", "--solver", "store-all").exit_code == 0
    table = plan("machine")
    assert "each way, both at once" in table.stdout
    assert "MiB" in table.stdout


def test_the_list_and_one_machine(plan: Plan) -> None:
    listed = json.loads(plan("machine", "--list", "--json").stdout)["machines"]
    assert {"rtx3060", "rtx4090", "v100", "a100-40gb", "h200", "rtx4090-12nvme"} <= {
        one["name"] for one in listed
    }
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
    assert not_none(found.machine.device_capacity) < torch.cuda.mem_get_info()[1]
    offload, updates = not_none(found.machine.links.d2h), found.machine.updates
    assert 1e9 < not_none(offload.pageable) < offload.rate < 1e12
    assert not_none(updates.device) > not_none(updates.host)
    assert not_none(updates.device_fused) > not_none(updates.host_fused)


def test_memory_that_is_pinned_stays_until_it_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA refuses pages that are pinned already, and memory freed while pinned is handed out anew."""
    held: list[bool] = []

    class Registering(SimulatedDevice):
        def pin(self, memory: torch.Tensor) -> Callable[[], None]:
            reference = weakref.ref(memory)
            return lambda: held.append(reference() is not None)

    monkeypatch.setattr(pinning, "available_bytes", lambda: 20 * MIB)
    assert pinning.pinnable(Registering(), MIB).bytes == 10 * MIB
    assert held
    assert all(held)
