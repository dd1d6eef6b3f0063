"""Whatever the special methods of a user's classes do, memplan does not call them: by the default options."""

from __future__ import annotations

from pathlib import Path

import memplan
import pytest
import torch
from memplan.guards import signature
from strange_objects import NAMED, STRANGE, Holder


@pytest.fixture(autouse=True)
def known_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The users' files count as known, so that comparisons are kept: pytest's workers have no main file."""
    monkeypatch.setattr(signature, "_users_files", list)


def trained(step, module, batch, optimizer=None):
    losses = []
    for _iteration in range(3):
        losses.append(step(*batch))
        if optimizer is not None:
            optimizer.zero_grad()
            losses[-1].backward()
            optimizer.step()
    return [*(loss.detach() for loss in losses), *module.parameters()]


def test_no_special_method_of_a_users_class_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = []
    for planned in (False, True, True):  # the second plan comes out of the cache, and so does its comparison
        torch.manual_seed(0)
        module, batch = Holder(), (torch.randn(4, 8), {"all": [*STRANGE], "one": STRANGE[0]})
        optimizer = torch.optim.AdamW(module.parameters())
        for number, thing in NAMED.items():
            optimizer.param_groups[0][f"note {number}"] = thing
        if planned:
            step = memplan.optimize(module, batch, budget="100%", time_limit=0.3, optimizer=optimizer)
            found.append(trained(step, module, batch))
        else:
            found.append(trained(module, module, batch, optimizer))
    for planned in found[1:]:
        assert all(map(torch.equal, planned, found[0]))
    (compared,) = tmp_path.rglob("compared.json")
    assert compared.exists()
