"""The devices of this machine, and the one that a name means."""

from __future__ import annotations

import os

import torch

from ...graphs.errors import InputError
from .cpu import Cpu
from .cuda import Cuda
from .device import Device


def device_of(name: str | torch.device | Device) -> Device:
    if isinstance(name, Device):
        return name
    device = torch.device(name)
    return Cuda(device) if device.type == "cuda" else Cpu(device)


def best_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def check_device(device: str) -> None:
    """Raise InputError if the device is not here."""
    try:
        wanted = torch.device(device)
    except RuntimeError:
        wanted = None
    if wanted is None or wanted.type not in ("cpu", "cuda"):
        raise InputError(f"device {device!r} is neither cpu nor cuda")
    if wanted.type == "cuda" and not torch.cuda.is_available():
        raise InputError("PyTorch finds no CUDA device here: use --device cpu, or estimate for a GPU by name")
    if wanted.type == "cuda" and (wanted.index or 0) >= torch.cuda.device_count():
        raise InputError(f"there is no {device}: PyTorch finds {torch.cuda.device_count()} CUDA device(s)")


def use_device_of_rank(device: str) -> torch.device:
    """Make a device the current one of a process of torchrun: of GPUs, that of its local rank. Return it.

    Raises InputError if the device is not here.
    """
    check_device(device)
    where = torch.device(device)
    if where.type == "cuda":
        where = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        check_device(str(where))
        torch.cuda.set_device(where)
    return where
