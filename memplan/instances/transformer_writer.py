"""Construction of the training graph of a decoder, operation by operation."""

from __future__ import annotations

from collections.abc import Sequence

from ..graphs.draft import Draft
from ..graphs.graph import Graph, Kind, Mode, Phase
from ..graphs.machine import Machine
from .models import Transformer
from .training import Rates, Training
from .transformer_parts import BACKWARD_FLOPS, parts_of

_MASTER_BYTES = 4


class Writer:
    """Builder of a decoder's training graph.

    gradients: weight -> its gradient, in the order in which backward first writes them.
    """

    def __init__(self, model: Transformer, training: Training, rates: Rates) -> None:
        self.model, self.training, self.rates = model, training, rates
        self.draft = Draft(f"{model.name}-b{training.batch}-s{training.sequence}")
        self.gradients: dict[int, int] = {}
        self.names: dict[int, str] = {}
        self.parts = parts_of(
            model,
            training.batch,
            training.sequence,
            training.granularity,
            keep_scores=training.keep_scores,
        )
        # What other parts read; all else is made for backward alone.
        self.crossing = {name for part in self.parts for name in part.reads} | {"out"}

    def graph(self, machine: Machine | None) -> Graph:
        draft, model, tokens = self.draft, self.model, self.training.tokens
        batch = draft.tensor("tokens", 8 * tokens, Kind.INPUT)  # int64
        embedding = self._weight("embed", model.embedding_weights, "embed")
        x = self._activation("x0", tokens * model.hidden, "embed")
        self._run("embed", 0.0, [batch, embedding], [x], "embed")

        blocks: list[dict[str, int]] = []
        for number in range(1, model.layers + 1):
            blocks.append(self._forward(number, x))
            x = blocks[-1]["out"]

        flops = 2.0 * tokens * model.vocabulary * model.hidden
        head = embedding if model.tied else self._weight("head", model.vocabulary * model.hidden, "head")
        logits = self._activation("logits", tokens * model.vocabulary, "head")
        loss = draft.tensor("loss", 4, layer="head")
        self._run("head", flops, [x, head], [logits], "head")
        g_logits = self._gradient(logits, "g.logits", "head")
        self._run("loss", 0.0, reads=[logits], writes=[loss, g_logits], layer="head", phase=Phase.LOSS)
        g = self._gradient(x, f"g.x{model.layers}", "head")
        # A tied weight's gradient is complete only after the embedding's backward.
        self._run_backward(
            "head", flops, reads=[g_logits, x], writes=[g], weight=head, layer="head", last=not model.tied
        )

        for number in range(model.layers, 0, -1):
            g = self._backward(number, blocks[number - 1], g)
        self._run_backward("embed", 0.0, reads=[g, batch], writes=[], weight=embedding, layer="embed")
        results = [loss]
        if self.training.optimizer == "none":
            results += self.gradients.values()
        elif self.training.update == "after":
            for weight in self.gradients:
                self._update(weight)
        return draft.graph(results, machine, {"kind": "analytic", "model": model.source})

    def _forward(self, number: int, x: int) -> dict[str, int]:
        """Add a block's forward pass and return its tensors.

        They have their names in Part; weights are called `w.<part>`.
        """
        layer, there = f"block.{number}", {"x": x}
        for part in self.parts:
            reads = [there[name] for name in part.reads]
            if part.weight:
                there[f"w.{part.name}"] = self._weight(f"{number}.{part.name}", part.weight, layer)
                reads.append(there[f"w.{part.name}"])
            for name, size in part.makes.items():
                full = f"x{number}" if name == "out" else f"{number}.{name}"
                there[name] = self._activation(full, size, layer)
            self._run(
                f"{number}.{part.name}",
                part.flops,
                reads,
                [there[name] for name in part.makes],
                layer,
                quick=[there[name] for name in part.makes if name in self.crossing],
            )
        return there

    def _backward(self, number: int, there: dict[str, int], g: int) -> int:
        """Add a block's backward pass and return the gradient of its input."""
        layer, gradient = f"block.{number}", {"out": g}
        for part in reversed(self.parts):
            full = f"g.x{number - 1}" if part.into == "x" else f"g.{number}.{part.into}"
            gradient[part.into] = self._gradient(there[part.into], full, layer)
            self._run_backward(
                f"{number}.{part.name}",
                part.flops,
                reads=[*(gradient[name] for name in part.gradients), *(there[name] for name in part.saved)],
                writes=[gradient[part.into]],
                weight=there.get(f"w.{part.name}"),
                layer=layer,
                inner=part.inner,
            )
        return gradient["x"]

    # ── tensors ─────────────────────────────────────────────────────────────────────────────────

    def _weight(self, name: str, elements: int, layer: str) -> int:
        weight = self.draft.tensor(f"w.{name}", elements * self.training.weight_bytes, Kind.PARAMETER, layer)
        self.names[weight] = name
        return weight

    def _activation(self, name: str, elements: int, layer: str) -> int:
        return self.draft.tensor(name, elements * self.training.activation_bytes, layer=layer)

    def _gradient(self, of: int, name: str, layer: str) -> int:
        return self.draft.tensor(name, self.draft.size_of(of), Kind.GRADIENT, layer)

    def _weight_gradient(self, weight: int, layer: str) -> int:
        # A tied weight has one gradient, with two contributions.
        if weight not in self.gradients:
            self.gradients[weight] = self.draft.tensor(
                f"dw.{self.names[weight]}", self.draft.size_of(weight), Kind.PARAMETER_GRADIENT, layer
            )
        return self.gradients[weight]

    # ── operations ──────────────────────────────────────────────────────────────────────────────

    def _seconds(self, flops: float, tensors: Sequence[int]) -> float:
        seconds = flops / self.rates.flops
        if self.rates.bandwidth is None:
            return seconds
        return max(seconds, sum(map(self.draft.size_of, tensors)) / self.rates.bandwidth)

    def _run(
        self,
        name: str,
        flops: float,
        reads: list[int],
        writes: list[int],
        layer: str,
        phase: Phase = Phase.FORWARD,
        quick: Sequence[int] = (),
    ) -> None:
        """Add a forward or loss operation. quick: what its variant that saves nothing for backward writes."""
        seconds = self._seconds(flops, [*reads, *writes])
        fast = Mode("fast-forward", self._seconds(flops, [*reads, *quick]), 0, tuple(quick))
        self.draft.operation(
            f"{'F.' if phase == Phase.FORWARD else ''}{name}",
            time=seconds,
            reads=reads,
            writes=writes,
            phase=phase,
            layer=layer,
            recompute=phase == Phase.FORWARD,
            # A variant must leave something out.
            modes=[fast] if quick and len(quick) < len(writes) else [],
        )

    def _run_backward(
        self,
        name: str,
        flops: float,
        reads: list[int],
        writes: list[int],
        weight: int | None,
        layer: str,
        *,
        inner: int = 0,
        last: bool = True,
    ) -> None:
        """Add a backward operation, and the update of its weight.

        weight: the weight whose gradient is computed too, None for none. It is read only to compute the
            gradient of an input.
        last: whether no later operation adds to the weight's gradient, so that the weight can be updated.
        """
        makes = writes
        if weight is not None:
            makes = [*writes, self._weight_gradient(weight, layer)]
            reads = [*reads, weight] if writes else reads
        self.draft.operation(
            f"B.{name}",
            time=self._seconds(BACKWARD_FLOPS * flops, [*reads, *makes]),
            workspace=inner * self.training.activation_bytes,
            reads=reads,
            writes=makes,
            phase=Phase.BACKWARD,
            layer=layer,
        )
        if weight is not None and last and self.training.update == "in-backward":
            self._update(weight)

    def _update(self, weight: int) -> None:
        """Add Adam's step (SGD's: without states). A step on the CPU is the execution variant `host`."""
        if self.training.optimizer == "none":
            return
        name, gradient = self.names[weight], self.gradients[weight]
        size = self.draft.size_of(weight)
        states: list[int] = []
        if self.training.optimizer == "adam":
            elements = size // self.training.weight_bytes
            widths = {"m": self.training.state_bytes, "v": self.training.state_bytes}
            if self.training.weight_bytes < _MASTER_BYTES:
                widths["master"] = _MASTER_BYTES
            states = [
                self.draft.tensor(f"{state}.{name}", elements * width, Kind.OPTIMIZER_STATE)
                for state, width in widths.items()
            ]
        self.draft.operation(
            f"U.{name}",
            # The gradient has as many bytes as the weight.
            time=size / self.rates.update_device,
            reads=[gradient],
            mutates=[weight, *states],
            phase=Phase.UPDATE,
            recompute=False,
            modes=[Mode("host", size / self.rates.update_host, 0, (), on_host=True)],
        )
