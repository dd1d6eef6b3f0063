"""A plan on the path for torch.compile is compared with each batch by whose values eager's code may decide
otherwise."""

from __future__ import annotations

import warnings
from typing import Any

import memplan
import pytest
import torch
from torch import Tensor, nn


class Masked(nn.Module):
    """Asks for a value of an activation, but for torch.compile; a mask that hides nothing is dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 7)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        hidden = self.linear(x)
        compiling = torch.compiler.is_compiling()
        if not compiling and bool(hidden.isfinite().all()) and bool(mask.all()):
            return hidden.square().mean()
        return ((hidden / 3.0) * mask * 3.0).square().mean()


def warned(step: Any, x: Tensor, mask: Tensor) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        step(x, mask=mask).backward()
    return [str(each.message) for each in caught]


@pytest.mark.scripts
@pytest.mark.parametrize("verify", [None, True])
def test_a_mask_that_hides_nothing_is_compared_after_one_that_hides(verify: bool | None) -> None:
    torch.manual_seed(0)
    module, x = Masked(), torch.randn(4, 5)
    hides, shows = torch.ones(4, 7, dtype=torch.bool), torch.ones(4, 7, dtype=torch.bool)
    hides[0, 2:] = False
    step = memplan.optimize(module, {"x": x, "mask": hides}, budget="100%", cache=False, verify=verify)
    assert step.plan is not None
    assert not [line for _ in range(3) for line in warned(step, x, hides) if "differs" in line]
    first = warned(step, x, shows)
    assert any("torch.compile" in line for line in first), first
    assert not warned(step, x, shows)
    assert not warned(step, x, hides)


@pytest.mark.scripts
@pytest.mark.parametrize("batches", [1, 3])
def test_batches_of_an_update_are_compared_too(batches: int) -> None:
    """In the midst of an update, whose sums are as they were afterwards."""
    torch.manual_seed(0)
    module, x = Masked(), torch.randn(4, 5)
    hides, shows = torch.ones(4, 7, dtype=torch.bool), torch.ones(4, 7, dtype=torch.bool)
    hides[0, 2:] = False
    given: dict[str, Any] = {"optimizer": torch.optim.SGD(module.parameters(), 0.1), "cache": False}
    given["gradient_accumulation_steps"] = batches
    step = memplan.optimize(module, {"x": x, "mask": hides}, budget="100%", **given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2 * batches + 1):
            step(x, mask=hides)
    with pytest.warns(UserWarning, match="torch.compile"):
        step(x, mask=shows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for mask in (shows, hides, shows):
            step(x, mask=mask)
