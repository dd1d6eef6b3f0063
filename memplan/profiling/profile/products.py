"""Rates of matrix products that people measured on GPUs, as shares of the data sheets' rates.

products.csv has them, in 10^12 FLOP/s: the best of square products of 1,024 to 10,240 by `torch.matmul`, and
of several entries for one GPU (`entries`) the median. Source: database.md of
github.com/zzc0721/torch-performance-test-data at 9d82827, without laptops, overclocked cards and cards with
more memory than the vendor's.

Tensor cores of GeForce cards compute twice the rate of float32 if they sum in float32, as PyTorch does, and
reach it all. Those of other cards compute four times that rate or more, and power limits them earlier. So
one share for a compute capability serves only one of the two.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from statistics import fmean

from ...graphs.machines.gpus import Gpu, find_gpu

TABLE = Path(__file__).parent / "products.csv"
HALVED = 3
"""Multiple of float32's rate that tensor cores with halved sums in float32 stay below."""


def product_share(gpu: Gpu, rate: str) -> float | None:
    """Return the share of a rate that measured products reach; None if nobody measured any like it.

    They are those of this GPU, else the mean of GPUs with its capability and its kind of tensor cores.
    rate: the field of `Gpu`.
    """
    table = _shares()
    if rate in table.get(gpu.name, {}):
        return table[gpu.name][rate]
    kin = [one for name, one in table.items() if rate in one and _kind(find_gpu(name)) == _kind(gpu)]
    return fmean(one[rate] for one in kin) if kin else None


def _kind(gpu: Gpu) -> tuple[tuple[int, int], bool]:
    """Return the capability, and whether sums in float32 halve the rate of tensor cores."""
    return gpu.capability, gpu.float16 < HALVED * gpu.float32


@cache
def _shares() -> Mapping[str, Mapping[str, float]]:
    """Return the measured shares, by the GPU's name and the rate."""
    found: dict[str, dict[str, float]] = {}
    with TABLE.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file, skipinitialspace=True):
            name = row.pop("name")
            rates = {rate: getattr(find_gpu(name), rate) for rate in row if rate != "entries"}
            found[name] = {
                rate: float(row[rate]) * 1e12 / sheet for rate, sheet in rates.items() if row[rate] and sheet
            }
    return found
