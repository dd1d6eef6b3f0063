"""Only one subpackage of the runtime knows by name what a device is, and that of GPUs that are not here."""

import re
from pathlib import Path

import memplan.runtime
import pytest
import torch
from memplan.devices.device.choice import device_of
from memplan.devices.device.cpu import Cpu
from memplan.devices.device.cuda import Cuda
from memplan.model.iteration import Iteration, on_device
from memplan.profiling.profile.profile import measure_program
from memplan.tracing.output_layouts import residents
from memplan.tracing.trace import trace
from torch import nn

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


def test_the_allocator_knows_of_a_model_before_it_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments keep the kind that they were made as."""
    module, order = nn.Linear(2, 2), list[str]()
    move = nn.Module.to
    monkeypatch.setattr(Cpu, "expect_weights", lambda _cpu: order.append("expected"))
    monkeypatch.setattr(nn.Module, "to", lambda *given: (order.append("moved"), move(*given))[1])
    on_device(Iteration(module, (torch.ones(1, 2),)), "cpu")
    assert order == ["expected", "moved"]


def test_a_device_is_warm_before_it_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    timed = Cpu.timed
    monkeypatch.setattr(Cpu, "warm_up", lambda _cpu: order.append("warm"))
    monkeypatch.setattr(Cpu, "timed", lambda *given: (order.append("timed"), timed(*given))[1])
    iteration = Iteration(nn.Linear(2, 2), (torch.ones(1, 2),), lambda output: output.sum())
    program = trace(iteration)
    measure_program(program, residents(program, iteration))
    assert order[0] == "warm"
    assert "timed" in order
