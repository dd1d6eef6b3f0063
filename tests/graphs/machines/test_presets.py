"""Machine files with update speeds, and machines by name against what their sources print."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memplan.graphs.errors import InputError
from memplan.graphs.files.documents import write_document
from memplan.graphs.files.machine import (
    load_machine,
    machine_from_document,
    machine_to_document,
    save_machine,
)
from memplan.graphs.files.shared import check_joint_rates
from memplan.graphs.machine import Link, Links, Machine, Tier, Updates
from memplan.graphs.machines.gpus import GIB, TOTAL_ERROR, find_gpu, gpu_to_document, gpus, lacks
from memplan.graphs.machines.hosts import DESKTOP, SERVER, Host, parse_host
from memplan.graphs.machines.presets import find_machine, find_preset, presets, with_host, with_lanes
from memplan.solvers.links import worth_moving
from not_none import not_none
from odd_graphs import odd_machine
from strategies import random_machine, random_measured, with_memories

MUST_GROW = "measured: sizes and seconds must grow from the latency on"

rates = st.none() | st.integers(1, 10**13).map(float) | st.floats(1e-6, 1e13)
disks = rates | st.builds(Link, rates.filter(bool), st.floats(0, 3600))
links = disks | st.builds(Link, rates.filter(bool), st.floats(0, 3600), rates)
capacities = st.none() | st.integers(0, 2**50)
bare = st.builds(Link, rates.filter(bool), st.just(0.0) | st.floats(0, 3600))
tiers = st.builds(
    Tier, st.from_regex(r"t[a-z0-9_-]{0,4}", fullmatch=True), capacities, st.none() | bare, st.none() | bare
)
machines = st.builds(
    Machine,
    capacities,
    capacities,
    capacities,
    st.builds(Links, links, links, disks, disks),
    st.builds(Updates, rates, rates, rates, rates),
    capacities,
    disk_name=st.sampled_from(("disk", "cxl-0")),
    deeper=st.lists(tiers, max_size=5, unique_by=lambda tier: tier.name).map(tuple),
)


@given(machines)
def test_what_is_written_is_read_back(machine: Machine) -> None:
    """One that can pin nothing has the pageable rates, where it has such."""
    for each in (machine, machine.without_pinned() or machine):
        expected = (each.without_pinned() if each.pinned == 0 else None) or each
        assert machine_from_document(machine_to_document(each)) == expected


def test_where_nothing_is_pinned_copies_have_the_pageable_rates() -> None:
    both = {"rate": 12e9, "latency": 2e-5, "pageable": 4e9}
    document = {"host": {"pinned": 0}, "links": {"d2h": both, "h2d": {**both, "pageable": 5e9}}}
    machine = machine_from_document(document)
    assert (machine.unpinned, machine.pinned) == (True, None)
    assert machine.links == Links(Link(4e9, 2e-5, 4e9), Link(5e9, 2e-5, 5e9))
    assert machine.without_pinned() == machine
    some = machine_from_document({**document, "host": {"pinned": 1}})
    assert (some.unpinned, some.pinned) == (False, 1)
    assert some.links == Links(Link(12e9, 2e-5, 4e9), Link(12e9, 2e-5, 5e9))
    assert some.without_pinned() == machine
    unknown = machine_from_document({"host": {"pinned": 0}, "links": {"d2h": both, "h2d": 12e9}})
    assert (unknown.unpinned, unknown.pinned, unknown.without_pinned()) == (False, 0, None)


def test_memories_below_the_host_may_be_listed() -> None:
    """In a row from the host down; the first has the place, and the fields, of the disk."""
    document = {
        "host": {"capacity": 64},
        "memories": [
            {"name": "cxl", "capacity": 256, "write": 30.0, "read": {"rate": 32.0, "latency": 1e-6}},
            {"name": "disk", "read": 3.0},
        ],
    }
    machine = machine_from_document(document)
    assert (machine.disk_capacity, machine.links) == (256, Links(None, None, Link(32.0, 1e-6), 30.0))
    assert machine.hierarchy.names == ("device", "host", "cxl", "disk")
    assert machine.deeper == (Tier("disk", None, None, Link(3.0)),)
    assert machine_to_document(machine) == document


def test_a_list_of_one_disk_is_the_disk() -> None:
    listed = {"memories": [{"name": "disk", "capacity": 5, "write": 2.0, "read": 3.0}]}
    usual = {"disk": {"capacity": 5}, "links": {"disk_read": 3.0, "disk_write": 2.0}}
    assert machine_from_document(listed) == machine_from_document(usual)
    assert machine_to_document(machine_from_document(listed)) == usual


def test_a_machine_without_update_speeds_is_as_it_was() -> None:
    document = {"device": {"capacity": 5}, "links": {"d2h": 1.0, "h2d": 2.0}}
    machine = machine_from_document(document)
    assert machine.updates == Updates()
    assert machine_to_document(machine) == document


@pytest.mark.parametrize(
    ("latency", "seconds"),
    [(2e-5, 2e-5), ("20us", 2e-5), ("20 µs", 2e-5), (".5ms", 5e-4), ("1e2s", 100.0), (0, 0.0)],
)
def test_a_link_may_have_a_latency(latency: object, seconds: float) -> None:
    """Times with and without a unit; without a latency the document is the bare rate, as ever."""
    machine = machine_from_document(
        {"links": {"d2h": {"rate": "1GB/s", "latency": latency}, "h2d": {"rate": 2}}}
    )
    assert machine.links == Links(Link(1e9, seconds), Link(2.0)) == Links(Link(1e9, seconds), 2)
    written = {"rate": 1e9, "latency": seconds} if seconds else 1e9
    assert machine_to_document(machine) == {"links": {"d2h": written, "h2d": 2.0}}


def test_a_copy_takes_the_latency_and_its_bytes() -> None:
    """n copies of b bytes: n λ + n b / β; and what rate that is."""
    link = Link(rate=1000.0, latency=0.25)
    assert link.seconds(500) == 0.75
    assert link.seconds(3 * 500, copies=3) == 3 * link.seconds(500) == 2.25
    assert link.rate_of([500, 500, 500]) == 1500 / 2.25
    assert Link(0.3).rate_of([7, 11]) == 0.3 == link.rate_of([]) / 1000 * 0.3
    assert link.seconds(np.array([0.0, 1000.0])).tolist() == [0.25, 1.25]


def test_copies_of_measured_sizes_take_what_was_measured() -> None:
    """Between two sizes on a line, beyond the last by the rate; several copies are counted one by one."""
    link = Link(100.0, 0.5, measured=((10, 1.0), (30, 1.5), (50, 4.0)))
    assert [link.seconds(size) for size in (0.0, 5.0, 10.0, 20.0, 50.0, 150.0)] == [
        0.5,
        0.75,
        1.0,
        1.25,
        4.0,
        5.0,
    ]
    assert link.seconds(np.array([0.0, 20.0])).tolist() == [0.5, 1.25]
    assert link.seconds(40.0, copies=2) == 2 * link.seconds(20.0)
    assert link.total_seconds([10, 30]) == 2.5
    assert link.rate_of([10, 30]) == 16.0
    assert link.slowed(2.0).seconds(150.0) == 10.0


@given(st.integers(0, 10**9), st.integers(1, 300))
def test_no_copies_are_faster_than_the_best_rate(seed: int, size: int) -> None:
    """Of any size, as one copy or as several."""
    random = Random(seed)
    link = Link(random.choice((0.5, 2.0, 8.0)), random.choice((0.0, 0.25)))
    link = replace(link, measured=random_measured(random, link))
    parts = random.sample(range(1, size + 1), min(size, 3))
    assert link.total_seconds(parts) >= link.least_seconds(sum(parts)) * (1 - 1e-12)
    assert link.least_seconds(size) * link.best_rate == pytest.approx(size)
    reached = [one / link.seconds(float(one)) for one in (*(s for s, _t in link.measured), 10**9)]
    assert max(reached) == pytest.approx(link.best_rate, rel=1e-6)


@given(st.integers(0, 10**9))
def test_measured_sizes_on_the_line_of_the_rate_change_nothing(seed: int) -> None:
    random = Random(seed)
    link = Link(random.choice((0.5, 2.0, 8.0)), random.choice((0.0, 0.25)))
    sizes = sorted(random.sample(range(1, 100), 4))
    same = replace(link, measured=tuple((size, link.seconds(float(size))) for size in sizes))
    for size in range(0, 200, 7):
        assert same.seconds(float(size)) == pytest.approx(link.seconds(float(size)))
    assert same.rate_of(sizes) == pytest.approx(link.rate_of(sizes))
    assert same.best_rate == pytest.approx(link.best_rate)
    links = (Machine(links=Links(one, one)) for one in (link, same))
    assert abs(worth_moving(next(links)) - worth_moving(next(links))) <= 1


def test_a_machine_file_may_have_measured_copies() -> None:
    document = {"links": {"d2h": {"rate": "1GB/s", "measured": [["1MB", "2ms"], [4000000, 0.005]]}}}
    machine = machine_from_document(document)
    assert machine.links.d2h == Link(1e9, measured=((10**6, 0.002), (4 * 10**6, 0.005)))
    written = machine_to_document(machine)
    assert written == {"links": {"d2h": {"rate": 1e9, "measured": [[10**6, 0.002], [4 * 10**6, 0.005]]}}}
    assert machine_from_document(written) == machine


@pytest.mark.parametrize(
    ("document", "line"),
    [
        (
            {"links": {"h2d": {"rate": 1, "latency": 2, "measured": [[10, 1]]}}},
            f"field 'h2d': {MUST_GROW}, not 0 B in 2 s, then 10 B in 1 s",
        ),
        (
            {"links": {"h2d": {"rate": 1, "measured": [[10, 2], [10, 3]]}}},
            f"field 'h2d': {MUST_GROW}, not 10 B in 2 s, then 10 B in 3 s",
        ),
        (
            {"links": {"h2d": {"rate": 1, "measured": [[10]]}}},
            "field 'h2d': measured: [10] is not a size and seconds, like [1MB, 95us]",
        ),
        ({"linsk": {}}, "unknown field 'linsk': is it 'links'?"),
        ({"links": {"h2g": 1}}, "unknown field 'h2g': is it 'h2d'?"),
        ({"links": {"d2h": {"latency": "20us"}}}, "field 'd2h': field 'rate' is missing"),
        ({"links": {"d2h": {"rate": 0}}}, "field 'd2h': 0 is not a rate"),
        ({"links": {"d2h": {"rate": 1, "lag": 1}}}, "field 'd2h': unknown field 'lag'"),
        ({"links": {"d2h": {"rate": 1, "pageable": 0}}}, "field 'd2h': 0 is not a rate"),
        ({"links": {"disk_read": {"rate": 1, "pageable": 1}}}, "field 'disk_read': unknown field 'pageable'"),
        (
            {"links": {"h2d": {"rate": 1, "latency": -1}}},
            "field 'h2d': -1 is not a time between 0 and 3600 s",
        ),
        ({"links": {"h2d": {"rate": 1, "latency": "1 h"}}}, "field 'h2d': '1 h' is not a time, like 20us"),
        ({"links": {"h2d": {"rate": 1, "latency": True}}}, "field 'h2d': True is not a time"),
        ({"links": {"h2d": [1, 2]}}, "field 'h2d': [1, 2] is not a number of bytes"),
        ({"updates": {"device": {"rate": 1}}}, "field 'device': {'rate': 1} is not a number of bytes"),
        ({"updates": {"hots": 1e9}}, "unknown field 'hots': is it 'host'?"),
        ({"device": {"capcity": 1}}, "unknown field 'capcity': is it 'capacity'?"),
        ({"updates": {"host": 0}}, "field 'host': 0 is not a rate"),
        ({"updates": {"device": "fast"}}, "field 'device': 'fast' is not a number of bytes"),
        ({"updates": 1e9}, "updates must be a mapping"),
        ({"gpus": "rtx3060"}, "unknown field 'gpus': is it 'gpu'"),
        ({"host": {"pined": 1}}, "unknown field 'pined': is it 'pinned'?"),
        ({"host": {"pinned": -1}}, "field 'host.pinned': -1"),
        ({"device": {"pinned": 1}}, "unknown field 'pinned'"),
        ([], "a machine must be a mapping"),
        ({"memories": []}, "field 'memories' lists 1 to 6 memories, not 0"),
        (
            {"memories": [{"name": f"m{k}"} for k in range(7)]},
            "field 'memories' lists 1 to 6 memories, not 7",
        ),
        ({"memories": {"cxl": {}}}, "memories must be a list"),
        ({"memories": [{"capacity": 1}]}, "field 'name' is missing"),
        ({"memories": [{"name": "CXL"}]}, "field 'memories': 'CXL' is no name: letters a to z, digits"),
        ({"memories": [{"name": "both"}]}, "field 'memories': the name 'both' is taken"),
        ({"memories": [{"name": "cxl"}, {"name": "cxl"}]}, "field 'memories': the name 'cxl' is taken"),
        ({"memories": [{"name": "cxl", "rate": 1}]}, "unknown field 'rate'"),
        ({"memories": [{"name": "cxl", "read": 0}]}, "field 'cxl.read': 0 is not a rate"),
        ({"memories": [{"name": "cxl", "read": 12}]}, "field 'cxl.read': 12 without a unit"),
        (
            {"memories": [{"name": "cxl", "read": 12e9, "capacity": 64}]},
            "field 'cxl.capacity': 64 without a unit is bytes: write 64GB, or 64B",
        ),
        (
            {"memories": [{"name": "cxl", "read": {"rate": 1, "pageable": 1}}]},
            "field 'cxl.read': unknown field 'pageable'",
        ),
        (
            {"memories": [{"name": "cxl"}], "disk": {"capacity": 1}},
            "field 'memories' replaces 'disk': list the disk there",
        ),
        (
            {"memories": [{"name": "cxl"}], "links": {"disk_read": 1e9}},
            "field 'memories' replaces 'disk_read'",
        ),
        (
            {"links": {"h2d": 12}},
            "field 'h2d': 12 without a unit is 12 bytes a second, slower than any: write 12GB/s, or 12B/s",
        ),
        ({"links": {"d2h": {"rate": "12e9", "pageable": 5000}}}, "write 5000MB/s, or 5000B/s"),
        ({"links": {"disk_read": "3.5"}}, "write 3.5GB/s, or 3.5B/s"),
        ({"updates": {"device": 16.6}}, "field 'device': 16.6 without a unit"),
        ({"links": {"h2d": {"rate": 12e9, "latency": 20}}}, "latency 20 is in seconds: write 20us, or 20s"),
        (
            {"links": {"h2d": 12e9}, "host": {"capacity": 64}},
            "field 'host.capacity': 64 without a unit is bytes: write 64GB, or 64B",
        ),
    ],
)
def test_a_malformed_machine_is_one_line(document: object, line: str, tmp_path: Path) -> None:
    write_document(document, tmp_path / "m.yaml")
    with pytest.raises(InputError) as error:
        load_machine(tmp_path / "m.yaml")
    assert line in str(error.value)
    assert str(error.value).startswith(str(tmp_path / "m.yaml"))
    assert "\n" not in str(error.value)


def test_numbers_with_a_unit_are_taken_at_their_word(tmp_path: Path) -> None:
    document = {
        "links": {"h2d": "12B/s", "d2h": {"rate": "5B/s", "latency": "20s"}},
        "host": {"capacity": "64B"},
    }
    write_document(document, tmp_path / "m.yaml")
    machine = load_machine(tmp_path / "m.yaml")
    assert (machine.links.h2d, machine.links.d2h) == (Link(12.0), Link(5.0, 20.0))
    assert machine.host_capacity == 64
    write_document({"device": {"capacity": 7}}, tmp_path / "m.yaml")  # a refusal by size names it anyway
    assert load_machine(tmp_path / "m.yaml") == Machine(7)


# ── presets ─────────────────────────────────────────────────────────────────────────────────────────


def test_the_machine_of_the_thesis() -> None:
    machine = find_preset("RTX 3060").machine
    assert machine == Machine(
        12 * GIB, 128 * 10**9, None, Links(10.4e9, 10.4e9), updates=Updates(16.6e9, 1.1e9)
    )


def test_a_link_is_most_of_its_pcie_generation_and_twice_that_of_the_one_before() -> None:
    links = {3: find_preset("v100"), 4: find_preset("a100"), 5: find_preset("h100")}
    for generation, preset in links.items():
        assert preset.gpu.pcie == generation
        assert not_none(preset.machine.links.d2h).rate == pytest.approx(
            0.8 * 15.75e9 * 2 ** (generation - 3), rel=1e-3
        )


def test_the_rule_for_updates_gives_back_what_it_is_made_from() -> None:
    rule = find_preset("T4").machine.updates.device
    assert rule is not None
    assert rule / find_preset("T4").gpu.bandwidth == pytest.approx(16.6 / 360)


@pytest.mark.parametrize("preset", presets().values(), ids=lambda preset: preset.name)
def test_presets_are_plausible_and_sourced(preset) -> None:
    machine = preset.machine
    assert find_preset(preset.name) == preset
    assert machine.device_capacity in (preset.gpu.usable, preset.gpu.memory)
    assert machine.host_capacity is None or 100e9 < machine.host_capacity < 1e12
    offload, prefetch = not_none(machine.links.d2h), not_none(machine.links.h2d)
    assert 10e9 <= offload.rate <= prefetch.rate <= (63e9 if preset.gpu.lanes else 450e9) * 0.9
    assert offload.rate == prefetch.rate or machine.joint_rates
    # One set of disks reads or writes.
    assert (("disk_read", "disk_write") in machine.shared) == (machine.disk_capacity is not None)
    check_joint_rates(machine)
    assert (machine.links.disk_read is None) == (machine.disk_capacity is None)
    host, device = not_none(machine.updates.host), not_none(machine.updates.device)
    assert 1e9 < host < 3e9 < device < preset.gpu.bandwidth / 7
    assert machine.updates.host_fused is None or host < machine.updates.host_fused < 30e9
    parts = {"device", "gpu", "links", "shared", "updates.device", "updates.host"}
    parts |= {"host"} if machine.host_capacity else set()
    parts |= {"disk"} if machine.disk_capacity else set()
    assert set(preset.sources) == parts
    assert all(preset.sources.values())


def test_every_gpu_has_a_preset_under_any_spelling() -> None:
    for gpu in gpus():
        assert find_preset(gpu.name) is not None
        assert find_preset(f"NVIDIA {gpu.name}").gpu is gpu
        assert find_preset(gpu.key).name == gpu.key


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "rtx4090-laptop"),
        ("NVIDIA GeForce RTX 4060 Ti", "rtx4060-ti"),
        ("NVIDIA GeForce RTX 2080 Ti", "rtx2080-ti"),
        ("Tesla T4", "t4"),
        ("Tesla P100-PCIE-16GB", "p100"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("Tesla V100-PCIE-32GB", "v100-pcie-32gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA RTX A6000", "rtx-a6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx6000-ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000"),
        ("Quadro RTX 8000", "quadro-rtx8000"),
    ],
)
def test_a_gpu_as_its_driver_prints_it(printed: str, name: str) -> None:
    assert find_preset(printed).name == name


def test_spellings_of_two_gpus_differ() -> None:
    """With its memory each has a name of its own; without, the first has it."""
    names = [f"{gpu.name} {gpu.memory // GIB}GB" for gpu in gpus()]
    assert [find_gpu(name) for name in names] == list(gpus())
    assert len({gpu.key for gpu in gpus()}) == len(gpus()) >= 60


@pytest.mark.parametrize(
    ("name", "gib"),
    [("t4", 14.56), ("l4", 22.03), ("a100-40gb", 39.5), ("rtx3090", 23.69), ("v100", 15.78), ("h200", 139.8)],
)
def test_what_cuda_reports(name: str, gib: float) -> None:
    assert find_gpu(name).total / GIB == pytest.approx(gib, abs=0.01)
    assert find_gpu(name).usable < find_gpu(name).total < find_gpu(name).memory


@pytest.mark.parametrize("gpu", [gpu for gpu in gpus() if gpu.reported], ids=lambda gpu: gpu.name)
def test_the_rule_for_what_cuda_reports_is_as_right_as_it_says(gpu) -> None:
    by_rule = replace(gpu, reported=None)
    assert by_rule.total_source != gpu.total_source
    assert abs(by_rule.total - gpu.total) <= TOTAL_ERROR * gpu.memory


def test_bfloat16_is_missed_by_name_where_there_is_none() -> None:
    without = [gpu for gpu in gpus() if lacks(gpu, "bfloat16")]
    assert without == [gpu for gpu in gpus() if gpu.capability < (8, 0)]
    assert "compute capability is 7.5" in not_none(lacks(find_gpu("T4"), "bfloat16"))
    assert lacks(find_gpu("T4"), "float16") is None


def test_the_rules_for_updates_on_a_host_give_back_what_they_are_made_from() -> None:
    """The thesis' i3, the host of an H200, a DGX-2: the docstring of hosts.py has the sources."""
    i3, h200, dgx2 = (Host(None, cores, rate) for cores, rate in ((4, 42e9), (16, 500e9), (48, 256e9)))
    assert i3.updates(1.0).host == pytest.approx(1.1e9, rel=0.04)
    assert h200.updates(1.0).host == pytest.approx(2.7e9, rel=0.04)
    assert h200.updates(1.0).host_fused == pytest.approx(28.2e9, rel=0.04)
    assert dgx2.updates(1.0).host == pytest.approx(2.9e9, rel=0.04)
    assert dgx2.updates(1.0).host_fused == pytest.approx(18.2e9, rel=0.04)


def test_a_host_and_lanes_of_ones_own() -> None:
    sheet = find_preset("rtx4090")
    given = with_lanes(with_host(sheet, "64GB"), 8)
    assert given.machine.host_capacity == 64 * 10**9
    assert given.machine.updates == sheet.machine.updates
    half = not_none(sheet.machine.links.d2h).rate / 2
    assert not_none(given.machine.links.h2d).rate == not_none(given.machine.links.d2h).rate == half
    weak = with_host(sheet, "64GB, 4cores, 40GB/s").machine.updates
    assert (weak.host, weak.host_fused) == (1.1e9, pytest.approx(40e9 / 14))
    assert weak.device == sheet.machine.updates.device
    assert with_lanes(sheet, 16) == replace(sheet, sources=with_lanes(sheet, 16).sources)
    with pytest.raises(InputError, match="NVLink"):
        with_lanes(find_preset("gh200"), 8)


@pytest.mark.parametrize("text", ["64", "0GB", "64GB,16", "64GB,0cores", "much", "64GB,cores", "64GB,-1GB/s"])
def test_no_host(text: str) -> None:
    with pytest.raises(InputError) as error:
        with_host(find_preset("a100"), text)
    assert "\n" not in str(error.value)


def test_the_assumed_host() -> None:
    assert parse_host("1TB", SERVER) == replace(SERVER, capacity=10**12)
    assert not_none(find_preset("h100").machine.updates.host_fused) > not_none(
        find_preset("rtx5090").machine.updates.host_fused
    )
    assert DESKTOP.cores < SERVER.cores


def test_a_gpu_described_in_a_machine_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    known = find_preset("t4")
    whole = machine_to_document(known.machine) | {"gpu": gpu_to_document(known.gpu)}
    write_document(whole, Path("same.yaml"))
    same = find_preset("same.yaml")
    assert (replace(same.gpu, reported_source=known.gpu.reported_source), same.machine) == (
        known.gpu,
        known.machine,
    )
    assert find_machine("same.yaml") == known.machine
    section = {"like": "rtx4090", "name": "RTX 6090", "memory": "48GiB", "bandwidth": "2TB/s", "bus": "5x8"}
    write_document({"gpu": section, "host": {"capacity": "64GB"}}, Path("new.yaml"))
    new = find_preset("new.yaml")
    assert (new.gpu.name, new.gpu.memory, new.gpu.bandwidth) == ("RTX 6090", 48 * GIB, 2e12)
    assert new.gpu.float16 == find_gpu("rtx4090").float16
    assert not_none(new.machine.links.d2h).rate == pytest.approx(0.8 * 8 * 3.938e9)
    assert new.machine.device_capacity == new.gpu.usable > 46 * GIB
    assert new.machine.host_capacity == 64 * 10**9


@pytest.mark.parametrize(
    ("section", "fault"),
    [
        (None, "has no field 'gpu'"),
        ({"name": "x"}, "field 'like' is missing"),
        ({"like": "rtx4090", "memroy": 1}, "is it 'memory'"),
        ({"like": "rtx4090", "bus": "9x3"}, "like 4x16"),
        ({"like": "rtx0"}, "no GPU named 'rtx0'"),
        ({"like": "rtx4090", "bandwidth": "fast"}, "is not a number of bytes"),
    ],
)
def test_a_gpu_described_wrongly_is_one_line(section, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    write_document({"device": {"capacity": "8GiB"}} | ({"gpu": section} if section else {}), path)
    with pytest.raises(InputError) as error:
        find_preset(str(path))
    assert fault in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "close"),
    [
        ("rtx306", "rtx3060"),
        ("rtx4090-12nvm", "rtx4090-12nvme"),
        ("a100-pci3", "a100-pcie3"),
        ("rtx 4077", "plan machine rtx4070 -o mine.yaml"),
        ("?", "plan machine --list"),
        ("MI300X", "MI300X is made by AMD"),
        ("AMD Radeon RX 7900 XTX", "is made by AMD"),
        ("M3 Max", "is made by Apple"),
        ("Gaudi 2", "is made by Intel"),
    ],
)
def test_an_unknown_name_is_one_line_with_close_names(name: str, close: str) -> None:
    with pytest.raises(InputError) as error:
        find_preset(name)
    assert close in str(error.value)
    assert "\n" not in str(error.value)


def test_a_name_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_machine("rtx4090-12nvme") == find_preset("rtx4090-12nvme").machine
    write_document({"device": {"capacity": 7}}, Path("rtx4090.yaml"))
    assert find_machine(Path("rtx4090.yaml")) == Machine(7)
    with pytest.raises(InputError, match="no such file"):
        find_machine("rtx3060.yaml")
    Path("rtx3060").write_text("device: {capacity: 7}")
    with pytest.raises(InputError, match="suffix"):
        find_machine("rtx3060")


@given(st.randoms(use_true_random=False), st.integers(2, 6), st.sampled_from([None, 0, 1, 5, 10**12]))
def test_a_saved_machine_is_read_back_however_slow_and_small_it_is(
    random: Random, memories: int, capacity: int | None
) -> None:
    """Rates below 1 B/s too, which load_machine refuses without a unit."""
    updates = Updates(device=random.choice((None, 0.5, 1e9)), host=random.choice((None, 1e-3)))
    with TemporaryDirectory() as folder:
        for machine in (odd_machine(random), with_memories(random, random_machine(random), memories)):
            slow = replace(
                machine, device_capacity=capacity, host_capacity=capacity, pinned=capacity, updates=updates
            )
            path = Path(folder, "m.yaml")
            save_machine(slow, path)
            assert load_machine(path) == slow
