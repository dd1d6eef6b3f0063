"""Chains whose minimum time is known in closed form: Revolve's, with sizes such that only checkpoints count.

    x_0 ─F1─▶ x_1 … ─FL─▶ x_L ─loss─▶ g_L ─BL─▶ … ─B1─▶ g_0     B_i reads x_{i-1} and g_i

Every x_i takes one unit, gradients and x_L nothing, a backward one unit of workspace. So with s + 2 units s
checkpoints stay, x_0 among them. The other two units are what F_i reads and writes, or what B_i reads and its
workspace. That is the memory that Revolve has with s checkpoints and a state that is advanced in place. t(L,
s) forward runs compute all x_{i-1} that backward reads; F_L runs once in addition.

Reference: Griewank, Walther, Algorithm 799: Revolve, ACM TOMS 26(1), 2000, doi:10.1145/347837.347846.
"""

from __future__ import annotations

from math import comb

from ..graphs.draft import Draft
from ..graphs.errors import InputError
from ..graphs.graph import Graph, Kind, Phase

UNIT = 2**20
"""Bytes of a checkpoint."""
FORWARD, BACKWARD = 1.0, 2.0
"""Seconds of a forward and of a backward operation."""


def advances(steps: int, checkpoints: int) -> int:
    """Return t(l, s) = r l - C(s + r, r - 1), with r the least for which C(s + r, s) >= l.

    steps: l. checkpoints: s. Raises InputError below 1.
    """
    if steps < 1 or checkpoints < 1:
        raise InputError(f"steps and checkpoints must be 1 or more, not {steps} and {checkpoints}")
    repeats = 0
    while comb(checkpoints + repeats, checkpoints) < steps:
        repeats += 1
    # C(s + r, -1) is 0, which comb refuses.
    return repeats * steps - (comb(checkpoints + repeats, repeats - 1) if repeats else 0)


def least_seconds(steps: int, checkpoints: int) -> float:
    """Return the minimum time of all schedules of `checkpoint_chain(steps)` within `budget(checkpoints)`."""
    return (advances(steps, checkpoints) + 1) * FORWARD + steps * BACKWARD


def budget(checkpoints: int) -> int:
    """Return the bytes that hold this number of checkpoints."""
    return (checkpoints + 2) * UNIT


def checkpoint_chain(steps: int) -> Graph:
    """Return the training of a chain of so many equal steps. Raises InputError below 1."""
    if steps < 1:
        raise InputError(f"steps must be 1 or more, not {steps}")
    draft = Draft(f"checkpoints-{steps}")
    x = [draft.tensor("x0", UNIT, Kind.INPUT)]
    for i in range(1, steps + 1):
        x.append(draft.tensor(f"x{i}", UNIT if i < steps else 0))
        draft.operation(f"F{i}", time=FORWARD, reads=[x[i - 1]], writes=[x[i]])
    gradient = draft.tensor(f"g{steps}", 0, Kind.GRADIENT)
    draft.operation("loss", time=0.0, reads=[x[-1]], writes=[gradient], phase=Phase.LOSS)
    for i in range(steps, 0, -1):
        down = draft.tensor(f"g{i - 1}", 0, Kind.GRADIENT)
        reads = [x[i - 1], gradient]
        draft.operation(
            f"B{i}", time=BACKWARD, reads=reads, writes=[down], workspace=UNIT, phase=Phase.BACKWARD
        )
        gradient = down
    return draft.graph([gradient])
