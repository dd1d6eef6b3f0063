"""What is trained: a transformer, residual bottlenecks, or cells of many branches, kernel by kernel.

Each adds blocks to a tape until the iteration has as many kernels as are asked for. Sizes are in elements;
all that is random comes from the tape's generator.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Iterator
from itertools import count
from typing import NamedTuple

from .tape import Tape

Weights = Callable[[int], int]
"""A block's next weight, by its elements."""

_PREDICTED = 8
"""One token of so many is predicted."""

_CLASSES = 1000
_STAGES = (3, 11, 35)
"""The blocks before which the side halves and the channels double."""
_SIDE = 56
"""Pixels, in the first stage."""


def transformer(tape: Tape, kernels: int, shared: int) -> int:
    """A tower of attention and MLP; each kernel does one thing, as graph compilers have it. The head's weight
    is the table of tokens. The logits."""
    random = tape.random
    batch, tokens = random.choice((96, 128, 192)), random.choice((128, 196, 256))
    heads, vocabulary = random.choice((10, 12, 16)), random.choice((20_000, 30_522, 50_257))
    hidden, rows, scores = 64 * heads, batch * tokens, batch * heads * tokens**2
    table, mask = tape.weight(vocabulary * hidden), tape.constant(rows)

    def dense(x: int, into: int, weight: Weights) -> int:
        width = tape.size(x) // rows
        made = tape.product(rows * into, x, weight(width * into), flops=2.0 * rows * width * into)
        return tape.plus(made, weight(into))

    def norm(x: int, weight: Weights) -> int:
        centred = tape.plus(x, tape.function(x, rows))
        spread = tape.function(tape.function(tape.function(centred), rows), of_result=True)
        scaled = tape.times(tape.times(centred, spread), weight(hidden))
        return tape.plus(scaled, weight(hidden))

    def block(x: int, weight: Weights) -> int:
        query, key, value = (dense(x, hidden, weight) for _ in range(3))
        mixing = 2.0 * scores * hidden / heads
        raw = tape.function(tape.product(scores, query, key, flops=mixing), of_result=True)
        soft = tape.function(tape.plus(raw, mask), of_result=True)
        dropped = tape.function(soft, of_result=True, aside=scores // 4)
        mixed = tape.product(rows * hidden, dropped, value, flops=mixing)
        x = norm(tape.plus(x, dense(mixed, hidden, weight)), weight)
        wide = dense(x, 4 * hidden, weight)
        gate = tape.function(tape.function(tape.function(wide)), of_result=True)
        return norm(tape.plus(x, dense(tape.times(wide, gate), hidden, weight)), weight)

    x = tape.gathered(rows * hidden, table, tape.constant(rows))
    x = norm(tape.plus(x, tape.weight(tokens * hidden)), tape.weight)
    for weight in _blocks(tape, kernels, shared):
        x = block(x, weight)
    some = tape.function(x, rows // _PREDICTED * hidden)
    flops = 2.0 * tape.size(some) * vocabulary
    return tape.product(rows // _PREDICTED * vocabulary, some, table, flops=flops)


def bottlenecks(tape: Tape, kernels: int, shared: int) -> int:
    """Residual blocks of three convolutions in four stages, then a classifier. The logits."""
    images = _Images(tape)
    x = images.stem()
    for number, weight in enumerate(_blocks(tape, kernels, shared)):
        stage = bisect(_STAGES, number)
        inner, side = images.width << stage, _SIDE >> stage
        narrow = images.convolved(x, inner, x.side, 1, weight)
        out = images.normed(images.convolved(narrow, inner, side, 3, weight), 4 * inner, side, 1, weight)
        if x.channels != out.channels:
            x = images.normed(x, out.channels, side, 1, weight)
        x = out._replace(tensor=tape.function(tape.plus(out.tensor, x.tensor)))
    return images.classified(x)


def cells(tape: Tape, kernels: int, shared: int) -> int:
    """Cells of two to five branches of one to three convolutions each, which are joined. The first reads the
    cell before, others that or the one before it. The logits."""
    images, random = _Images(tape), tape.random
    before = last = images.stem()
    for number, weight in enumerate(_blocks(tape, kernels, shared)):
        stage = bisect(_STAGES, 3 * number)
        side, branches = _SIDE >> stage, list[_Image]()
        for branch in range(random.randint(2, 5)):
            made = random.choice((last, last, before)) if branch else last
            for _ in range(random.randint(1, 3)):
                into = images.width * random.choice((1, 2, 3)) << stage
                made = images.convolved(made, into, side, random.choice((1, 3)), weight)
            branches.append(made)
        joined = tape.joined(tuple(each.tensor for each in branches))
        before, last = last, _Image(joined, sum(each.channels for each in branches), side)
    return images.classified(last)


class _Image(NamedTuple):
    tensor: int
    channels: int
    side: int


class _Images:
    """Convolutions with their norms, over a batch. width: channels of the first stage's inner ones."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.batch, self.width = tape.random.choice((64, 96, 128, 192)), tape.random.choice((48, 64, 80))

    def stem(self) -> _Image:
        picture = _Image(self.tape.constant(3 * self.batch * 224**2), 3, 224)
        wide = self.convolved(picture, 64, 112, 7, self.tape.weight)
        return self.convolved(wide, 64, _SIDE, 3, self.tape.weight)

    def convolved(self, x: _Image, into: int, side: int, kernel: int, weight: Weights) -> _Image:
        made = self.normed(x, into, side, kernel, weight)
        return made._replace(tensor=self.tape.function(made.tensor))

    def normed(self, x: _Image, into: int, side: int, kernel: int, weight: Weights) -> _Image:
        elements, filters = self.batch * into * side**2, weight(x.channels * into * kernel**2)
        made = self.tape.product(elements, x.tensor, filters, flops=2.0 * elements * x.channels * kernel**2)
        return _Image(self.tape.normalised(made, weight(2 * into), 2 * into), into, side)

    def classified(self, x: _Image) -> int:
        tape, features = self.tape, self.batch * x.channels
        head, flops = tape.weight(x.channels * _CLASSES), 2.0 * features * _CLASSES
        return tape.product(self.batch * _CLASSES, tape.function(x.tensor, features), head, flops=flops)


def _blocks(tape: Tape, kernels: int, shared: int) -> Iterator[Weights]:
    """The weights of each block, until there are as many kernels as asked for. shared: so many blocks in a
    row have the same, where they are as large; 0: all."""
    known = list[int]()
    for number in count():
        if tape.expected >= kernels:
            return
        if shared and number % shared == 0:
            known = []
        yield _next_weight(tape, known)


def _next_weight(tape: Tape, known: list[int]) -> Weights:
    """Of one block. known: those of the blocks that it shares with; completed."""
    places = count()

    def weight(elements: int) -> int:
        place = next(places)
        if place == len(known):
            known.append(tape.weight(elements))
        elif tape.size(known[place]) != elements:
            known[place] = tape.weight(elements)
        return known[place]

    return weight


BODIES: dict[str, Callable[[Tape, int, int], int]] = {
    body.__name__: body for body in (transformer, bottlenecks, cells)
}
"""By name: a tape, the kernels wanted, and how many blocks share their weights -> the logits."""
