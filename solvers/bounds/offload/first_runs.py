"""Rows of an offloading program that say in which windows operations run: (10)."""

from __future__ import annotations

from ...milp.linear import column_sum
from .columns import OffloadColumns


class FirstRunRows:
    """Writer of rows (10), which program.py explains."""

    def __init__(self, columns: OffloadColumns) -> None:
        model, turn = columns.model, columns.turn
        for variants in columns.variant:
            if variants:
                model.add(column_sum(*variants.values()).equals(1.0))
        if all(map(turn.known, range(len(turn.of)))):
            return
        for s in columns.windows:
            for operation, column in {*columns.recomputed[s].items(), *columns.reruns[s].items()}:
                columns.require(columns.before(operation, s) >= column_sum(column))
        for operation, leading in enumerate(columns.facts.predecessors):
            for other in leading:
                for s in range(turn.of[operation][0] + 1, turn.of[other][-1] + 1):
                    columns.require(columns.before(other, s) >= columns.before(operation, s))
