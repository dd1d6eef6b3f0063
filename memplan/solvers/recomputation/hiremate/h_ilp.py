"""H-ILP: Hiremate with H-Partition, and H-ILP at every level (thesis, 3.3 and 3.4).

The integer program is in h_ilp/model.py, its graph of clusters and values in h_ilp/graph.py, the budgets of a
cluster in h_ilp/level.py, the top in h_ilp/top.py; the framework that puts them together is hiremate.py.
"""

from __future__ import annotations

from dataclasses import asdict

from ...problem import Options, Problem, SolverResult
from . import hiremate
from .hiremate import ClusterSettings as Settings

__all__ = ["NAME", "Settings", "solve"]

NAME = "h-ilp"


def solve(problem: Problem, options: Options) -> SolverResult:
    settings = options.chosen(Settings)
    return hiremate.solve_as(NAME, problem, options, hiremate.Settings(**asdict(settings)))
