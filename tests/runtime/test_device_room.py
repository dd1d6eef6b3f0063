"""Only one subpackage of the runtime knows by name what a device is, and that of GPUs that are not here."""

import re
from pathlib import Path

import memplan.runtime
import pytest
import torch
from memplan.runtime.device.choice import device_of
from memplan.runtime.device.cuda import Cuda

RUNTIME = Path(memplan.runtime.__file__).parent
FORBIDDEN = re.compile(r"torch\.cuda|[\"']cuda[\"']|record_stream|pin_memory|non_blocking")


@pytest.mark.parametrize(
    "file",
    sorted(p for p in RUNTIME.rglob("*.py") if p.parent.name not in ("device", "absent_gpu")),
    ids=lambda file: file.stem,
)
def test_no_other_file_names_cuda(file):
    lines = file.read_text().splitlines()
    assert [line for line in lines if FORBIDDEN.search(line.partition("#")[0])] == []


def test_sizes_as_the_allocator_counts_them():
    cpu, cuda = device_of("cpu"), device_of(torch.device("cuda", 1))
    assert [cpu.rounded(size) for size in (0, 1, 513)] == [0, 1, 513]
    assert [cuda.rounded(size) for size in (0, 1, 512, 513)] == [0, 512, 512, 1024]
    assert device_of(cuda) is cuda


def test_a_moment_is_on_the_stream_of_its_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event records on the current device's stream unless it is given one."""
    recorded: list[object] = []

    class Event:
        def __init__(self, **_options: object) -> None: ...

        def record(self, stream: object = "the current device's") -> None:
            recorded.append(stream)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"the stream of {device}")
    Cuda(torch.device("cuda:1")).moment()
    assert recorded == ["the stream of cuda:1"]
