"""Graphs made by seed: chains, U-Nets and layered random DAGs, for tests and benchmarks.

The same arguments give the same graph on every machine.
"""

from __future__ import annotations

from random import Random

from .draft import Draft
from .graph import Graph, Kind, Mode, Phase

MiB = 2**20


def chain(
    blocks: int, *, seed: int = 0, uniform: bool = False, parameters: bool = True, fast_forward: bool = True
) -> Graph:
    """Return the training graph of a chain of blocks: F_1 … F_L, the loss, B_L … B_1.

    F_i reads x_{i-1} and produces x_i and a_i (saved for backward); B_i reads g_i, a_i, x_{i-1} and produces
    g_{i-1} and the parameter's gradient. uniform: all blocks are equal, with times 1 and 2.
    fast_forward: F_i has a mode that produces x_i alone.
    """
    random = Random(seed)

    def size(high: int) -> int:
        return MiB if uniform else random.randint(1, high) * MiB // 8

    def time(mean: float) -> float:
        return mean if uniform else round(random.uniform(0.2, 2.0) * mean, 3)

    draft = Draft(f"chain-{blocks}" if uniform else f"chain-{blocks}-seed{seed}")
    x = [draft.tensor("x0", size(16), Kind.INPUT)]
    weights: list[int] = []
    saved: list[int] = []
    for i in range(1, blocks + 1):
        layer = f"block.{i}"
        if parameters:
            weights.append(draft.tensor(f"w{i}", size(8), Kind.PARAMETER, layer))
        x.append(draft.tensor(f"x{i}", size(16), layer=layer))
        saved.append(draft.tensor(f"a{i}", size(48), layer=layer))
        seconds, workspace = time(1.0), 0 if uniform else size(4)
        quick = Mode("fast-forward", seconds, workspace, (x[i],))
        draft.operation(
            f"F{i}",
            time=seconds,
            workspace=workspace,
            reads=[x[i - 1], *weights[i - 1 : i]],  # empty without parameters
            writes=[x[i], saved[-1]],
            layer=layer,
            modes=(quick,) if fast_forward else (),
        )
    loss = draft.tensor("loss", 4)
    gradient = draft.tensor(f"g{blocks}", size(16), Kind.GRADIENT)
    draft.operation(
        "loss", time=time(0.5), reads=[x[-1]], writes=[loss, gradient], phase=Phase.LOSS, recompute=False
    )
    results = [loss]
    for i in range(blocks, 0, -1):
        layer = f"block.{i}"
        writes: list[int] = []
        reads = [gradient, saved[i - 1], x[i - 1]]
        if i > 1:
            gradient = draft.tensor(f"g{i - 1}", size(16), Kind.GRADIENT, layer)
            writes.append(gradient)
        if parameters:
            reads.append(weights[i - 1])
            results.append(
                draft.tensor(f"dw{i}", draft.size_of(weights[i - 1]), Kind.PARAMETER_GRADIENT, layer)
            )
            writes.append(results[-1])
        draft.operation(
            f"B{i}",
            time=time(2.0),
            workspace=0 if uniform else size(4),
            reads=reads,
            writes=writes,
            phase=Phase.BACKWARD,
            layer=layer,
        )
    return draft.graph(results)


def unet(depth: int, *, seed: int = 0) -> Graph:
    """Return the training graph of a U-Net: `depth` levels down and up, each level's output skipping to its
    way up.

    Sizes halve from level to level. A skipped tensor has two readers, so its gradient is the sum of two
    contributions.
    """
    random = Random(seed)
    draft = Draft(f"unet-{depth}-seed{seed}")
    sizes = [max(1, 2 ** (depth - level)) * MiB for level in range(depth + 1)]
    x = draft.tensor("x0", sizes[0], Kind.INPUT)
    forward: list[tuple[str, list[int], int, float]] = []

    def run(name: str, inputs: list[int], size: int) -> int:
        made = draft.tensor(name, size)
        seconds = round(random.uniform(0.5, 1.5) * size / MiB, 3)
        draft.operation(f"F.{name}", time=seconds, reads=inputs, writes=[made], workspace=size // 8)
        forward.append((name, inputs, made, seconds))
        return made

    skips: list[int] = []
    for level in range(depth):
        skips.append(run(f"down{level}", [x], sizes[level]))
        x = run(f"pool{level}", [skips[-1]], sizes[level + 1])
    x = run("bottom", [x], sizes[depth])
    for level in reversed(range(depth)):
        up = run(f"up{level}", [x], sizes[level])
        x = run(f"merge{level}", [up, skips[level]], sizes[level])
    loss = draft.tensor("loss", 4)
    draft.operation("loss", time=0.1, reads=[x], writes=[loss], phase=Phase.LOSS, recompute=False)
    _backward(draft, forward, x, loss)
    return draft.graph([loss])


def layered(operations: int, *, seed: int = 0, width: int = 10, inputs: int = 3) -> Graph:
    """Return a random DAG in layers of `width` operations, each reading up to `inputs` earlier tensors.

    Most edges come from the layer before, some from any layer: no loss, and nothing need stay.
    """
    random = Random(seed)
    draft = Draft(f"layered-{operations}-seed{seed}")
    for i in range(operations):
        first = i // width * width
        near = range(max(0, first - width), first)
        reads = {random.choice(near) for _ in range(random.randint(1, inputs))} if first else set[int]()
        if first and random.random() < 0.2:
            reads.add(random.randrange(first))
        made = draft.tensor(f"t{i}", random.randint(1, 100) * 1000)
        draft.operation(
            f"n{i}", time=random.randint(1, 100) / 100, reads=sorted(reads), writes=[made], workspace=0
        )
    return draft.graph()


def _backward(draft: Draft, forward: list[tuple[str, list[int], int, float]], last: int, loss: int) -> None:
    """Append the backward operations of `forward`, each twice as long, from `last` to the first."""
    gradient = {last: draft.tensor("g.last", draft.size_of(last), Kind.GRADIENT)}
    draft.operation("B.loss", time=0.1, reads=[loss, last], writes=[gradient[last]], phase=Phase.BACKWARD)
    made = {output for _name, _inputs, output, _seconds in forward}
    for name, inputs, output, seconds in reversed(forward):
        writes: list[int] = []
        for tensor in inputs:
            # The input x0 has no producer, and so no gradient.
            if tensor in made and tensor not in gradient:
                gradient[tensor] = draft.tensor(f"g{tensor}", draft.size_of(tensor), Kind.GRADIENT)
            if tensor in gradient:
                writes.append(gradient[tensor])
        draft.operation(
            f"B.{name}",
            time=2 * seconds,
            reads=[gradient[output], *inputs],
            writes=writes,
            phase=Phase.BACKWARD,
        )
