"""Machines by name: GPUs as estimated from their data sheets, and those that papers measured.

A data sheet names a GPU's memory, its memory's bandwidth and its bus. The rest of a machine comes by rules of
thumb:

    device           what CUDA reports, without its context (gpus.py)
    links            `PCIE_EFFICIENCY` of the bus, each direction
    updates.device   bandwidth / `PASSES`: how often AdamW on the RTX 3060 of Zhao's thesis walks over the
                     bytes of its weights (360 GB/s against 16.6 GB/s); on an H200 it was 0.71 of that
                     (benchmarks/results/gpu.md)
    updates.host     by cores and memory bandwidth of an assumed host (hosts.py)

What the host holds is not the GPU's to know: no limit, and no disk, unless `with_host` says so. The machines
of papers are as these describe them. A machine that is there is better measured: `plan machine -o
machine.yaml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files.documents import document_suffix, read_document
from ..files.fields import mapping
from ..files.machine import load_machine
from ..machine import JointRate, Links, Machine, Updates
from .gpus import Gpu, find_gpu, gpu_from_document, gpus, spelling, spellings, unknown
from .hosts import DESKTOP, SERVER, Host, parse_host

LANE_BYTES_PER_SECOND = {3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""Bytes/s of a lane by generation, one direction, after the line code (PCI Express base specification)."""
C2C_DOWN, C2C_UP, C2C_BOTH = 300e9, 346e9, 450e9
"""Bytes/s of NVLink-C2C to the host, from it, and of both at once in all; the data sheet says 450 GB/s each
way. Measured by copy engines on a GH200 (NVIDIA/nvbandwidth on GitHub, issue 23: 346 GB/s up, 15 % more than
down; issue 41: both at once half of the data sheet's 900)."""
ONE_QUEUE = (("disk_read", "disk_write"),)
"""An SSD reads and writes the same flash, over the same lanes: one at a time, as LoHan's (4), (5) count."""
PCIE_EFFICIENCY = 0.8
"""Share of it that packet headers and flow control leave to large copies from pinned memory: a rule of
thumb. An H200 on PCIe 5 had 0.86 of it, and 0.77 each way with both at once (benchmarks/results/gpu.md). So
the rule holds for both directions at once, and a slot shares nothing between them."""
PASSES = 360e9 / 16.6e9
ASSUMED = "assumed"
"""Source of the memory of a host that nobody describes."""
THESIS_HOST_UPDATES = 1.1e9
"""Bytes/s of the thesis' Intel i3-10105F. The other papers name none: their machines have the same."""


@dataclass(frozen=True)
class Preset:
    """A named machine and where its figures come from.

    sources: part of the machine -> where it comes from.
    """

    name: str
    gpu: Gpu
    machine: Machine
    sources: Mapping[str, str]


@cache
def presets() -> Mapping[str, Preset]:
    """Return the presets by name: one for each GPU, then the other machines that papers measured."""
    measured = _from_papers()
    # A paper's machine with the key of a GPU (rtx3060, rtx4080) replaces that of the data sheet.
    return {gpu.key: measured.get(gpu.key) or _from_data_sheet(gpu) for gpu in gpus()} | measured


def find_preset(name: str | Preset) -> Preset:
    """Return a preset by its name, any spelling of its GPU's, or a machine file that describes its GPU.

    name: 'rtx3060', 'NVIDIA A100-SXM4-80GB', 'rtx4090-12nvme', 'mine.yaml'; a preset is returned as it is.
    Raises InputError, one line.
    """
    if isinstance(name, Preset):
        return name
    known, cards = presets(), spellings()
    preset = known.get(name.strip().lower())
    if preset is None and spelling(name) in cards:
        preset = known[cards[spelling(name)].key]
    if preset is None and is_document(name):
        return _from_file(Path(name))
    if preset is None:
        names = {key: gpu.key for key, gpu in cards.items()} | {spelling(name): name for name in known}
        raise unknown(name, names, "GPU or machine")
    return preset


def is_document(text: str) -> bool:
    """Tell whether the text is a document's path by its suffix."""
    try:
        document_suffix(Path(text))
    except InputError:
        return False
    return True


def _from_file(path: Path) -> Preset:
    """Return the machine of a file and the GPU of its section `gpu`. Raises InputError, one line."""
    machine = load_machine(path)
    try:
        section = mapping(read_document(path), "a machine").get("gpu")
        if section is None:
            raise ValueError("has no field 'gpu': write one, like gpu: {like: rtx4090, memory: 32GiB}")
        gpu = gpu_from_document(section)
    except (ValueError, InputError) as error:
        raise InputError(f"{path}: {error}") from None
    sheet = _from_data_sheet(gpu)
    given = {
        name: value
        for name in ("device_capacity", "host_capacity", "disk_capacity", "pinned")
        if (value := getattr(machine, name)) is not None
    }
    # All links or none: a file with one of the two describes both directions.
    own = bool(machine.links.d2h or machine.links.h2d)
    links = machine.links if own else sheet.machine.links
    joint_rates = machine.joint_rates if own else sheet.machine.joint_rates
    rates = {name: rate for name, rate in vars(machine.updates).items() if rate is not None}
    updates = replace(sheet.machine.updates, **rates)
    whole = replace(
        sheet.machine,
        **given,
        links=links,
        updates=updates,
        shared=machine.shared,
        joint_rates=joint_rates,
    )
    return Preset(path.stem, gpu, whole, {**sheet.sources, "gpu": f"{path}, like {gpu.name}"})


def with_host(preset: Preset, text: str, source: str = "as given") -> Preset:
    """Return the preset in another host: '64GB', '64GB,16cores,80GB/s'. Raises InputError, one line.

    source: who says so, "as given" or ASSUMED.
    """
    host = parse_host(text, _assumed(preset.gpu))
    updates = preset.machine.updates
    sources = {**preset.sources, "host": source}
    # Memory alone: the speeds of the assumed host stay.
    if "," in text:
        updates = replace(host.updates(updates.device or 0.0), device=updates.device)
        sources["updates.host"] = f"{host}, by the rule of hosts.py"
    machine = replace(preset.machine, host_capacity=host.capacity, updates=updates)
    return replace(preset, machine=machine, sources=sources)


def with_lanes(preset: Preset, lanes: int) -> Preset:
    """Return the preset with its GPU on so many PCIe lanes. Raises InputError if it is not on PCIe."""
    if not preset.gpu.lanes:
        raise InputError(f"{preset.gpu.name} is joined to its host by NVLink: --lanes is for PCIe")
    links, factor = preset.machine.links, preset.gpu.lanes / lanes
    d2h, h2d = (link and link.slowed(factor) for link in (links.d2h, links.h2d))
    machine = replace(preset.machine, links=replace(links, d2h=d2h, h2d=h2d))
    sources = {**preset.sources, "links": f"{preset.sources['links']}, on {lanes} lanes as given"}
    return replace(preset, machine=machine, sources=sources)


def described_preset(gpu: str, host: str | None, lanes: str | None, assumed: str | None = None) -> Preset:
    """Return the machine of --gpu with what --host and --lanes say. Raises InputError, one line.

    assumed: a host for a machine of which nobody says how much memory its host has.
    """
    preset = find_preset(gpu)
    if lanes is not None:
        preset = with_lanes(preset, int(lanes))
    if host is None and assumed is not None and preset.machine.host_capacity is None:
        return with_host(preset, assumed, ASSUMED)
    return preset if host is None else with_host(preset, host)


def _assumed(gpu: Gpu) -> Host:
    return DESKTOP if gpu.desktop else SERVER


def find_machine(text: Path | str) -> Machine:
    """Return the machine of a machine file or of a preset. Raises InputError.

    text: a file if it has a document's suffix or exists, else a preset's name.
    """
    if not isinstance(text, Path | str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"machine={text!r}: give a Machine, a machine file or a name, like 'rtx3060'")
    path = Path(text)
    try:
        document_suffix(path)
    except InputError:
        if not path.exists():
            return find_preset(str(text)).machine
    return load_machine(path)


def _from_data_sheet(gpu: Gpu) -> Preset:
    host = _assumed(gpu)
    if gpu.lanes:
        rate = PCIE_EFFICIENCY * LANE_BYTES_PER_SECOND[gpu.pcie] * gpu.lanes
        links, joint_rates = Links(rate, rate), ()
        source = f"{PCIE_EFFICIENCY:.0%} of PCIe {gpu.pcie}.0 x{gpu.lanes}, a rule of thumb"
        shared = "nothing: each direction of a slot has its own lanes; an H200 had 48.3 GB/s each way at once"
    else:
        links, joint_rates = Links(C2C_DOWN, C2C_UP), (JointRate(("d2h", "h2d"), C2C_BOTH),)
        source = "NVLink-C2C as measured on a GH200 (NVIDIA/nvbandwidth, issue 23)"
        shared = "both directions of NVLink-C2C, as measured (NVIDIA/nvbandwidth, issue 41)"
    sources = {
        "device": f"{gpu.total_source}; without CUDA's context, {gpu.context / 2**20:.0f} MiB by a rule",
        "gpu": gpu.source,
        "links": source,
        "shared": shared,
        "updates.device": f"bandwidth / {PASSES:.1f}, as on the RTX 3060 of {_THESIS}, table 4.2",
        "updates.host": f"a host of {host}, assumed: by the rule of hosts.py",
    }
    updates = host.updates(gpu.bandwidth / PASSES)
    machine = Machine(gpu.usable, links=links, updates=updates, joint_rates=joint_rates)
    return Preset(gpu.key, gpu, machine, sources)


# ── the machines of papers ──────────────────────────────────────────────────────────────────────────

_THESIS = "X. Zhao's thesis (2024)"
_OFFMATE = f"measured, {_THESIS}, table 4.2"
_LOHAN = "LoHan (arXiv:2403.06504)"
_STRONGHOLD = "STRONGHOLD (SC 2022), section V"
_MEMFERRY = "MemFerry, section V"


LOHAN_DISKS = 2 * 182e9 / 13.0
"""Bytes/s of its 12 disks, read and written: 182 GB each way in 13 s."""


def _from_papers() -> dict[str, Preset]:
    found = (
        _of_paper(
            "rtx3060",
            "RTX 3060",
            {"host": _OFFMATE, "links": _OFFMATE, "updates.device": _OFFMATE},
            host_capacity=128 * 10**9,
            links=Links(10.4e9, 10.4e9),
            updates=Updates(16.6e9, THESIS_HOST_UPDATES),
        ),
        _of_paper(
            "rtx4080",
            "RTX 4080",
            {
                "host": f"{_THESIS}, section 4.8.4: AMD EPYC 7502",
                "links": f"{_THESIS}, section 4.8.4: twice the 10.4 GB/s of its RTX 3060",
            },
            host_capacity=128 * 10**9,
            links=Links(20.8e9, 20.8e9),
        ),
        _of_paper(
            "rtx4090-12nvme",
            "RTX 4090",
            {
                "host": f"{_LOHAN}, table III; its 175B runs limit it to 256 GB",
                "disk": f"{_LOHAN}, table III: 12 Intel P5510 of 3.84 TB",
                "links": f"{_LOHAN}, section III: 213 GB of activations in 10 s; of the disks 182 GB each "
                "way in 13 s (the vendor's figures for sequential access are 78 and 40.8 GB/s)",
                "shared": f"{_LOHAN}, figure 1: the disks carry 364 GB, both ways, in those 13 s; reads and "
                "writes add up in its (4) and (5)",
            },
            host_capacity=768 * 10**9,
            disk_capacity=12 * 3840 * 10**9,
            links=Links(21.3e9, 21.3e9, LOHAN_DISKS, LOHAN_DISKS),
            shared=ONE_QUEUE,
        ),
        _of_paper(
            "v100-32gb-nvme",
            "V100 32GB",
            {
                "host": _STRONGHOLD,
                "disk": f"{_STRONGHOLD}: a 2 TB NVMe SSD",
                "links": f"80% of PCIe 3.0 x16, a rule of thumb; of the disk {_STRONGHOLD}: up to 7 GB/s, "
                "the vendor's figure",
                "shared": "the disk's reads and writes, as of LoHan's disks; nothing measured",
            },
            host_capacity=755 * 10**9,
            disk_capacity=2 * 10**12,
            links=Links(12.6e9, 12.6e9, 7e9, 7e9),
            shared=ONE_QUEUE,
        ),
        _of_paper("v100-32gb-pcie3", "V100 32GB", {"links": _pcie_3(_MEMFERRY)}, links=Links(12.6e9, 12.6e9)),
        _of_paper("a100-pcie3", "A100", {"links": _pcie_3(_MEMFERRY)}, links=Links(12.6e9, 12.6e9)),
    )
    return {preset.name: preset for preset in found}


def _pcie_3(source: str) -> str:
    return f"80% of PCIe 3.0 x16, a rule of thumb; the generation: {source}"


def _of_paper(name: str, gpu: str, sources: Mapping[str, str], **known: Any) -> Preset:
    """Return a preset from a paper's figures, completed from the GPU's data sheet.

    Papers count all the memory on the box; their schedules leave free what CUDA takes.
    """
    sheet = _from_data_sheet(find_gpu(gpu))
    # The data sheet's fused rate is that of another, assumed host.
    updates = replace(sheet.machine.updates, host=THESIS_HOST_UPDATES, host_fused=None)
    machine = replace(sheet.machine, **{"device_capacity": sheet.gpu.memory, "updates": updates, **known})
    common = {"device": "all the memory on the box, as the paper counts", "updates.host": _OFFMATE}
    return Preset(name, sheet.gpu, machine, {**sheet.sources, **common, **sources})
