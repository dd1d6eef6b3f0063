"""Graphs of models of equal layers: residuals, dropout, one mask that all layers share."""

from __future__ import annotations

from random import Random

from memplan.graphs.draft import Draft
from memplan.graphs.graph import Graph, Kind, Phase


def transformer(layers: int, *, masked: bool, noise: float = 0.0) -> Graph:
    """Layers of twelve forward operations with two residuals each, dropout, and one mask for all of them."""
    draft, random = Draft(f"transformer-{layers}"), Random(0)
    tape: list[tuple[str, list[int], int]] = []

    def run(name: str, reads: list[int], size: int, draws: bool = False) -> int:
        made = draft.tensor(name, size)
        draft.operation(
            name,
            time=1 + noise * random.random(),
            reads=reads,
            writes=[made],
            layer=name.split("/")[0],
            random=draws,
        )
        tape.append((name, reads, made))
        return made

    batch = draft.tensor("batch", 8, Kind.INPUT)
    mask = run("mask/ones", [batch], 50) if masked else None
    x = run("embed/0", [batch], 100)
    for layer in range(layers):
        for half, wide in (("attention", 300), ("mlp", 400)):
            w = draft.tensor(f"w.{layer}.{half}", 70, Kind.PARAMETER)
            name = f"layer.{layer}/{half}"
            y = run(f"{name}.norm", [x], 100)
            y = run(f"{name}.in", [y, w], wide)
            y = run(f"{name}.act", [y, mask] if mask is not None else [y], wide)
            y = run(f"{name}.out", [y], 100)
            y = run(f"{name}.drop", [y], 100, draws=True)
            x = run(f"{name}.add", [x, y], 100)
    loss = draft.tensor("loss", 4)
    draft.operation("loss", time=1, reads=[x], writes=[loss], phase=Phase.LOSS, recompute=False)
    gradient = {x: draft.tensor("g", 100, Kind.GRADIENT)}
    draft.operation("B.loss", time=1, reads=[loss, x], writes=[gradient[x]], phase=Phase.BACKWARD)
    made = {output for _name, _reads, output in tape} - {mask}
    for name, reads, output in reversed(tape):
        if output not in made:
            continue
        writes: list[int] = []
        for y in reads:
            if y in made:
                gradient.setdefault(y, draft.tensor(f"g.{y}.{name}", draft.size_of(y), Kind.GRADIENT))
                writes.append(gradient[y])
        draft.operation(
            f"B.{name}",
            time=2 + noise * random.random(),
            reads=[gradient[output], *reads],
            writes=writes,
            phase=Phase.BACKWARD,
        )
    return draft.graph([loss])
