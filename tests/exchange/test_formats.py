"""Formats that are read, formats that are written."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from memplan.cli import export as export_module
from memplan.cli import import_ as import_module
from memplan.exchange.formats import FORMATS, Format, Options, read
from memplan.graphs.errors import InputError


@pytest.fixture
def write_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A format without `read`, known to both commands while the test lasts."""
    name, commands = (
        "one-way",
        [importlib.import_module(f"memplan.cli.{each}") for each in ("import_", "export")],
    )
    monkeypatch.setitem(FORMATS, name, Format("nothing reads it", reads=False, writes=True))
    for command in commands:
        importlib.reload(command)
    yield name
    monkeypatch.undo()
    for command in commands:
        importlib.reload(command)


def choices(command: click.Command) -> list[str]:
    [parameter] = [one for one in command.params if one.name == "format_name"]
    assert isinstance(parameter.type, click.Choice)
    return [str(choice) for choice in parameter.type.choices]


def test_import_offers_only_what_it_can_read(write_only: str) -> None:
    assert write_only not in choices(import_module.import_)
    assert write_only in choices(export_module.export)


def test_a_write_only_format_is_not_read(write_only: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="files in the format one-way are written, not read"):
        read(write_only, tmp_path / "file", Options())
