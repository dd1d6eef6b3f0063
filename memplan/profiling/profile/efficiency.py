"""Shares of a GPU's rates that operations reach, and what a launch takes: fitted to published measurements.

    compute = FLOPs / (compute · rate)                 memory = bytes / (bandwidth · data sheet's)
    seconds on the device = (max(compute, memory) + serial · min(compute, memory)) / kind + kernel
    seconds of the thread = (launch + library) · host

The values are in efficiencies.yaml, which benchmarks/published_fit.py writes: fitted to the half of the rows
of benchmarks/published.yaml that is for fitting, and judged on the other half
(benchmarks/results/published.md). `compute` is by compute capability and rate, `kind` by kind of operation.
A capability without rows for a rate has the share that measured products reach on that GPU (products.py),
else the value of the nearest earlier capability with that rate, or of the first later one.

`serial` is the share of the shorter of computing and moving bytes that does not overlap with the longer: a
tile of a product is loaded before it is multiplied, and written after. So products of narrow matrices reach
less than those of wide ones. `kernel` is what a kernel takes at least: small operations fill no GPU.

Products in half precision were measured by size on server cards, so that size is no matter of the fit:

    compute = FLOPs / (products · rate) + unhidden · bytes / data sheet's bandwidth

`unhidden` is fitted to those measurements alone, `products` by compute capability to them and to the rows. On
cards without such rows it is the share that products reach on that GPU (products.py).

`launch` is the time of Python, PyTorch's dispatcher and CUDA's driver for an operation, by phase, on the host
of an Ada or Hopper card or a later one. `library` is what products, convolutions, norms and attention take in
addition: cuBLAS and cuDNN choose a kernel by the arguments, and most of these operations have a module of
their own. Earlier cards stand in hosts of their time, which take `host` times as long.

Attention has a curve, not a share, since its rate depends on lengths and on widths of heads (`attention`):

    seconds = (FLOPs / (attention · rate) + scores / (exponentials · units)) · (1 + STARTS / keys of a query)

Each score takes an exponential, of which a multiprocessor computes 16 a cycle. STARTS is what the blocks of
keys at the diagonal and the first one cost. The three constants are those of published kernels, not of rows:
FlashAttention-2 (arXiv:2307.08691, figure 4, recalled: A100, heads of 64 and 128, 512 to 16,384 tokens, 88 to
189 TFLOP/s) and cuDNN in FlashAttention-3's figures 5 and 6 (arXiv:2407.08608: H100). GeForce's tensor cores
have half the rate, so that attention reaches more of it: FlashAttention-2 on an RTX 4090 runs at 125
(backward) to 169 of 165 TFLOP/s (apache/tvm, tl_doc/flash_perf.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import yaml

from ...graphs.graph import Phase
from ...graphs.machines.gpus import Gpu
from .products import product_share

TABLE = Path(__file__).parent / "efficiencies.yaml"

HALVES = "bfloat16", "float16"
"""Rates at which tensor cores multiply numbers of two bytes."""
ADA = 8, 9
"""The first capability of the cards of 2022, Ada and Hopper."""
STARTS = 256
"""Keys that a query of an attention takes longer than those that it has."""
EXPONENTIALS = 0.8
"""Share of its units for exponentials that an attention reaches."""
ATTENTION = {(8, 0): 0.7, (8, 6): 0.87, (9, 0): 0.66, (12, 0): 0.87}
"""Share of the rate that an attention reaches besides, by the first capability that has it."""


@dataclass(frozen=True)
class Efficiencies:
    """Fitted values.

    compute: share of a rate, by compute capability and the rate's field of `Gpu`.
    kinds: share that an operation of the kind reaches of what the other shares allow.
    bandwidth: share of the memory's bandwidth.
    serial: share of the shorter of computing and moving bytes that is not hidden.
    kernel, launch: seconds; launch by phase, on a host of today.
    library: seconds that it takes longer if the operation is not pointwise.
    host: times as long as that a launch takes on the host of a card before Ada.
    products: share of the rate of half precision that wide products reach, by compute capability.
    unhidden: share of the time of a product's bytes, at the data sheet's bandwidth, that is not hidden.
    """

    compute: Mapping[tuple[int, int], Mapping[str, float]]
    kinds: Mapping[str, float]
    bandwidth: float
    kernel: float
    launch: Mapping[Phase, float]
    serial: float = 0.0
    library: float = 0.0
    host: float = 1.0
    products: Mapping[tuple[int, int], float] = field(default_factory=dict[tuple[int, int], float])
    unhidden: float = 0.0

    def of_products(self, gpu: Gpu, rate: str) -> float | None:
        """Return the share of a rate that wide products were measured to reach; None if it is only fitted."""
        is_fitted = gpu.capability not in self.products and rate in self.compute.get(gpu.capability, {})
        if rate not in HALVES or is_fitted:
            return None
        return self.products.get(gpu.capability) or product_share(gpu, rate)

    def of_rate(self, gpu: Gpu, rate: str) -> float:
        """Return the share of a rate: fitted to rows of the GPU's capability, else that of measured products,
        else of the nearest capability that has it.
        """
        capability = gpu.capability
        if rate in self.compute.get(capability, {}):
            return self.compute[capability][rate]
        if (measured := product_share(gpu, rate)) is not None:
            return measured
        # Increasing: the last of the earlier ones is the nearest.
        having = [one for one in sorted(self.compute) if rate in self.compute[one]]
        earlier = [one for one in having if one <= capability]
        return self.compute[earlier[-1] if earlier else having[0]][rate]

    def launch_seconds(self, phase: Phase, kind: str, capability: tuple[int, int]) -> float:
        """Return the seconds that the thread takes to launch an operation of a kind."""
        library = self.library if kind != "pointwise" and phase != Phase.UPDATE else 0.0
        return (self.launch[phase] + library) * (self.host if capability < ADA else 1.0)


@cache
def efficiencies() -> Efficiencies:
    """Return the values of efficiencies.yaml."""
    return efficiencies_of(yaml.safe_load(TABLE.read_text(encoding="utf-8")))


def efficiencies_of(document: Mapping[str, Mapping[str, float]]) -> Efficiencies:
    """Return the values of a document like efficiencies.yaml: names like `compute 8.0 float32`."""
    compute: dict[tuple[int, int], dict[str, float]] = {}
    for name, share in document["compute"].items():
        capability, rate = name.split()
        compute.setdefault(_capability(capability), {})[rate] = share
    return Efficiencies(
        compute,
        document["kinds"],
        launch={Phase[name.upper()]: seconds for name, seconds in document["launch"].items()},
        products={_capability(name): share for name, share in document.get("products", {}).items()},
        **document["seconds"],
    )


def _capability(name: str) -> tuple[int, int]:
    major, minor = name.split(".")
    return int(major), int(minor)
