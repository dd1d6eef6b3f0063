"""Forward kernels, recorded, and the gradient kernels and updates that follow from them.

What an engine for automatic differentiation makes of a forward pass, as another tool dumps it: a kernel and
the tensors that it touches in each row, numbers for names. Seconds are those of a roofline with noise, and
some gradient kernels are slow because nobody has tuned them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from memplan.graphs.draft import Draft
from memplan.graphs.graph import Kind, Phase

ELEMENT = 4
"""Bytes."""

BANDWIDTH, FLOPS = 1.2e12, 9e12
"""Bytes/s of the device's memory, FLOP/s attained in single precision: about those of an A100."""

LEAST = 8e-6
"""Seconds that a kernel takes whatever it does."""

UNTUNED, SLOWER = 0.15, 6.0
"""The share of gradient products that are not tuned, and how many times as long they take."""

STEP = 1e-7
"""Seconds that times are multiples of, so that no machine's logarithm shows in them."""


@dataclass(frozen=True)
class _Row:
    """A forward kernel. apart: each operand has a gradient kernel of its own, which reads the other operands;
    else there is one for all, which reads `saved`. flops: of each kernel."""

    output: int
    operands: tuple[int, ...]
    apart: bool
    saved: tuple[int, ...]
    flops: float


@dataclass
class Tape:
    """phases: kernels and tensors say what they are, else all are alike but for weights. recompute: kernels
    may run again. in_place: a weight is updated as soon as it has a gradient, by each of its uses, and
    gradients of a tensor are added by a kernel that changes one of them; else both are contributions to one
    gradient, and updates stand at the end. states: of the optimizer, for each weight.
    """

    draft: Draft
    random: Random
    phases: bool
    recompute: bool
    in_place: bool
    states: int
    kernels: int = 0
    _rows: list[_Row] = field(default_factory=list[_Row])
    _constants: set[int] = field(default_factory=set[int])
    _weights: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    _gradients: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    _tensors: int = 0

    @property
    def expected(self) -> int:
        """Kernels of the whole iteration so far, without sums of gradients."""
        gradients = sum(len(self._wanted(row)) for row in self._rows)
        uses = sum(x in self._weights for row in self._rows for x in row.operands)
        return len(self._rows) + gradients + (uses if self.in_place else len(self._weights))

    # ── tensors: sizes in elements ──────────────────────────────────────────────────────────────

    def weight(self, elements: int) -> int:
        weight = self._tensor(elements, Kind.PARAMETER)
        kind = Kind.OPTIMIZER_STATE if self.phases else Kind.PARAMETER
        self._weights[weight] = [self._tensor(elements, kind) for _ in range(self.states)]
        return weight

    def constant(self, elements: int) -> int:
        """What nobody wants the gradient of."""
        made = self._tensor(elements, Kind.INPUT)
        self._constants.add(made)
        return made

    def size(self, tensor: int) -> int:
        return self.draft.size_of(tensor) // ELEMENT

    def _tensor(self, elements: int, kind: Kind) -> int:
        baseline = kind in (Kind.PARAMETER, Kind.INPUT) or self.phases
        self._tensors += 1
        return self.draft.tensor(
            f"t{self._tensors}", elements * ELEMENT, kind if baseline else Kind.ACTIVATION
        )

    # ── forward ─────────────────────────────────────────────────────────────────────────────────

    def product(self, elements: int, a: int, b: int, flops: float) -> int:
        """A matrix product or a convolution: its gradients are products too."""
        return self._forward(elements, (a, b), apart=True, flops=flops)

    def times(self, a: int, b: int) -> int:
        """Element by element; b may be a weight, or have one for each row."""
        return self._forward(self.size(a), (a, b), apart=True)

    def plus(self, a: int, b: int) -> int:
        return self._forward(self.size(a), (a, b), saved=())

    def joined(self, parts: tuple[int, ...]) -> int:
        return self._forward(sum(map(self.size, parts)), parts, saved=())

    def function(
        self, a: int, elements: int | None = None, *, of_result: bool = False, aside: int = 0
    ) -> int:
        """of_result: the gradient reads the result, not the operand. aside: elements of a second result, for
        the gradient alone."""
        return self._forward(elements or self.size(a), (a,), None if of_result else (a,), aside=aside)

    def normalised(self, a: int, scale: int, statistics: int) -> int:
        """In one kernel, which keeps statistics of so many elements."""
        return self._forward(self.size(a), (a, scale), (a, scale), aside=statistics)

    def gathered(self, elements: int, table: int, numbers: int) -> int:
        return self._forward(elements, (table, numbers), (numbers,))

    def _forward(
        self,
        elements: int,
        operands: tuple[int, ...],
        saved: tuple[int, ...] | None = None,
        *,
        apart: bool = False,
        flops: float = 0.0,
        aside: int = 0,
    ) -> int:
        """saved: None for the result."""
        output = self._tensor(elements, Kind.ACTIVATION)
        second = (self._tensor(aside, Kind.ACTIVATION),) if aside else ()
        self._kernel(Phase.FORWARD, operands, (output, *second), flops=flops)
        kept = (output,) if saved is None else saved
        self._rows.append(_Row(output, operands, apart, (*kept, *second), flops))
        return output

    # ── backward ────────────────────────────────────────────────────────────────────────────────

    def backward(self, last: int) -> int:
        """The loss of `last`, then all gradients, then what updates are left. The loss' tensor."""
        loss = self._tensor(1, Kind.ACTIVATION)
        self._gradients[last] = [self._tensor(self.size(last), Kind.GRADIENT)]
        self._kernel(Phase.LOSS, [last], [loss], once=True)
        self._kernel(Phase.BACKWARD, [last, loss], self._gradients[last])
        for row in reversed(self._rows):
            gradient = self._whole_gradient(row.output)
            for wanted in self._wanted(row):
                read = [x for x in row.operands if x not in wanted] if row.apart else row.saved
                made = [self._gradient_of(x) for x in wanted]
                self._kernel(Phase.BACKWARD, [gradient, *read], made, flops=row.flops)
                for x, its in zip(wanted, made, strict=True):
                    if self.in_place and x in self._weights:
                        self._update(x, its)
        for weight in () if self.in_place else self._weights:
            self._update(weight, self._gradients[weight][0])
        return loss

    def _wanted(self, row: _Row) -> list[tuple[int, ...]]:
        """Of which operands its gradient kernels make the gradients."""
        found = tuple(x for x in row.operands if x not in self._constants)
        return [(x,) for x in found] if row.apart else [found]

    def _gradient_of(self, x: int) -> int:
        """Where the next contribution to a tensor's gradient goes."""
        mine = self._gradients.setdefault(x, [])
        if self.in_place or not mine:
            kind = Kind.PARAMETER_GRADIENT if x in self._weights else Kind.GRADIENT
            mine.append(self._tensor(self.size(x), kind))
        return mine[-1]

    def _whole_gradient(self, x: int) -> int:
        first, *rest = self._gradients[x]
        if rest:
            self._kernel(Phase.BACKWARD, [first, *rest], [], [first])
        return first

    def _update(self, weight: int, gradient: int) -> None:
        states = self._weights[weight]
        self._kernel(Phase.UPDATE, [gradient], [], [weight, *states], once=True)

    def _kernel(
        self,
        phase: Phase,
        reads: Sequence[int],
        writes: Sequence[int],
        mutates: Sequence[int] = (),
        *,
        flops: float = 0.0,
        once: bool = False,
    ) -> None:
        touched = sum(map(self.draft.size_of, (*reads, *writes, *mutates)))
        seconds = LEAST + max(touched / BANDWIDTH, flops / FLOPS) * self.random.lognormvariate(0.0, 0.3)
        if flops and phase == Phase.BACKWARD and self.random.random() < UNTUNED:
            seconds *= SLOWER
        self.kernels += 1
        self.draft.operation(
            f"k{self.kernels}",
            time=round(round(seconds / STEP) * STEP, 7),
            reads=list(dict.fromkeys(reads)),
            writes=writes,
            mutates=mutates,
            phase=phase if self.phases else Phase.FORWARD,
            workspace=self.draft.size_of(writes[0]) // 4 if flops and self.random.random() < 0.3 else 0,
            recompute=self.recompute and not once and not mutates,
        )
