"""Machines by name: those that papers measured, and for every other GPU what its data sheet lets expect.

A data sheet names a GPU's memory, its memory's bandwidth and its PCIe generation. The rest of a machine
comes by three rules of thumb:

    links            `PCIE_EFFICIENCY` of 16 lanes of that generation, each direction
    updates.device   bandwidth / `PASSES`: how often AdamW on the RTX 3060 of Zhao's thesis walks over the
                     bytes of its weights (360 GB/s against 16.6 GB/s)
    updates.host     that of the thesis' CPU, an Intel i3-10105F: low for a server

What the host holds is not the GPU's to know: no limit, and no disk. An available machine is better measured:
`plan machine -o machine.yaml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files.documents import document_suffix
from ..files.machine import load_machine
from ..machine import Links, Machine, Updates
from .gpus import GPUS, Gpu, closest, find_gpu, spelling, spellings

PCIE_BYTES_PER_SECOND = {3: 15.75e9, 4: 31.5e9, 5: 63.0e9}
"""Bytes/s by generation: 16 lanes, one direction, after the line code (PCI Express base specification)."""
PCIE_EFFICIENCY = 0.8
"""Share of it that packet headers and flow control leave to large copies from pinned memory: a rule of
thumb."""
PASSES = 360e9 / 16.6e9
HOST_UPDATES = 1.1e9


@dataclass(frozen=True)
class Preset:
    """A named machine and where its figures come from.

    sources: part of the machine -> where it comes from.
    """

    name: str
    gpu: Gpu
    machine: Machine
    sources: Mapping[str, str]


def presets() -> dict[str, Preset]:
    """Return the presets by name: one for each GPU, then the machines of papers named after their system."""
    measured = _from_papers()
    return {gpu.key: measured.get(gpu.key) or _from_data_sheet(gpu) for gpu in GPUS} | measured


def find_preset(name: str) -> Preset:
    """Return a preset by its name or any spelling of its GPU's: 'lohan', 'rtx3060', 'NVIDIA A100-80GB'."""
    known, gpus = presets(), spellings()
    preset = known.get(name.strip().lower())
    if preset is None and spelling(name) in gpus:
        preset = known[gpus[spelling(name)].key]
    if preset is None:
        names = {key: gpu.key for key, gpu in gpus.items()} | {spelling(name): name for name in known}
        raise InputError(f"no GPU or machine named {name!r} is known; {closest(name, names)}")
    return preset


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
    link = PCIE_EFFICIENCY * PCIE_BYTES_PER_SECOND[gpu.pcie]
    updates = Updates(gpu.bandwidth / PASSES, HOST_UPDATES)
    sources = {
        "gpu": gpu.source,
        "links": f"{PCIE_EFFICIENCY:.0%} of PCIe {gpu.pcie}.0 x16, a rule of thumb",
        "updates.device": f"bandwidth / {PASSES:.1f}, as on the RTX 3060 of {_THESIS}, table 4.2",
        "updates.host": f"the Intel i3-10105F of {_THESIS}, table 4.2: low for a server",
    }
    return Preset(gpu.key, gpu, Machine(gpu.memory, links=Links(link, link), updates=updates), sources)


# ── the machines of papers ──────────────────────────────────────────────────────────────────────────

_THESIS = "X. Zhao's thesis (2024)"
_OFFMATE = f"measured, {_THESIS}, table 4.2"
_LOHAN = "LoHan (arXiv:2403.06504)"
_STRONGHOLD = "STRONGHOLD (SC 2022), section V"
_MEMFERRY = "MemFerry, section V"


def _from_papers() -> dict[str, Preset]:
    found = (
        _of_paper(
            "rtx3060",
            "RTX 3060",
            {"host": _OFFMATE, "links": _OFFMATE, "updates.device": _OFFMATE, "updates.host": _OFFMATE},
            host_capacity=128 * 10**9,
            links=Links(10.4e9, 10.4e9),
            updates=Updates(16.6e9, 1.1e9),
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
            "lohan",
            "RTX 4090",
            {
                "host": f"{_LOHAN}, table III; its 175B runs limit it to 256 GB",
                "disk": f"{_LOHAN}, table III: 12 Intel P5510 of 3.84 TB",
                "links": f"{_LOHAN}, section III: 213 GB of activations in 10 s; of a disk the vendor's "
                "figures for sequential access (6.5 and 3.4 GB/s) times 12",
            },
            host_capacity=768 * 10**9,
            disk_capacity=12 * 3840 * 10**9,
            links=Links(21.3e9, 21.3e9, 12 * 6.5e9, 12 * 3.4e9),
        ),
        _of_paper(
            "stronghold",
            "V100 32GB",
            {
                "host": _STRONGHOLD,
                "disk": f"{_STRONGHOLD}: a 2 TB NVMe SSD",
                "links": f"80% of PCIe 3.0 x16, a rule of thumb; of the disk {_STRONGHOLD}: up to 7 GB/s",
            },
            host_capacity=755 * 10**9,
            disk_capacity=2 * 10**12,
            links=Links(12.6e9, 12.6e9, 7e9, 7e9),
        ),
        _of_paper("memferry-v100", "V100 32GB", {"links": _pcie_3(_MEMFERRY)}, links=Links(12.6e9, 12.6e9)),
        _of_paper("memferry-a100", "A100", {"links": _pcie_3(_MEMFERRY)}, links=Links(12.6e9, 12.6e9)),
    )
    return {preset.name: preset for preset in found}


def _pcie_3(source: str) -> str:
    return f"80% of PCIe 3.0 x16, a rule of thumb; the generation: {source}"


def _of_paper(name: str, gpu: str, sources: Mapping[str, str], **known: Any) -> Preset:
    """Return a preset from a paper's figures, completed from the GPU's data sheet."""
    sheet = _from_data_sheet(find_gpu(gpu))
    return Preset(name, sheet.gpu, replace(sheet.machine, **known), {**sheet.sources, **sources})
