"""A window over layers: against the list of layers that the next steps run."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from memplan.solvers.offloading.layers.windows import entered, window


@pytest.mark.parametrize("layers", range(1, 7))
def test_it_begins_with_the_layer_of_the_step_and_never_leaves_the_model(layers: int) -> None:
    """Steps count on into the next iteration: the window is the same there."""
    of_step = [*range(layers), *reversed(range(layers))]
    for size in range(1, layers + 1):
        for step, layer in enumerate(of_step):
            forward = step < layers
            wanted = {layer + ahead if forward else layer - ahead for ahead in range(size)}
            outside = [each for each in wanted if not 0 <= each < layers]
            shift = max(outside, default=layers - 1) - layers + 1 if forward else min(outside, default=0)
            found = window(step, layers, size)
            assert set(found) == {each - shift for each in wanted}
            assert found == window(step + 2 * layers, layers, size)


@pytest.mark.parametrize("number", range(20))
def test_a_tensor_is_in_from_the_step_after_the_last_without_it(number: int) -> None:
    random = Random(number)
    layers = random.randint(2, 6)
    size = random.randint(1, layers)
    members = set(random.sample(range(layers), random.randint(1, layers)))
    of_step = [*range(layers), *reversed(range(layers))] * 2
    uses = [step for step, layer in enumerate(of_step) if layer in members]
    for begin, end in pairwise(uses):
        without = [s for s in range(begin + 1, end + 1) if not members & {*window(s, layers, size)}]
        assert entered(members, range(begin, end), layers, size) == (without[-1] + 1 if without else None)
