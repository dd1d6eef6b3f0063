"""Mutants that can't change any result, each with its reason."""

from __future__ import annotations

EQUIVALENT: dict[tuple[str, str, str, str], str] = {
    (
        "planner/simulator/curves.py",
        "byte_curves",
        "return np.array(walk.rows, np.int64).reshape(-1, len(walk.ledgers)).T",
        "return np.array(walk.rows, np.int64).reshape(-2, len(walk.ledgers)).T",
    ): "numpy takes any negative length of a dimension for the unknown one, not only -1",
    (
        "planner/replay/walk.py",
        "_left_over",
        "continue",
        "break",
    ): "only the rest of a claimed delete can have no bytes left, and it is the last entry of its ledger",
    (
        "planner/replay/clock.py",
        "period",
        "growth, half = np.zeros(queues + 1), np.zeros(queues + 1)",
        "growth, half = (np.zeros(queues + 2), np.zeros(queues + 1))",
    ): "nothing reads the entry after those of the queues and the thread",
}
"""(file, function, line before, line after): why no result can change."""
