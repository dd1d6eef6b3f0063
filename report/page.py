"""The page: one file with its data, its style, its code and the plotting library in it."""

from __future__ import annotations

import gzip
import json
from base64 import b64encode
from collections.abc import Mapping
from html import escape
from pathlib import Path
from string import Template
from typing import Any

ASSETS = Path(__file__).parent / "assets"

CODE = ("data.js", "shapes.js", "chart.js", "told.js", "tables.js", "page.js")
"""In the order in which they stand in the page, in one scope: while it is read each uses what stands before
it, later what stands anywhere."""


def page(document: Mapping[str, Any], title: str) -> str:
    """HTML that asks nobody for anything. document: of `facts`, and what else the page shows."""
    return Template(_asset("page.html")).substitute(
        title=escape(title),
        style=_asset("page.css"),
        library=_asset("echarts.min.js"),
        code="\n".join(_asset(name) for name in CODE),
        data=_packed(document),
    )


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _packed(document: Mapping[str, Any]) -> str:
    """A fifth of the bytes, and nothing that could end the element it stands in."""
    text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    return b64encode(gzip.compress(text.encode(), mtime=0)).decode()
