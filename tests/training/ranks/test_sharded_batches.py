"""Sharded training with batches of several shapes, evaluations between iterations, and padding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import memplan
import pytest
import torch
from memplan.devices.measuring.live_bytes import live_peak
from ranks import ranks
from sharded_models import batch, make
from sharded_training import Trained, adamw, by_fsdp, differences, planned_step, share_bytes, whole
from torch import Tensor
from torch.distributed.tensor import DTensor

pytestmark = pytest.mark.scripts

STEPS = 4
PAD = {"input_ids": 0, "attention_mask": 0, "labels": -100}


def planned(kind: str, first: dict[str, Tensor], budget: str = "70%", **options: Any) -> tuple[Any, Any, Any]:
    module = make(kind)
    optimizer = adamw(module)
    step = planned_step(
        module,
        optimizer,
        first,
        budget,
        **options,
    )
    return module, optimizer, step


def shapes(kind: str, rank: int) -> list[dict[str, Tensor]]:
    """Make batches, each second one smaller."""
    made = [batch(kind, rank, number) for number in range(STEPS)]
    return [{name: each[: 4 - n % 2] for name, each in row.items()} for n, row in enumerate(made)]


def several(rank: int, size: int, kind: str) -> dict[str, Any]:
    """Train on batches of two shapes, with an evaluation after each."""
    batches = shapes(kind, rank)
    known = by_fsdp(kind, size, batches)
    module, optimizer, step = planned(kind, batches[0])
    losses, evaluated, expected = list[Tensor](), list[Tensor](), list[Tensor]()
    peaks: list[tuple[int, int]] = []
    for given in batches:
        losses.append(step(**given).detach())
        states = sum(
            each.to_local().nbytes if isinstance(each, DTensor) else 0
            for row in optimizer.state.values()
            for each in row.values()
        )

        def evaluate() -> None:
            evaluated.append(step.evaluate(**batches[0]).loss)

        modes = [part.training for part in module.modules()]
        first = not step._executor.forward
        kept = sum(x.nbytes for name, x in step.plans[0].cycle.held.items() if name.startswith("d"))
        counted = live_peak(evaluate)
        assert [part.training for part in module.modules()] == modes
        if not first:  # the first one plans, too
            held = share_bytes(module) + sum(each.nbytes for each in (*given.values(), *module.buffers()))
            peaks.append((counted.peak_bytes + held + states + kept, step._executor.planner.bytes))
        full = make(kind).eval()
        full.load_state_dict({name: whole(each) for name, each in module.state_dict().items()}, assign=True)
        expected.append(full(**batches[0]).loss.detach())
    return {
        "differences": differences(known, Trained(module, optimizer, losses, [])),
        "evaluated": (evaluated, expected),
        "plans": len(step.plans),
        "peaks": peaks,
    }


@pytest.mark.parametrize(("kind", "size"), [("gpt2", 2), ("llama", 4)])
def test_two_shapes_train_as_by_fsdp2_with_evaluations_between(tmp_path: Path, kind: str, size: int) -> None:
    for found in ranks(several, tmp_path, size, kind, size=size):
        assert not isinstance(found, str), found
        assert max(found["differences"].values(), default=0.0) <= (0.0 if size == 2 else 1e-6)
        assert found["plans"] == 2
        assert all(peak <= budget for peak, budget in found["peaks"]), found["peaks"]
        for one, other in zip(*found["evaluated"], strict=True):
            assert torch.equal(one, other)


def differ(rank: int) -> list[str]:
    """Train on batches that do not go together, then on one that does."""
    batches, lines = [batch("gpt2", rank, number) for number in range(3)], list[str]()
    _module, _optimizer, step = planned("gpt2", batches[0], "100%")
    short = {name: each[: 4 - rank] for name, each in batches[1].items()}
    lacks = {"input_ids": batches[1]["input_ids"]} if rank else batches[1]
    for given in (short, lacks, batches[2]):
        try:
            step(**given)
            lines.append("")
        except memplan.MismatchError as error:
            lines.append(str(error))
    return lines


def test_batches_of_other_shapes_on_other_ranks_are_refused_on_all(tmp_path: Path) -> None:
    first, second = ranks(differ, tmp_path)
    both = [f"input_ids int64 [{count}, 16], labels int64 [{count}, 16]" for count in (4, 3)]
    line = f"ranks 0 and 1 have batches of different forms, {' and '.join(both)}: give all ranks one form"
    assert first[0] == second[0]
    assert first[0].startswith(line)
    line = "have batches of different forms, input_ids int64 [4, 16], labels int64 [4, 16] and input_ids"
    assert line in first[1] == second[1]
    assert first[0].endswith(
        "by padding (pad_values=, pad_to_lengths=) or by dropping smaller last batches (drop_last=True)"
    )
    assert first[1].endswith(
        "give all ranks one form, with the same inputs, dtypes and numbers of dimensions"
    )
    assert first[2:] == second[2:] == [""]


def padded(rank: int, size: int) -> dict[str, float]:
    """Train on lengths of which the longest among the ranks decides."""
    batches = [batch("gpt2", rank, number) for number in range(STEPS)]
    for number, row in enumerate(batches):
        row["attention_mask"] = torch.ones_like(row["input_ids"])
        length = (7, 5, 14, 8)[(number + 2 * rank) % 4]
        batches[number] = {name: each[:, :length] for name, each in row.items()}
    common = [16, 8, 16, 8]
    full = [
        {
            name: torch.nn.functional.pad(each, (0, length - each.shape[1]), value=PAD[name])
            for name, each in row.items()
        }
        for row, length in zip(batches, common, strict=True)
    ]
    known = by_fsdp("gpt2", size, full)
    module, optimizer, step = planned("gpt2", batches[0], "100%", pad_values=PAD, pad_to_lengths=(8, 16))
    losses = [step(**given).detach() for given in batches]
    assert len(step.plans) == 2
    return differences(known, Trained(module, optimizer, losses, []))


def test_batches_are_padded_to_the_longest_of_all_ranks(tmp_path: Path) -> None:
    assert ranks(padded, tmp_path, 2) == [{}, {}]
