"""Rows of an offloading program that say in which windows operations run: (10)."""

from __future__ import annotations

from ...milp.linear import column_sum
from .columns import OffloadColumns


class FirstRunRows:
    """Writer of rows (10), which program.py explains."""

    def __init__(self, columns: OffloadColumns) -> None:
        model, iteration = columns.model, columns.iteration
        for variants in columns.variant:
            if variants:
                model.add(column_sum(*variants.values()).equals(1.0))
        if all(map(iteration.known, range(len(iteration.of)))):
            return
        for s in columns.windows:
            for operation, column in {*columns.recomputed[s].items(), *columns.reruns[s].items()}:
                columns.require(columns.before(operation, s) >= column_sum(column))
        for operation, leading in enumerate(columns.facts.predecessors):
            for other in leading:
                for s in range(iteration.of[operation][0] + 1, iteration.of[other][-1] + 1):
                    columns.require(columns.before(other, s) >= columns.before(operation, s))
