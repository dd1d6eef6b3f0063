"""What the allocator of CUDA counts, by a pretended CUDA: each figure is that of the device."""

from __future__ import annotations

import pytest
import torch
from memplan.devices.device.cuda import Cuda

READINGS = {
    "allocated_bytes": ("memory_allocated", 11),
    "peak_bytes": ("max_memory_allocated", 12),
    "reserved_peak_bytes": ("max_memory_reserved", 13),
}


def test_each_figure_is_that_of_this_device(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Cuda(torch.device("cuda:1"))
    for name, number in READINGS.values():
        monkeypatch.setattr(torch.cuda, name, lambda where, number=number: number * (where == device.torch))
    for method, (_name, number) in READINGS.items():
        assert getattr(device, method)() == number


@pytest.mark.parametrize(
    ("counted", "current", "peak"),
    [({}, 0, 0), ({"requested_bytes.all.current": 7, "requested_bytes.all.peak": 9}, 7, 9)],
)
def test_before_the_first_allocation_nothing_is_counted(
    counted: dict[str, int], current: int, peak: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Cuda(torch.device("cuda:1"))
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda where: counted if where == device.torch else None)
    assert (device.requested_bytes(), device.requested_peak_bytes()) == (current, peak)


def test_the_cache_is_emptied_before_free_memory_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    device, order = Cuda(torch.device("cuda:1")), list[str]()
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: order.append("emptied"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _where: (order.append("read"), (5, 8))[1])
    assert device.free_bytes() == 5
    assert order == ["emptied", "read"]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _where: (8, 6))
    assert device.capability() == "8.6"
