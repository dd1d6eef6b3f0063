"""All papers, in the page's order."""

from __future__ import annotations

import lohan
import memferry
import stronghold
import thesis_hiremate
import thesis_offmate
import thesis_recompute
import weight_offloading

_MODULES = (
    thesis_recompute, thesis_hiremate, thesis_offmate, weight_offloading, memferry, stronghold, lohan,
)  # fmt: skip
PAPERS = {paper.TITLE: (paper.FIGURES, paper.MISSING) for paper in _MODULES}
FIGURES = {figure.name: figure for figures, _missing in PAPERS.values() for figure in figures}
