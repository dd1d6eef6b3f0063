"""The loops of other packages around a step: the same losses and weights as with their own, bit by bit."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.scripts
@pytest.mark.parametrize(
    ("package", "name", "options"),
    [
        ("accelerate", "train_accelerate", {"cpu": True}),
        ("accelerate", "train_accelerate", {"cpu": True, "mixed_precision": "bf16"}),
        ("peft", "train_peft", {}),
        ("lightning", "train_lightning", {}),
        ("accelerate", "train_trainer", {"use_cpu": True}),
    ],
    ids=["accelerate", "accelerate, bf16", "peft", "lightning", "Trainer"],
)
@pytest.mark.filterwarnings("ignore")
def test_a_planned_loop_is_the_packages_own(
    package: str, name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip(package)
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    monkeypatch.chdir(tmp_path)
    train: Callable[..., Any] = import_module(name).train
    (own, losses), (baseline, expected) = (fresh(train, planned, options) for planned in (True, False))
    assert losses == expected
    assert len(losses) > 4
    for (parameter, mine), theirs in zip(own.named_parameters(), baseline.parameters(), strict=True):
        assert torch.equal(mine, theirs), parameter


@pytest.mark.scripts
def test_a_plain_loop_that_stops_and_goes_on_is_the_same_without_memplan(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Clipping, a schedule, evaluation, a smaller last batch."""
    pytest.importorskip("transformers")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    train: Callable[..., Any] = import_module("train_plain").train
    torch.set_num_threads(1)
    model, losses = train(planned=False)
    first = train(planned=True, folder=tmp_path / "checkpoint", epochs=2)[1]
    resumed, rest = train(planned=True, folder=tmp_path / "checkpoint")
    assert first + rest == losses
    assert len(losses) == 21
    for (parameter, mine), theirs in zip(resumed.named_parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, theirs), parameter


@pytest.mark.scripts
def test_a_gan_of_planned_networks_is_the_same_without_memplan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two losses added, buffers, a discriminator inside the generator's loss."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    train: Callable[..., Any] = import_module("train_gan").train
    (own, losses), (baseline, expected) = (train(planned) for planned in (True, False))
    assert losses == expected
    for (name, mine), theirs in zip(own.state_dict().items(), baseline.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs), name


def fresh(train: Callable[..., Any], planned: bool, options: dict[str, Any]) -> Any:
    """With a state of accelerate's own, which a process has one of; one thread, as other tests run beside."""
    if "accelerate" in sys.modules:
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(True)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    return train(planned, **options)
