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


def page(document: Mapping[str, Any], title: str) -> str:
    """HTML that asks nobody for anything. document: of `facts`, and what else the page shows."""
    parts = {
        name: (ASSETS / name).read_text(encoding="utf-8")
        for name in ("page.css", "page.js", "echarts.min.js")
    }
    return Template((ASSETS / "page.html").read_text(encoding="utf-8")).substitute(
        title=escape(title),
        style=parts["page.css"],
        library=parts["echarts.min.js"],
        code=parts["page.js"],
        data=_packed(document),
    )


def _packed(document: Mapping[str, Any]) -> str:
    """A fifth of the bytes, and nothing that could end the element it stands in."""
    text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    return b64encode(gzip.compress(text.encode(), mtime=0)).decode()
