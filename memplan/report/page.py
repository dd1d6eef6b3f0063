"""The page as one file that contains its data, its style, its code and the plotting library."""

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

CODE = ("data.js", "shapes.js", "chart.js", "tooltip.js", "tables.js", "page.js")
"""Scripts in their order on the page, in one scope. While they load each uses only earlier ones."""


def page(document: Mapping[str, Any], title: str) -> str:
    """Return the self-contained HTML. document: the data of `facts`, and what else the page shows."""
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
    """Return the data compressed, a fifth of the bytes, without characters that could end its element."""
    text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    return b64encode(gzip.compress(text.encode(), mtime=0)).decode()  # mtime=0: equal data give equal pages
