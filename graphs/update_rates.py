"""How fast an optimizer updates weights, from how fast AdamW does: what they read and write bounds both."""

from __future__ import annotations

from collections.abc import Mapping

from .machine import Machine, Updates

ACCESSES: Mapping[str, int] = {"adamw": 7, "sgd": 3, "sgd-momentum": 5}
"""Times that a weight's bytes are read or written: the weight twice, each state twice, the gradient once."""


def update_rates(machine: Machine, optimizer: str) -> Updates:
    """Bytes of weights per second on `machine`; None where AdamW's rate is unknown."""
    faster = ACCESSES["adamw"] / ACCESSES[optimizer]
    device, host = machine.updates.device, machine.updates.host
    return Updates(device and device * faster, host and host * faster)
