"""transformers' Trainer under DistributedDataParallel, with updates in the plan: its bits on each rank."""

from __future__ import annotations

import os
from typing import Any

import memplan
import pytest
import torch
from accelerate_on_cpus import free_port
from not_none import not_none
from ranks import ranks
from torch.nn.parallel import DistributedDataParallel

pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytestmark = pytest.mark.scripts

EARLY: dict[str, Any] = {"early_updates": True}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "early, some rolled back": ({"max_grad_norm": 0.7}, EARLY),
    "early, accumulating": ({"gradient_accumulation_steps": 2, "max_grad_norm": 0.05}, EARLY),
    "buckets": ({}, {"bucket_size": "1MB"}),
    "early, in buckets, moved": (
        {"gradient_accumulation_steps": 2, "max_grad_norm": 0.05},
        {**EARLY, "bucket_size": "1MB", "machine": "rtx3060", "solver": "auto"},
    ),
}
"""Arguments of the Trainer, and options of plans."""

LOGGED = ("loss", "grad_norm", "eval_loss", "learning_rate")


def trained(
    folder: str, arguments: dict[str, Any], options: dict[str, Any] | None
) -> tuple[list[Any], dict[str, torch.Tensor], int]:
    """Return what is logged, the weights, and how many iterations ran twice. options: None without plans."""
    from accelerate.state import AcceleratorState
    from train_data import sentences, small_gpt2
    from transformers import Trainer, TrainingArguments

    AcceleratorState._reset_state(True)
    own = TrainingArguments(
        folder,
        use_cpu=True,
        ddp_backend="gloo",
        per_device_train_batch_size=4,
        num_train_epochs=2,
        learning_rate=1e-3,
        logging_steps=1,
        eval_strategy="epoch",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        **arguments,
    )
    rows: Any = sentences(32)
    trainer: Any = Trainer(small_gpt2(dropout=0.1), own, train_dataset=rows[8:], eval_dataset=rows[:8])
    loss = None
    if options is not None:
        loss = memplan.optimize_trainer(trainer, budget="95%", time_limit=0.5, cache=False, **options)
    trainer.train()
    assert isinstance(trainer.model_wrapped, DistributedDataParallel)
    rows = [row[key] for row in trainer.state.log_history for key in LOGGED if key in row]
    twice = 0 if loss is None else sum(one.rolled_back for one in not_none(loss.step).report().plans)
    return rows, {name: each.detach().clone() for name, each in trainer.model.state_dict().items()}, twice


def both(rank: int, folder: str, port: int) -> dict[str, Any]:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return {
        name: (trained(folder, arguments, options), trained(folder, arguments, None))
        for name, (arguments, options) in CASES.items()
    }


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder = tmp_path_factory.mktemp("trainers")
    results = ranks(both, folder, str(folder / "saved"), free_port())
    for result in results:
        assert not isinstance(result, str), result
    return results


@pytest.mark.parametrize("name", CASES)
def test_updates_in_the_plan_are_the_trainers_on_each_rank(name: str, found: list[Any]) -> None:
    arguments, options = CASES[name]
    for result in found:
        (rows, weights, twice), (baseline, expected, _twice) = result[name]
        assert rows == baseline
        assert [each for each in expected if not torch.equal(weights[each], expected[each])] == []
        assert (twice > 0) == ("early_updates" in options), arguments
    first, second = (result[name][0] for result in found)
    assert first[2] == second[2]
