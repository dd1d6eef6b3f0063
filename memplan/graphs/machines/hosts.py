"""The host that a GPU is assumed to be in, and how fast its processor updates weights.

Two rules, of the processor's cores and its memory's bandwidth; bytes of float32 weights per second by AdamW:

    one tensor after the other   ONE_BY_ONE for each core, up to MOST_ONE_BY_ONE: each of its operations walks
                                 over all the bytes, which more cores hardly speed up
    by the fused kernel          FUSED for each core, up to BANDWIDTH_SHARE of the bandwidth / FUSED_PASSES

They give back what they are made from to 4 %:

    Intel i3-10105F, 4 cores        1.1 GB/s one by one          X. Zhao's thesis (2024), table 4.2
    16 cores of an H200's host      2.7 one by one, 28.2 fused   benchmarks/results/gpu.md
    two Xeon Platinum 8168 with     2.9 one by one, 18.2 fused   ZeRO-Offload (USENIX ATC 2021), table 4, with
    256 GB/s, a DGX-2                                            its own fused kernel (recalled)

For another host expect a factor of two; `plan machine` measures yours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ..errors import InputError
from ..machine import Updates
from ..units import FEW_BYTES, bare_number, check_rate_unit, parse_bytes, parse_rate

ONE_BY_ONE, MOST_ONE_BY_ONE = 0.275e9, 2.8e9
FUSED, BANDWIDTH_SHARE = 1.76e9, 0.5
FUSED_PASSES = 7
"""Reads weight, gradient and two states, writes weight and states."""


@dataclass(frozen=True)
class Host:
    """A host. capacity: bytes, None if unknown. bandwidth: of its memory, bytes/s."""

    capacity: int | None
    cores: int
    bandwidth: float

    def updates(self, device: float) -> Updates:
        """Return the speeds of updates. device: on the device, bytes of weights per second."""
        fused = min(FUSED * self.cores, BANDWIDTH_SHARE * self.bandwidth / FUSED_PASSES)
        return Updates(device, min(ONE_BY_ONE * self.cores, MOST_ONE_BY_ONE), None, fused)

    def __str__(self) -> str:
        return f"{self.cores} cores with {self.bandwidth / 1e9:.0f} GB/s"


DESKTOP = Host(None, 8, 60e9)
"""Eight cores, two channels of DDR4-3200 to DDR5-5600: what a GeForce card is assumed to be in."""
SERVER = Host(None, 16, 150e9)
"""The share of one GPU in a server of eight: what a data-centre card is assumed to be in."""

_CORES = re.compile(r"\s*(\d{1,4})\s*cores?\s*")


def parse_host(text: str, assumed: Host) -> Host:
    """Return the host of '64GB', or of '64GB,16cores,80GB/s'. Raises InputError.

    assumed: cores and bandwidth, if the text has none.
    """
    first, *more = text.split(",")
    bare = bare_number(first)
    if bare is not None and bare < FEW_BYTES:
        raise InputError(f"host {first!r}: without a unit it is bytes: write {bare:g}GB")
    host = replace(assumed, capacity=parse_bytes(first))
    for part in more:
        if match := _CORES.fullmatch(part):
            host = replace(host, cores=int(match[1]))
        elif part.strip().endswith("/s"):
            check_rate_unit(part.strip())
            host = replace(host, bandwidth=parse_rate(part.strip()))
        else:
            raise InputError(f"{part.strip()!r} is neither cores nor a bandwidth: write 64GB,16cores,80GB/s")
    if not (host.capacity and host.cores):
        raise InputError(f"{text!r} is no host: write its memory, like 64GB, or 64GB,16cores,80GB/s")
    return host
