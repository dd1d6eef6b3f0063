"""Colours of the page and the picture, the same on light and dark ground."""

from __future__ import annotations

KIND = ("#7b8794", "#3b6ea5", "#8fb8de", "#2a9d8f", "#8cb369", "#f4a259", "#9d6b9e", "#b8b2a7")
"""By Kind; the last for workspaces."""
PHASE = ("#5b8fc7", "#2a9d8f", "#e9a94b", "#9d6b9e")
"""By Phase."""
AGAIN, COPY = "#d1495b", "#3f9c6b"
COLOURS = {"kind": KIND, "phase": PHASE, "again": AGAIN, "copy": COPY}
