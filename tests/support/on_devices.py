"""Tests that run on the CPU and, where there is one, on a CUDA device: parameters, and training by a plan and
in an eager loop.
"""

from contextlib import suppress

import memplan
import pytest
import torch
from memplan.model.iteration import on_device
from memplan.solvers.problem import InfeasibleError, NotFoundError
from transfers import ITERATIONS

CUDA = pytest.param(
    "cuda",
    marks=[pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
)
TURNS = 3
BUDGETS = ["60%", "70%", "80%", "90%", "100%"]


def built(name, device):
    torch.manual_seed(0)
    return on_device(ITERATIONS[name](), device)


def adam(parameters, **options):
    return torch.optim.AdamW(parameters, 1e-2, **options)


def loss_of(iteration):
    given = iteration.inputs
    inputs = getattr(given, "inputs", given)
    output = iteration.module(**inputs) if isinstance(inputs, dict) else iteration.module(*inputs)
    if iteration.loss_fn is None:
        return output if isinstance(output, torch.Tensor) else output["loss"]
    targets = (given.targets,) if hasattr(given, "targets") else ()
    return iteration.loss_fn(output, *targets)


def eagerly(iteration, optimizer, autocast=None, norm=None, accumulate=1):
    losses = []
    for turn in range(TURNS * accumulate):
        torch.manual_seed(turn)
        device = next(iteration.module.parameters()).device.type
        with torch.autocast(device, autocast, enabled=autocast is not None):
            loss = loss_of(iteration)
        (loss / accumulate if accumulate > 1 else loss).backward()
        losses.append(loss.detach())
        if (turn + 1) % accumulate == 0:
            if norm is not None:
                torch.nn.utils.clip_grad_norm_(iteration.module.parameters(), norm)
            optimizer.step()
            optimizer.zero_grad()
    return losses, state(iteration.module)


def by_plan(iteration, optimizer, accumulate=1, **options):
    given = iteration.inputs
    inputs, targets = getattr(given, "inputs", given), getattr(given, "targets", None)
    options = {"budget": "70%", "cache": False, "time_limit": 2, "verify": True} | options
    step = planned(
        iteration.module,
        inputs,
        targets=targets,
        loss_fn=iteration.loss_fn,
        optimizer=optimizer,
        gradient_accumulation_steps=accumulate,
        **options,
    )
    losses = []
    arguments, keywords = ((), inputs) if isinstance(inputs, dict) else (inputs, {})
    keywords = keywords if targets is None else keywords | {"targets": targets}
    for turn in range(TURNS * accumulate):
        torch.manual_seed(turn)
        losses.append(step(*arguments, **keywords).detach())
    step.restore_to_device()
    return (losses, state(iteration.module)), step


def planned(*arguments, budget, **options):
    """The step of the first budget that suffices: of small models weights and gradients take most."""
    for share in BUDGETS[BUDGETS.index(budget) : -1]:
        with suppress(NotFoundError, InfeasibleError):
            return memplan.optimize(*arguments, budget=share, **options)
    return memplan.optimize(*arguments, budget=BUDGETS[-1], **options)


def state(module):
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def assert_same(found, expected):
    for turn, (one, other) in enumerate(zip(found[0], expected[0], strict=True)):
        assert torch.equal(one, other), f"loss {turn}: {one.item()} {other.item()}"
    assert found[1].keys() == expected[1].keys()
    for name, tensor in found[1].items():
        assert torch.equal(tensor, expected[1][name]), name
