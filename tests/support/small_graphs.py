"""Small graphs with all that a solver without transfers may meet, for tests against exhaustive searches."""

from __future__ import annotations

from random import Random

from hypothesis import strategies as st
from memplan.graphs.draft import Draft
from memplan.graphs.graph import Graph, Kind, Mode


def small_graphs() -> st.SearchStrategy[Graph]:
    return st.integers(0, 10**9).map(lambda seed: small_graph(Random(seed)))


def small_graph(random: Random) -> Graph:
    """Up to seven operations: several outputs, contributions, workspaces, changes in place, modes."""
    draft = Draft("small")
    resident = [draft.tensor("batch", random.randint(0, 2), Kind.INPUT)]
    resident.append(draft.tensor("w", random.randint(0, 2), Kind.PARAMETER))
    ready: list[int] = []
    sums: list[tuple[int, int]] = []  # a tensor with contributions to come, how many
    made: list[int] = []
    count = random.randint(2, 7)
    for k in range(count):
        reads = random.sample(ready, min(len(ready), random.randint(0, 2)))
        if random.random() < 0.3:
            reads.append(random.choice(resident))
        writes: list[int] = []
        if sums and random.random() < 0.8:
            tensor, left = sums.pop(0)
            writes.append(tensor)
            (sums.append((tensor, left - 1)) if left > 1 else ready.append(tensor))
        for output in range(random.choice((0, 1, 1, 2)) if writes else random.choice((1, 1, 2))):
            tensor = draft.tensor(f"t{k}.{output}", random.randint(0, 4))
            made.append(tensor)
            writes.append(tensor)
            (sums.append((tensor, random.randint(1, 2))) if random.random() < 0.3 else ready.append(tensor))
        mutable = [x for x in ready if x not in reads and x not in writes] + [resident[1]]
        mutates = [random.choice(mutable)] if random.random() < 0.1 else []
        ways: tuple[Mode, ...] = ()
        if len(writes) > 1 and random.random() < 0.4:
            ways = (Mode("short", random.randint(1, 4), random.randint(0, 1), tuple(writes[:1])),)
        draft.operation(
            f"o{k}",
            time=random.randint(0, 4),
            workspace=random.choice((0, 0, 1, 3)),
            reads=reads,
            writes=writes,
            mutates=[x for x in mutates if x not in reads],
            recompute=random.random() < 0.9,
            modes=ways,
        )
    return draft.graph(random.sample(made, random.randint(0, min(2, len(made)))))
