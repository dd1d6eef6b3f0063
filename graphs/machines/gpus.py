"""The GPUs that one can plan for without having one: what their vendor's data sheets promise.

Rates of matrix products are dense (no sparsity) and accumulate in float32, as PyTorch does. A type that a GPU
has no fast path for is left out. Error-correcting codes, driver and context take up to 7 % of the memory
that the data sheet names: leave a reserve.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import InputError

GIB = 2**30


@dataclass(frozen=True)
class Gpu:
    """A GPU's data sheet.

    memory: bytes. bandwidth: of that memory, bytes/s. pcie: its generation. The rest: FLOP/s by dtype.
    float32, float64: the better of ordinary and tensor cores that keep all bits; tf32: float32 inputs rounded
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
    def key(self) -> str:
        """Return the name as one word: `rtx4090`, `a100-40gb`."""
        return self.name.lower().replace("rtx ", "rtx").replace(" ", "-")


_VOLTA = "NVIDIA V100 Tensor Core GPU data sheet, SXM2"
_TURING = "NVIDIA T4 Tensor Core GPU data sheet"
_A100 = "NVIDIA A100 Tensor Core GPU data sheet, SXM"
_H100 = "NVIDIA H100 Tensor Core GPU data sheet, SXM"
_H200 = "NVIDIA H200 Tensor Core GPU data sheet, SXM"
_L4 = "NVIDIA L4 Tensor Core GPU data sheet"
_AMPERE = "NVIDIA Ampere GA102 GPU Architecture white paper, tables of GeForce RTX 30 series"
_GA106 = "NVIDIA GeForce RTX 3060 specifications: 3,584 cores at 1.777 GHz, with the rates per core of GA102"
_ADA = "NVIDIA Ada GPU Architecture white paper, tables of GeForce RTX 40 series"

# fmt: off
GPUS = (
    #    name         memory     bandwidth float64  float32  tf32     float16  bfloat16 PCIe source
    Gpu("RTX 3060",   12 * GIB,  360e9,    0.20e12, 12.7e12, 12.7e12, 25.5e12, 25.5e12, 4, _GA106),
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


def closest(name: str, known: Mapping[str, str]) -> str:
    """Return a hint: 'close names: rtx4080, rtx4090', or 'known: …' with all.

    known: what to compare with -> to show.
    """
    close = difflib.get_close_matches(spelling(name), known, n=3, cutoff=0.5)
    shown = dict.fromkeys(known[key] for key in close or known)
    return f"{'close names' if close else 'known'}: {', '.join(shown)}"


def find_gpu(name: str) -> Gpu:
    """Return the GPU of that name, with or without its memory: 'RTX 4090', 'rtx4090', 'NVIDIA A100-80GB'."""
    gpu = spellings().get(spelling(name))
    if gpu is None:
        names = {key: gpu.key for key, gpu in spellings().items()}
        raise InputError(f"no GPU named {name!r} is known; {closest(name, names)}")
    return gpu


def spellings() -> dict[str, Gpu]:
    """Return every spelling of a name, with its memory and without -> the GPU."""
    found = {spelling(f"{gpu.name} {gpu.memory // GIB}GB"): gpu for gpu in GPUS}
    return found | {spelling(gpu.name): gpu for gpu in GPUS}


def spelling(name: str) -> str:
    """Return a name without what people leave out."""
    return re.sub(r"nvidia|geforce|tesla|rtx|[^a-z0-9]", "", name.lower())
