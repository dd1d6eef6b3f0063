"""Several batches for one update on several processes: as DistributedDataParallel's no_sync, bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import memplan
import pytest
import torch
import unplanned
from memplan.devices.device.device import Device
from memplan.graphs.machine import Links, Machine
from memplan.model.accumulated import SUM
from memplan.runtime.run.cycle import LOST
from ranks import alone, ranks
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.scripts

MANY = 3
MOVED: dict[str, Any] = {"machine": Machine(links=Links(1e9, 1e9)), "solver": "l2l"}


def model() -> nn.Module:
    torch.manual_seed(3)
    wide = nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Dropout(0.2), nn.Linear(48, 16))
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), wide, nn.Linear(16, 3))


def batches(rank: int) -> list[tuple[Tensor, Tensor]]:
    """Two updates, and two batches that are left. Ranks have the smaller one at other places."""
    torch.manual_seed(7 + rank)
    lengths = [20 if number == 1 + 3 * rank else 48 for number in range(2 * MANY + 2)]
    return [(torch.randn(length, 6), torch.randint(3, (length,))) for length in lengths]


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, 0.01)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.1, 0.9)


def nadam(parameters: Any) -> torch.optim.Optimizer:
    """No plan has its updates."""
    return unplanned.NAdam(parameters, 0.01)


CASES: dict[str, tuple[Callable[..., torch.optim.Optimizer], dict[str, Any]]] = {
    "AdamW": (adamw, {"budget": "100%", "solver": "rotor", "verify": True}),
    "AdamW, clipped, moved": (adamw, {"budget": "85%", "max_grad_norm": 0.1, "verify": True, **MOVED}),
    "SGD, moved": (sgd, {"budget": "85%", **MOVED}),
    "SGD, clipped, at the end": (sgd, {"max_grad_norm": 0.1, "update": "after"}),
    "AdamW, in buckets, moved": (adamw, {"budget": "85%", "bucket_size": "1KiB", "verify": True, **MOVED}),
    "AdamW, in row blocks, moved": (adamw, {"budget": "85%", "block_size": "1KiB", "verify": True, **MOVED}),
    "AdamW, early": (adamw, {"max_grad_norm": 0.1, "early_updates": True, "bucket_size": "1KiB"}),
    "NAdam, not planned, clipped": (nadam, {"max_grad_norm": 0.1}),
}

Found = dict[str, Tensor]


def planned(module: nn.Module, optimizer: Any, rank: int, **options: Any) -> memplan.Step:
    x, labels = batches(rank)[0]
    own = {"targets": labels, "loss_fn": functional.cross_entropy, "budget": "95%", "solver": "rotor"}
    own |= {
        "optimizer": optimizer,
        "gradient_accumulation_steps": MANY,
        "cache": False,
        "verify": False,
        "time_limit": 0.5,
    }
    return memplan.optimize(DistributedDataParallel(module), x, **(own | options))


def by_plan(rank: int, make: Callable[..., torch.optim.Optimizer], options: dict[str, Any]) -> Found:
    module = model()
    optimizer = make(module.parameters())
    step = planned(module, optimizer, rank, **options)
    data, seen, norms = batches(rank), list[Tensor](), list[Tensor]()
    torch.manual_seed(11 + rank)
    for number, (x, labels) in enumerate(data):
        seen.append(step(x, targets=labels))
        if step.optimizer_stepped and step.grad_norm is not None:
            norms.append(step.grad_norm.clone())
        if number == rank:  # whatever the other ranks do
            seen.append(step.evaluate(x, targets=labels).loss)
    step.update()
    assert step.optimizer_stepped
    if step.grad_norm is not None:
        norms.append(step.grad_norm.clone())
    step.restore_to_device()
    return state(module, optimizer, seen, norms)


def by_no_sync(rank: int, make: Callable[..., torch.optim.Optimizer], options: dict[str, Any]) -> Found:
    module = model()
    optimizer, parallel = make(module.parameters()), DistributedDataParallel(module)
    data, seen, norms = batches(rank), list[Tensor](), list[Tensor]()
    torch.manual_seed(11 + rank)
    for number, (x, labels) in enumerate(data):
        last = (number + 1) % MANY == 0 or number + 1 == len(data)
        with nullcontext() if last else parallel.no_sync():
            loss = functional.cross_entropy(parallel(x), labels)
            (loss / MANY).backward()
        seen.append(loss.detach())
        if last:
            if "max_grad_norm" in options:
                norms.append(nn.utils.clip_grad_norm_(module.parameters(), options["max_grad_norm"]))
            optimizer.step()
            optimizer.zero_grad()
        if number == rank:
            module.eval()
            with torch.no_grad():
                seen.append(functional.cross_entropy(module(x), labels))
            module.train()
    return state(module, optimizer, seen, norms)


def state(
    module: nn.Module, optimizer: torch.optim.Optimizer, losses: list[Tensor], norms: list[Tensor]
) -> Found:
    found = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
    for index, row in optimizer.state_dict()["state"].items():
        found |= {
            f"{index}.{name}": torch.as_tensor(kept).clone() for name, kept in row.items() if name != SUM
        }
    return {
        **found,
        "losses": torch.stack(losses).detach(),
        "norms": torch.stack(norms or losses[:1]).detach(),
    }


def in_all_cases(rank: int, folder: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: (by_plan(rank, make, options), by_no_sync(rank, make, options))
        for name, (make, options) in CASES.items()
    }
    return {**found, "going on": going_on(rank, folder)}


def going_on(rank: int, folder: str) -> tuple[Found, Found, str | None]:
    """A whole run, one that goes on from what each rank has saved in the midst of an update, and what is said
    to the first rank's checkpoint."""
    runs: list[Found] = []
    data = batches(rank)[: 2 * MANY]
    for begin in (0, MANY + 1):
        module = model()
        optimizer = sgd(module.parameters())
        step = planned(module, optimizer, rank)
        torch.manual_seed(5 + rank)
        if begin:
            step.load(f"{folder}/{rank}")
        losses: list[Tensor] = []
        for number in range(begin, len(data)):
            x, labels = data[number]
            losses.append(step(x, targets=labels))
            if number == MANY and not begin:
                step.save(f"{folder}/{rank}")
        runs.append(state(module, optimizer, losses[MANY + 1 - begin :], []))
    dist.barrier()
    step.load(f"{folder}/0")
    try:
        step(data[-1][0], targets=data[-1][1])
    except memplan.MismatchError as error:
        return runs[0], runs[1], str(error)
    return runs[0], runs[1], None


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder = tmp_path_factory.mktemp("ranks")
    results = ranks(in_all_cases, folder, str(folder))
    for result in results:
        assert not isinstance(result, str), result
    return results


@pytest.mark.parametrize("name", CASES)
def test_several_batches_for_one_update_are_those_of_no_sync(name: str, found: list[Any]) -> None:
    """With batch norm's buffers, which ranks have of their own within an update; one rank alone evaluates,
    each plans for a second shape when it comes."""
    for result in found:
        planned, baseline = result[name]
        assert planned.keys() == baseline.keys()
        assert [each for each in baseline if not torch.equal(planned[each], baseline[each])] == []
    first, second = (result[name][0] for result in found)
    names = [name for name, _parameter in model().named_parameters()]
    assert [each for each in names if not torch.equal(first[each], second[each])] == []
    assert not torch.equal(first["losses"], second["losses"])


def test_each_rank_goes_on_from_its_own_sums(found: list[Any]) -> None:
    """Its share of an update is no other's: that of another rank is refused."""
    for result in found:
        whole, rest, _said = result["going on"]
        assert [name for name in whole if not torch.equal(whole[name], rest[name])] == []
    assert [result["going on"][-1] for result in found] == [
        None,
        "the optimizer holds the sums of rank 0 of 2 in the midst of an update, this is rank 1 of 2: load "
        "what this rank has saved, or what was saved between updates",
    ]


def test_a_rank_that_loses_its_sums_does_not_begin_anew_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others would update without it: it goes on from a checkpoint."""
    left, launched = [0], Device.launched

    def failing(*given: Any) -> Any:
        def run(*arguments: Any, **keywords: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise RuntimeError("on purpose")
            return target(*arguments, **keywords)

        target = launched(*given)
        return run

    monkeypatch.setattr(Device, "launched", failing)
    with alone():
        module = model()
        step = planned(module, sgd(module.parameters()), 0)
        x, labels = batches(0)[0]
        step(x, targets=labels)
        step.save(tmp_path)
        left[0] = len(step._executor.planner.parts[step.plans[0]].adding.program.operations)  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(RuntimeError, match="on purpose") as caught:
            step(x, targets=labels)
        assert caught.value.__notes__ == [LOST]
        with pytest.raises(memplan.MemplanError, match="load the weights and the optimizer's states"):
            step(x, targets=labels)
        step.load(tmp_path)
        step(x, targets=labels)
        assert not step.optimizer_stepped
        step(x, targets=labels)
        assert step.optimizer_stepped
