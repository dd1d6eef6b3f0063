"""Rows of an offloading program that say in which windows operations run: (10)."""

from __future__ import annotations

from .columns import OffloadColumns


class FirstRunRows:
    """Writer of rows (10), which program.py explains."""

    def __init__(self, columns: OffloadColumns) -> None:
        model, turn = columns.model, columns.turn
        for ways in columns.way:
            if ways:
                model.row([(column, 1.0) for column in ways.values()], lower=1.0, upper=1.0)
        if all(map(turn.known, range(len(turn.of)))):
            return
        for s in columns.windows:
            for operation, column in {*columns.recomputed[s].items(), *columns.again[s].items()}:
                columns.at_least(columns.before(operation, s), (0.0, [(column, 1.0)]))
        for operation, leading in enumerate(columns.facts.predecessors):
            for other in leading:
                for s in range(turn.of[operation][0] + 1, turn.of[other][-1] + 1):
                    columns.at_least(columns.before(other, s), columns.before(operation, s))
