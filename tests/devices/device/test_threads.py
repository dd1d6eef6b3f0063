"""Updates on the host have some of the processors, and the same bits with any number of them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from memplan.devices.device import threads
from memplan.devices.device.threads import as_updates_run, update_threads, use_threads
from memplan.planner.simulator.clock import Queue
from memplan.runtime.run.queues import JobQueue, Queues
from memplan.updates import rules


def in_new_thread(work: Callable[[], Any] = torch.get_num_threads) -> Any:
    """Threads of OpenMP that the main thread has had are missed by the processes that other tests fork."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


@pytest.mark.parametrize(
    ("processors", "allowed", "expected"), [(16, 16, 14), (64, 8, 8), (2, 2, 1), (1, 1, 1), (8, 1, 1)]
)
def test_two_processors_are_left(
    processors: int, allowed: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "processors", lambda: processors)
    torch.set_num_threads(allowed)
    assert update_threads() == expected


def test_the_number_is_of_one_thread_alone() -> None:
    torch.set_num_threads(3)
    assert in_new_thread(lambda: (use_threads(2), torch.get_num_threads())[1]) == 2
    assert torch.get_num_threads() == in_new_thread() == 3


def test_only_the_queue_of_updates_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "processors", lambda: 4)
    torch.set_num_threads(5)
    queues, found = Queues(), dict[Queue, int]()
    for queue in (Queue.CPU, Queue.DISK_READ):
        queues.add(queue, lambda queue: found.update({queue: torch.get_num_threads()}), (queue,), (), ())
    queues.drain()
    queues.close()
    assert found == {Queue.CPU: 2, Queue.DISK_READ: 5}
    assert as_updates_run(torch.get_num_threads) == 2
    assert torch.get_num_threads() == in_new_thread() == 5


def test_what_a_measurement_raises_is_raised_again() -> None:
    with pytest.raises(ZeroDivisionError):
        as_updates_run(lambda: 1 // 0)
    assert JobQueue("one").name == "one"


@pytest.mark.parametrize("size", [1, 67, 2**16 + 5, 2**18 + 1])
@pytest.mark.parametrize("name", ["adamw", "adamw_fused", "sgd_momentum_fused"])
def test_the_bits_do_not_depend_on_the_number_of_threads(name: str, size: int) -> None:
    """Nor on where the tensors lie: a plan's copies on the host lie elsewhere than PyTorch's."""
    random_numbers = torch.Generator().manual_seed(size)
    states = 1 if name.startswith("sgd") else 2
    given = [torch.rand(size, generator=random_numbers) for _ in range(2 + states)]
    numbers = (
        {"momentum": 0.9, "dampening": 0.1, "nesterov": False, "weight_decay": 0.01}
        if states == 1
        else {"beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.01}
    )

    def updated(number: int) -> list[torch.Tensor]:
        use_threads(number)
        places = [torch.empty(size + 16).narrow(0, 16 * (number == 3), size) for _ in given]
        own = [place.copy_(tensor) for place, tensor in zip(places, given, strict=True)]
        rules.RULES[name](*own, 1e-2, 3.0, **numbers)
        return own

    made = [in_new_thread(partial(updated, number)) for number in (1, 2, 3)]
    assert not torch.equal(made[0][0], given[0])
    for other in made[1:]:
        assert all(map(torch.equal, made[0], other))
