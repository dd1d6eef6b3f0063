"""Kinds of documents: a file of another kind than expected is refused by what it is, with the way on."""

from __future__ import annotations

from typing import Any

from .fields import Row

_KINDS = {
    "plan-graph": "a graph: `plan solve` makes a schedule of it",
    "plan-schedule": "a schedule: its graph is expected here",
    "plan-certificate": "a certificate: `plan verify SCHEDULE --certificate` takes it",
}
"""Formats without their version -> what such a file is, and what to do with it."""
_BY_FIELD = {
    "_class_name": "a configuration of diffusers: write a model file (docs/how-to/diffusion-lora.md)",
    "model_type": "a configuration of Hugging Face: `plan size` takes it",
    "architectures": "a configuration of Hugging Face: `plan size` takes it",
    "links": "a machine: --machine takes it",
    "device": "a machine: --machine takes it",
    "baseline_peak": "output of --json, not a file that -o writes",
}
"""Fields of documents that name no format -> the same."""


def kind_of(row: Row) -> str | None:
    """Return what a document is and what to do with it, if that is known."""
    named: Any = row.get("format")
    if named is None:
        return next((what for field, what in _BY_FIELD.items() if field in row), None)
    return _KINDS.get(str(named).partition("/")[0])


def check_format(row: Row, *wanted: str) -> None:
    """Raise ValueError if a document is not of one of the formats `wanted`, versions of one kind; says what
    it is, if that is known."""
    named: Any = row.get("format")
    if named in wanted:
        return
    is_other_version = str(named).partition("/")[0] == wanted[0].partition("/")[0]
    what = None if is_other_version else kind_of(row)
    formats = " or ".join(map(repr, wanted))
    raise ValueError(f"format is {named!r}, not {formats}{f'; it is {what}' if what else ''}")
