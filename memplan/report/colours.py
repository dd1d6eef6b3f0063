"""Colours of the page and the picture, the same on light and dark ground, and apart to the colour-blind."""

from __future__ import annotations

KIND = ("#7b8794", "#3b6ea5", "#8fb8de", "#0f7050", "#8cb369", "#ee8c3a", "#8a4fc0", "#c4bdb0")
"""Colours by Kind; the last is for workspaces."""
PHASE = ("#5b8fc7", "#2a9d8f", "#e9a94b", "#9d6b9e")
"""Colours by Phase."""
RECOMPUTED, COPY = "#d1495b", "#4a6fe3"
COLOURS = {"kind": KIND, "phase": PHASE, "recomputed": RECOMPUTED, "copy": COPY}
