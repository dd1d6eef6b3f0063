"""A training loop with an optimizer's own steps, and the same loop with planned updates."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import memplan
import torch
from memplan.model.accumulated import SUM
from memplan.updates.catalogue import is_planned
from torch import Tensor, nn

STEPS = 10
"""Updates. RAdam with its own betas rectifies from the sixth on."""

Make = Callable[[nn.Module], torch.optim.Optimizer]


def network(*, bias: bool = True, width: int = 8) -> nn.Module:
    torch.manual_seed(0)
    sizes = [(6, width), (width, width), (width, 1)]
    first, *others = [nn.Linear(*size, bias=bias) for size in sizes]
    return nn.Sequential(first, *(each for layer in others for each in (nn.Tanh(), layer)))


def batches(module: nn.Module, count: int = STEPS) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    dtype = next(module.parameters()).dtype
    return [torch.randn(4, 6, generator=generator).to(dtype) for _ in range(count)]


def loss_of(output: Tensor) -> Tensor:
    return output.square().mean()


def state_of(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """All tensors and numbers of the module and of the optimizer, but for sums of gradients."""
    found: dict[str, Any] = dict(module.state_dict())
    for name, parameter in module.named_parameters():
        rows = optimizer.state[parameter].items()
        found |= {f"{name}.{state}": value for state, value in rows if state != SUM}
    return found


def trained(
    module: nn.Module, optimizer: torch.optim.Optimizer, norm: float | None = None, every: int = 1
) -> None:
    for number, batch in enumerate(batches(module, STEPS * every), 1):
        (loss_of(module(batch)) / every).backward()
        if number % every == 0:
            if norm is not None:
                nn.utils.clip_grad_norm_(module.parameters(), norm)
            optimizer.step()
            optimizer.zero_grad()


def step_of(module: nn.Module, optimizer: Any, **options: Any) -> Any:
    given: dict[str, Any] = {"budget": "100%", "solver": "store-all", "verify": False, "cache": False}
    given |= {"loss_fn": loss_of, "optimizer": optimizer, **options}
    return memplan.optimize(module, (batches(module)[0],), **given)


def planned(
    module: nn.Module, optimizer: Any, norm: float | None = None, every: int = 1, **options: Any
) -> None:
    step = step_of(module, optimizer, max_grad_norm=norm, gradient_accumulation_steps=every, **options)
    for batch in batches(module, STEPS * every):
        step(batch)


def check_equal(expected: dict[str, Any], found: dict[str, Any]) -> None:
    assert expected.keys() == found.keys()
    for key, value in expected.items():
        if isinstance(value, Tensor):
            assert value.dtype == found[key].dtype, key
            assert torch.equal(value, found[key]), key
        else:
            assert (type(value), value) == (type(found[key]), found[key]), key


def compare(
    make: Make, own: nn.Module, norm: float | None = None, every: int = 1, **options: Any
) -> dict[str, Any]:
    """Train a module in both loops, and compare weights and states bit by bit. Returns them."""
    other = copy.deepcopy(own)
    eager, optimizer = make(own), make(other)
    assert is_planned(optimizer)
    trained(own, eager, norm, every)
    planned(other, optimizer, norm, every, **options)
    check_equal(state_of(own, eager), state_of(other, optimizer))
    return state_of(other, optimizer)


def compare_loaded(make: Make, own: nn.Module) -> None:
    """Load states of the optimizer into a plan, and states of a plan into the optimizer."""
    eager = make(own)
    trained(own, eager)
    other = copy.deepcopy(own)
    optimizer = make(other)
    optimizer.load_state_dict(copy.deepcopy(eager.state_dict()))
    trained(own, eager)
    planned(other, optimizer)
    check_equal(state_of(own, eager), state_of(other, optimizer))
    last = copy.deepcopy(other)
    back = make(last)
    back.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    trained(own, eager)
    trained(last, back)
    check_equal(state_of(own, eager), state_of(last, back))


def compare_resumed(make: Make, own: nn.Module, folder: Path, norm: float = 0.01, every: int = 2) -> None:
    """Save a planned run in the midst of an update, go on with another module and optimizer, and compare."""
    modules = [copy.deepcopy(own) for _ in range(2)]
    eager, *optimizers = map(make, (own, *modules))
    trained(own, eager, norm, every)
    first, last = (
        step_of(*pair, max_grad_norm=norm, gradient_accumulation_steps=every)
        for pair in zip(modules, optimizers, strict=True)
    )
    given = batches(own, STEPS * every)
    half = len(given) // 2 + 1
    for batch in given[:half]:
        first(batch)
    first.save(folder / "saved")
    last.load(folder / "saved")
    for batch in given[half:]:
        last(batch)
    check_equal(state_of(own, eager), state_of(modules[1], optimizers[1]))
