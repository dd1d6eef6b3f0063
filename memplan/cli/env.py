"""`plan env`: versions and machine, for reports of faults."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import click
from memplan.version import __version__

from ..report.origin import this_machine
from .help import PlanCommand
from .options import output_options
from .printing.output import Output, Row, labelled

_PACKAGES = (
    *("numpy", "numba", "llvmlite", "joblib", "click", "rich", "torch", "transformers", "accelerate"),
    *("peft", "trl", "onnx", "highspy", "ortools", "gurobipy", "dask", "ray"),
)
"""Packages on which results or faults may depend: what memplan runs on, models, solvers, clusters."""


@click.command(cls=PlanCommand)
@output_options
def env(output: Output) -> None:
    """Show the versions of memplan, Python, PyTorch, CUDA and solvers, and this machine: for bug reports.

    \b
    plan env
    plan env --json
    """
    packages = {name: _version(name) for name in _PACKAGES}
    document: dict[str, Any] = {
        "memplan": __version__,
        "python": sys.version.split()[0],
        "machine": this_machine(),
        "packages": packages,
        "torch": _torch() if packages["torch"] else None,
    }
    there = [f"{name} {number}" for name, number in packages.items() if number]
    missing = [name for name, number in packages.items() if not number]
    found: dict[str, Any] = document["torch"] or {}
    rows: list[Row] = [
        ("memplan", __version__),
        ("python", document["python"]),
        ("machine", document["machine"]),
        ("packages", ", ".join(there)),
        ("not installed", ", ".join(missing) or "nothing"),
        *((name, str(value)) for name, value in found.items()),
    ]
    output.result(document, labelled(rows))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _torch() -> dict[str, Any]:
    """Return what PyTorch reports of CUDA and its devices."""
    import torch

    found: dict[str, Any] = {
        "cuda": torch.version.cuda or "not in this PyTorch",
        "threads": torch.get_num_threads(),
    }
    if torch.version.cuda is not None and torch.cuda.is_available():
        found["cudnn"] = torch.backends.cudnn.version()
        found["gpus"] = ", ".join(map(torch.cuda.get_device_name, range(torch.cuda.device_count())))
    else:
        found["gpus"] = "none that PyTorch can use"
    return found
