"""Random training graphs with what real traces have: residuals, masks, norms, dropout, tied weights."""

from __future__ import annotations

from random import Random

from memplan.graphs.draft import Draft
from memplan.graphs.graph import Graph, Kind, Phase


def training(layers: int, seed: int, *, skip: float = 0.0, update: str = "none") -> Graph:
    """`layers` residual layers, each of a few operations, the loss, the backward part in reverse order.

    skip: how likely a layer reads an output of some earlier layer too (then the graph is hardly a chain).
    update: "none", "end" (of the iteration) or "early" (each weight right behind its gradient).
    """
    return _Model(layers, seed, skip, update).graph()


class _Model:
    def __init__(self, layers: int, seed: int, skip: float, update: str) -> None:
        self.random, self.update = Random(seed), update
        self.draft = Draft(f"training-{layers}-seed{seed}-{update}")
        self.tape: list[tuple[str, list[int], list[int], list[int], list[int]]] = []
        self.after: list[tuple[int, int]] = []
        x = self.draft.tensor("batch", self.size(), Kind.INPUT)
        tied = self.weight("tied")
        mask = self.run("mask", reads=[x], differentiable=[]) if self.random.random() < 0.7 else None
        trained = [tied] if self.random.random() < 0.6 else []
        x = self.run("embed", reads=[x, tied], differentiable=[], weights=trained)
        outputs = [x]
        for layer in range(layers):
            y = self.layer(layer, x, mask)
            x = self.run(f"add.{layer}", reads=[x, y], differentiable=[x, y], saves=[])
            if self.random.random() < skip:
                other = self.random.choice(outputs)
                x = self.run(f"skip.{layer}", reads=[x, other], differentiable=[x, other], saves=[])
            outputs.append(x)
        self.last = self.run("head", reads=[x, tied], differentiable=[x], weights=[tied])

    def size(self) -> int:
        return self.random.randint(1, 20) * 64

    def weight(self, name: str) -> int:
        return self.draft.tensor(f"w.{name}", self.size(), Kind.PARAMETER)

    def run(
        self,
        name: str,
        *,
        reads: list[int],
        differentiable: list[int],
        weights: list[int] | None = None,
        saves: list[int] | None = None,
        extra: list[int] | None = None,
        random: bool = False,
        once: bool = False,
    ) -> int:
        """A forward operation; its output. saves: what its backward reads (the inputs by default)."""
        made = self.draft.tensor(name, self.size())
        self.draft.operation(
            f"F.{name}",
            time=self.random.randint(1, 9),
            reads=reads,
            writes=[made, *(extra or [])],
            workspace=self.random.choice([0, 0, 32]),
            random=random,
            recompute=not once,
        )
        if differentiable or weights:
            saved = reads if saves is None else saves
            self.tape.append((name, saved + (extra or []), differentiable, weights or [], [made]))
        return made

    def layer(self, number: int, x: int, mask: int | None) -> int:
        for step in range(self.random.randint(1, 4)):
            name = f"{number}.{step}"
            kind = self.random.choice(["linear", "relu", "norm", "dropout", "masked", "once"])
            if kind == "linear":
                w = self.weight(name)
                x = self.run(f"linear.{name}", reads=[x, w], differentiable=[x], weights=[w])
            elif kind == "relu":
                x = self.run(f"relu.{name}", reads=[x], differentiable=[x], saves=[])
                self.tape[-1][1].append(x)
            elif kind == "norm":
                statistics = self.draft.tensor(f"statistics.{name}", 8)
                x = self.run(f"norm.{name}", reads=[x], differentiable=[x], extra=[statistics])
                if self.random.random() < 0.5:
                    buffer = self.draft.tensor(f"running.{name}", 8, Kind.BUFFER)
                    self.after.append((statistics, buffer))
            elif kind == "dropout":
                noise = self.run(f"noise.{name}", reads=[x], differentiable=[], random=True)
                x = self.run(f"dropout.{name}", reads=[x, noise], differentiable=[x], saves=[noise])
            elif kind == "once":
                x = self.run(f"once.{name}", reads=[x], differentiable=[x], once=True)
            else:
                reads = [x] if mask is None else [x, mask]
                x = self.run(f"masked.{name}", reads=reads, differentiable=[x])
        return x

    def graph(self) -> Graph:
        draft, random = self.draft, self.random
        loss = draft.tensor("loss", 4)
        gradient = {self.last: draft.tensor("g.last", draft.size_of(self.last), Kind.GRADIENT)}
        draft.operation(
            "loss",
            time=1,
            reads=[self.last],
            writes=[loss, gradient[self.last]],
            phase=Phase.LOSS,
            recompute=False,
        )
        constant = draft.tensor("one", 8)
        draft.operation("one", time=1, writes=[constant], phase=Phase.BACKWARD)
        left: dict[int, int] = {}
        for *_rest, weights, _made in self.tape:
            for w in weights:
                left[w] = left.get(w, 0) + 1

        def constants() -> list[int]:
            return [constant] if random.random() < 0.2 else []

        results = [loss]
        for name, saved, differentiable, weights, (made,) in reversed(self.tape):
            for x in [*differentiable, *weights]:
                if x not in gradient:
                    kind = Kind.PARAMETER_GRADIENT if x in weights else Kind.GRADIENT
                    gradient[x] = draft.tensor(f"g.{x}", draft.size_of(x), kind)
            parts = [differentiable, weights] if random.random() < 0.5 else [differentiable + weights]
            for part, inputs in enumerate(parts):
                if inputs:
                    draft.operation(
                        f"B.{name}.{part}",
                        time=random.randint(1, 9),
                        reads=list(dict.fromkeys([gradient[made], *saved, *constants()])),
                        writes=[gradient[x] for x in inputs],
                        phase=Phase.BACKWARD,
                    )
            for w in weights:
                left[w] -= 1
                if not left[w] and self.update == "early":
                    self.step(w, gradient[w])
        for w in left:
            if self.update == "end":
                self.step(w, gradient[w])
            elif self.update == "none":
                results.append(gradient[w])
        for statistics, buffer in self.after:
            draft.operation(
                f"copy.{buffer}",
                time=1,
                reads=[statistics],
                mutates=[buffer],
                phase=Phase.UPDATE,
                recompute=False,
            )
        return draft.graph(results)

    def step(self, weight: int, gradient: int) -> None:
        self.draft.operation(
            f"step.{weight}", time=1, reads=[gradient], mutates=[weight], phase=Phase.UPDATE, recompute=False
        )
