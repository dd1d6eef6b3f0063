"""Small training graphs whose largest operations also run in pieces, for tests of the choice among splits."""

from __future__ import annotations

from random import Random

from memplan.graphs.draft import Draft
from memplan.graphs.graph import Graph, Kind, Phase

PIECES = (1, 2, 4, 8)


def split_graphs(random: Random, layers: int = 2) -> list[Graph]:
    """Return a whole graph and its splits: a head, its loss and their backward run in more and more pieces.

    Pieces have random times, so that more of them may be faster than fewer.
    """
    sizes = [random.randint(1, 4) for _ in range(layers + 1)]
    times = [random.randint(1, 4) for _ in range(2 * layers)]
    logits, head = 8 * random.randint(1, 3), [random.randint(1, 4) for _ in range(3)]
    slower = {pieces: random.choice((0.8, 1.0, 1.2, 1.5, 2.0)) for pieces in PIECES}
    return [_graph(pieces, sizes, times, logits, [one * slower[pieces] for one in head]) for pieces in PIECES]


def _graph(pieces: int, sizes: list[int], times: list[int], logits: int, head: list[float]) -> Graph:
    draft, layers = Draft("split"), len(sizes) - 1
    x = [draft.tensor("x0", sizes[0], Kind.INPUT)]
    for k in range(layers):
        x.append(draft.tensor(f"x{k + 1}", sizes[k + 1]))
        draft.operation(f"F{k}", time=times[k], reads=[x[k]], writes=[x[k + 1]])
    loss = draft.tensor("loss", 1)
    gradient = draft.tensor(f"g{layers}", sizes[-1], Kind.GRADIENT)
    if pieces == 1:
        scores, above = draft.tensor("scores", logits), draft.tensor("above", logits, Kind.GRADIENT)
        draft.operation("head", time=head[0], reads=[x[-1]], writes=[scores])
        draft.operation("loss", time=head[1], reads=[scores], writes=[loss, above], phase=Phase.LOSS)
        draft.operation("below", time=head[2], reads=[above], writes=[gradient], phase=Phase.BACKWARD)
    else:
        draft.operation(
            f"loss in {pieces} pieces",
            time=sum(head),
            workspace=2 * logits // pieces,
            reads=[x[-1]],
            writes=[loss, gradient],
            phase=Phase.LOSS,
        )
    for k in reversed(range(layers)):
        below = draft.tensor(f"g{k}", sizes[k], Kind.GRADIENT)
        draft.operation(
            f"B{k}",
            time=times[layers + k],
            reads=[gradient, x[k]],
            writes=[below],
            phase=Phase.BACKWARD,
        )
        gradient = below
    return draft.graph([loss, gradient])
