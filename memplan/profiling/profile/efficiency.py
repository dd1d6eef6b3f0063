"""Shares of a GPU's rates that operations reach, and what a launch takes: fitted to published measurements.

    seconds on the device = max(FLOPs / (compute · rate), bytes / (bandwidth · data sheet's)) / kind + kernel
    seconds of the thread = launch

The values are in efficiencies.yaml, which benchmarks/published_fit.py writes: fitted to the half of the rows
of benchmarks/published.yaml that is for fitting, and judged on the other half
(benchmarks/results/published.md). `compute` is by compute capability and rate, `kind` by kind of operation.
A capability without rows of its own has the values of the nearest earlier one with that rate, or of the first
later one. `kernel` is what a kernel takes at least: small operations fill no GPU. `launch` is the time of
Python, PyTorch's dispatcher and CUDA's driver for an operation, by phase, on the hosts of those rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from ...graphs.graph import Phase

TABLE = Path(__file__).parent / "efficiencies.yaml"


@dataclass(frozen=True)
class Efficiencies:
    """Fitted values.

    compute: share of a rate, by compute capability and the rate's field of `Gpu`.
    kinds: share that an operation of the kind reaches of what the other shares allow.
    bandwidth: share of the memory's bandwidth.
    kernel, launch: seconds; launch by phase.
    """

    compute: Mapping[tuple[int, int], Mapping[str, float]]
    kinds: Mapping[str, float]
    bandwidth: float
    kernel: float
    launch: Mapping[Phase, float]

    def of_rate(self, capability: tuple[int, int], rate: str) -> float:
        """Return the share of a rate: of this capability, or of the nearest one that has it."""
        # Increasing: the last of the earlier ones is the nearest.
        having = [one for one in sorted(self.compute) if rate in self.compute[one]]
        earlier = [one for one in having if one <= capability]
        return self.compute[earlier[-1] if earlier else having[0]][rate]


@cache
def efficiencies() -> Efficiencies:
    """Return the values of efficiencies.yaml."""
    return efficiencies_of(yaml.safe_load(TABLE.read_text(encoding="utf-8")))


def efficiencies_of(document: Mapping[str, Mapping[str, float]]) -> Efficiencies:
    """Return the values of a document like efficiencies.yaml: names like `compute 8.0 float32`."""
    compute: dict[tuple[int, int], dict[str, float]] = {}
    for name, share in document["compute"].items():
        capability, rate = name.split()
        major, _, minor = capability.partition(".")
        compute.setdefault((int(major), int(minor)), {})[rate] = share
    return Efficiencies(
        compute,
        document["kinds"],
        document["seconds"]["bandwidth"],
        document["seconds"]["kernel"],
        {Phase[name.upper()]: seconds for name, seconds in document["launch"].items()},
    )
