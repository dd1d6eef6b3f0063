"""The GPUs whose times can be estimated without having one: what their vendor's data sheets promise.

Rates of matrix products are dense (no sparsity) and accumulate in float32, as PyTorch does. A type that a GPU
has no fast path for is left out. Error-correcting codes, driver and context take up to 7 % of the memory
that the data sheet names: leave a reserve.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from ..graphs.errors import InputError
from ..graphs.machine import Links, Machine

GIB = 2**30
PCIE_BYTES_PER_SECOND = {3: 15.75e9, 4: 31.5e9, 5: 63.0e9}
"""By generation: 16 lanes, one direction, after the line code (PCI Express base specification)."""
PCIE_EFFICIENCY = 0.8
"""What packet headers and flow control leave of it to large copies from pinned memory: a rule of thumb."""


@dataclass(frozen=True)
class Gpu:
    """memory: bytes. bandwidth: of that memory, bytes/s. pcie: its generation. The rest: FLOP/s by type.

    float32, float64: the better of plain and tensor cores that keeps all bits; tf32: float32 inputs rounded
    to 10 bits for the tensor cores. None: no fast path, runs as float32.
    """

    name: str
    memory: int
    bandwidth: float
    float64: float
    float32: float
    tf32: float | None
    float16: float
    bfloat16: float | None
    pcie: int
    source: str

    @property
    def machine(self) -> Machine:
        """Its memory and links; what host and disk hold is not the GPU's to know."""
        rate = PCIE_EFFICIENCY * PCIE_BYTES_PER_SECOND[self.pcie]
        return Machine(device_capacity=self.memory, links=Links(d2h=rate, h2d=rate))


_VOLTA = "NVIDIA V100 Tensor Core GPU data sheet, SXM2"
_TURING = "NVIDIA T4 Tensor Core GPU data sheet"
_A100 = "NVIDIA A100 Tensor Core GPU data sheet, SXM"
_H100 = "NVIDIA H100 Tensor Core GPU data sheet, SXM"
_H200 = "NVIDIA H200 Tensor Core GPU data sheet, SXM"
_L4 = "NVIDIA L4 Tensor Core GPU data sheet"
_AMPERE = "NVIDIA Ampere GA102 GPU Architecture white paper, tables of GeForce RTX 30 series"
_ADA = "NVIDIA Ada GPU Architecture white paper, tables of GeForce RTX 40 series"

# fmt: off
GPUS = (
    #    name         memory     bandwidth float64  float32  tf32     float16  bfloat16 PCIe source
    Gpu("RTX 3060",   12 * GIB,  360e9,    0.20e12, 12.7e12, 12.7e12, 25.5e12, 25.5e12, 4, _AMPERE),
    Gpu("RTX 3090",   24 * GIB,  936e9,    0.56e12, 35.6e12, 35.6e12, 71.0e12, 71.0e12, 4, _AMPERE),
    Gpu("RTX 4080",   16 * GIB,  717e9,    0.76e12, 48.7e12, 48.7e12, 97.5e12, 97.5e12, 4, _ADA),
    Gpu("RTX 4090",   24 * GIB,  1008e9,   1.29e12, 82.6e12, 82.6e12, 165e12,  165e12,  4, _ADA),
    Gpu("V100",       16 * GIB,  900e9,    7.8e12,  15.7e12, None,    125e12,  None,    3, _VOLTA),
    Gpu("V100 32GB",  32 * GIB,  900e9,    7.8e12,  15.7e12, None,    125e12,  None,    3, _VOLTA),
    Gpu("T4",         16 * GIB,  320e9,    0.25e12, 8.1e12,  None,    65e12,   None,    3, _TURING),
    Gpu("A100",       80 * GIB,  2039e9,   19.5e12, 19.5e12, 156e12,  312e12,  312e12,  4, _A100),
    Gpu("A100 40GB",  40 * GIB,  1555e9,   19.5e12, 19.5e12, 156e12,  312e12,  312e12,  4, _A100),
    Gpu("L4",         24 * GIB,  300e9,    0.49e12, 30.3e12, 60e12,   121e12,  121e12,  4, _L4),
    Gpu("H100",       80 * GIB,  3350e9,   67e12,   67e12,   494e12,  989e12,  989e12,  5, _H100),
    Gpu("H200",       140 * GIB, 4800e9,   67e12,   67e12,   494e12,  989e12,  989e12,  5, _H200),
)
# fmt: on


def find_gpu(name: str) -> Gpu:
    """The GPU of that name, with or without its memory: 'RTX 4090', 'rtx4090', 'NVIDIA A100-80GB'."""
    by_key = {_key(f"{gpu.name} {gpu.memory // GIB}GB"): gpu for gpu in GPUS}
    by_key |= {_key(gpu.name): gpu for gpu in GPUS}
    gpu = by_key.get(_key(name))
    if gpu is None:
        close = difflib.get_close_matches(_key(name), by_key, n=3, cutoff=0.5)
        names = ", ".join(dict.fromkeys(by_key[key].name for key in close or by_key))
        raise InputError(f"no GPU named {name!r} is known; {'close names' if close else 'known'}: {names}")
    return gpu


def _key(name: str) -> str:
    return re.sub(r"nvidia|geforce|tesla|rtx|[^a-z0-9]", "", name.lower())
