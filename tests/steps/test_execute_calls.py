"""What a planned iteration costs in Python: calls of functions, which no busy machine changes.

Clocks see a few percent of an iteration on a quiet machine alone (benchmarks/overhead.py); a guard that asks
each tensor one more question by a function of Python's is seen here.
"""

import sys
from collections import Counter
from typing import Any

import memplan
import pytest
import torch
from torch import nn

LAYERS = 12


def calls(layers, loop):
    """Return the number of calls in an iteration that trains so many layers."""
    torch.manual_seed(0)
    module = nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers)))
    batch = torch.randn(2, 4)
    optimizer = torch.optim.AdamW(module.parameters())
    options: dict[str, Any] = {"optimizer": optimizer} if loop == "AdamW in the plan" else {}
    step = memplan.optimize(
        module, batch, budget="100%", solver="store-all", loss_fn=torch.sum, cache=False, **options
    )

    def iterate():
        loss = step(batch)
        if not options:
            loss.backward()
            module.zero_grad()

    for _ in range(4):  # checks against eager PyTorch, and states that are made, come first
        iterate()
    found = Counter()
    sys.setprofile(lambda _frame, event, _argument: found.update([event]))
    try:
        iterate()
    finally:
        sys.setprofile(None)
    return found["call"] + found["c_call"]


@pytest.mark.parametrize(("loop", "most"), [("gradients", 31), ("AdamW in the plan", 54)])
def test_a_parameter_costs_few_calls(loop, most):
    fewer, more = calls(LAYERS, loop), calls(2 * LAYERS, loop)
    assert more - fewer <= most * 2 * LAYERS  # a weight and a bias each; operators are among the calls


def test_an_iteration_without_parameters_to_speak_of_costs_few_calls():
    assert calls(1, "gradients") <= 1500
