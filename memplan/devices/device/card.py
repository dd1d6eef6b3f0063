"""The card, its driver, its libraries and PyTorch's flags: what kernels and times on a GPU depend on."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

_QUERY_SECONDS = 10.0
"""Seconds for nvidia-smi, which takes two or three if no other process uses the driver."""


def surroundings(device: torch.device) -> dict[str, Any]:
    """Return the surroundings of a measurement on a CUDA device, for `source.card` of a graph.

    The driver's version is left out if nvidia-smi does not say it.
    """
    driver, cudnn = _driver(unique_name(device)), torch.backends.cudnn
    return {
        "name": torch.cuda.get_device_name(device),
        **({} if driver is None else {"driver": driver}),
        "cuda": torch.version.cuda,
        "cudnn": cudnn.version(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "cudnn_allow_tf32": cudnn.allow_tf32,
        "cudnn_benchmark": cudnn.benchmark,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def clock_rate(device: torch.device) -> int | None:
    """Return the clock of the multiprocessors now, in Hz; None if nvidia-smi does not say."""
    said = _asked(unique_name(device), "clocks.sm")
    return 10**6 * int(said) if said is not None and said.isdigit() else None


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return what differs between two surroundings, in words; None if nothing does that both name."""
    names = [name for name in then if name in now and then[name] != now[name]]
    return ", ".join(f"{name} {then[name]} (here {now[name]})" for name in names) or None


def unique_name(device: torch.device) -> str:
    """Return the card's name for nvidia-smi, which counts cards that this process may not see."""
    properties: Any = torch.cuda.get_device_properties(device)
    return f"GPU-{properties.uuid}"


@cache
def _driver(uuid: str) -> str | None:
    return _asked(uuid, "driver_version")


def _asked(uuid: str, field: str) -> str | None:
    """Ask nvidia-smi about one card. Containers may lack it, and it knows parts of cards by other names."""
    command = ["nvidia-smi", f"--id={uuid}", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_QUERY_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = done.stdout.strip()
    return said if done.returncode == 0 and said else None
