"""Small chains in which only weights have bytes to move: activations are there as workspace, which cannot."""

from __future__ import annotations

from random import Random

from memplan.graphs.draft import Draft
from memplan.graphs.graph import Graph, Kind, Phase


def weights_only(random: Random, layers: int, *, frozen: float = 0.0, tied: bool = False) -> Graph:
    """Whole seconds and bytes. frozen: the share of weights that nothing changes. tied: the last layer reads
    the first one's weight, which is updated with the first layer."""
    draft = Draft(f"weights-only-{layers}")
    x = [draft.tensor("x0", 0, Kind.INPUT)]
    weights = [draft.tensor(f"w{i}", random.randint(1, 6), Kind.PARAMETER) for i in range(1, layers + 1)]
    if tied:
        weights[-1] = weights[0]
    kept = 0
    rooms: list[int] = []
    for i, weight in enumerate(weights, start=1):
        x.append(draft.tensor(f"x{i}", 0))
        kept += random.randint(0, 2)
        rooms.append(kept)
        time = random.randint(0, 4)
        draft.operation(f"F{i}", time=time, workspace=kept, reads=[x[-2], weight], writes=[x[-1]])
    gradient = draft.tensor(f"g{layers}", 0, Kind.GRADIENT)
    draft.operation("loss", time=0, reads=[x[-1]], writes=[gradient], phase=Phase.LOSS, recompute=False)
    for i in range(layers, 0, -1):
        weight = weights[i - 1]
        learns = weights.index(weight) == i - 1 and random.random() >= frozen
        below = draft.tensor(f"g{i - 1}", 0, Kind.GRADIENT)
        made = (
            [draft.tensor(f"dw{i}", draft.size_of(weight), Kind.PARAMETER_GRADIENT)]
            if learns
            else list[int]()
        )
        draft.operation(
            f"B{i}",
            time=random.randint(1, 6),
            workspace=rooms[i - 1],
            reads=[gradient, weight, x[i - 1]],
            writes=[*made, below],
            phase=Phase.BACKWARD,
        )
        if learns:
            draft.operation(
                f"U{i}", time=0, reads=made, mutates=[weight], phase=Phase.UPDATE, recompute=False
            )
        gradient = below
    return draft.graph()
