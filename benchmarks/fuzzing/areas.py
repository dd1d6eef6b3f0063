"""The areas by name, each imported when it is used, and their shares of the time."""

from __future__ import annotations

from importlib import import_module

from .area import Area

SHARES = {
    "readers": 0.15,
    "imports": 0.05,
    "schedules": 0.15,
    "solvers": 0.4,
    "settings": 0.1,
    "commands": 0.1,
    "partition": 0.05,
}


def area_called(name: str) -> Area:
    return import_module(f".{name}", __package__).AREA
