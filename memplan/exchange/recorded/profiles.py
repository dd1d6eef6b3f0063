"""Traces of torch.profiler with `profile_memory=True` as recordings.

A trace has an instant `[memory]` per allocation and free, on the thread that made it. The spans around it on
that thread say which code that was: operators, annotations (`Optimizer.step#AdamW.step`), and with
`with_stack=True` Python functions (`train.py(12): step`) and modules (`nn.Module: Linear_0`).

Reference: libkineto's chrome traces, as PyTorch 2.13 exports them.
"""

from __future__ import annotations

import re
from typing import Any, cast

from ...graphs.files.fields import Row
from .recording import PROFILE, Block, Frame, Recording

MEMORY = "[memory]"
_CPU, _CUDA = 0, 1
_MOST = 2**62
"""Above all bytes, times and addresses of programs."""
_KINDS = {_CPU: "cpu", _CUDA: "cuda"}
_FUNCTION = re.compile(r"(.+)\((\d+)\): (.+)")
_SPANS = ("cpu_op", "python_function", "user_annotation")


def recording_of(document: Any, wanted: int | None) -> Recording:
    """Return one device's recording: of a GPU, if there is one, that with the most. Raises ValueError."""
    events: Any = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise ValueError("is not a trace of torch.profiler: it has no traceEvents")
    rows = [cast("Row", one) for one in cast("list[Any]", events) if isinstance(one, dict)]
    memory = [one for one in rows if one.get("name") == MEMORY and isinstance(one.get("args"), dict)]
    if not memory:
        raise ValueError("has no events of memory: profile with profile_memory=True, and with_stack=True")
    device = _device(memory, wanted)
    own = sorted((one for one in memory if _place(one) == device), key=_time)
    stacks = _stacks(rows, own)
    # What is there before the first event, which counts it in with its own bytes.
    before = max(0, _number(own[0], "Total Allocated") - _number(own[0], "Bytes"))
    blocks, live = list[Block](), dict[int, Block]()
    for place, event in enumerate(own):
        size, address = _number(event, "Bytes"), _number(event, "Addr")
        if size > 0:
            live[address] = Block(size, place, None, stacks[place])
        elif (block := live.pop(address, None)) is not None:
            blocks.append(block._replace(end=place))
        elif before >= -size:  # of what was there before
            blocks.append(Block(-size, -1, place))
            before += size
    blocks += live.values()
    if before:
        blocks.append(Block(before, -1, None))
    name = _KINDS.get(device[0], "device")
    reserved = max((_number(one, "Total Reserved") for one in own), default=0)
    name = name if device[0] == _CPU else f"{name}:{device[1]}"
    return Recording(name, blocks, reserved or None, source=PROFILE)


def _device(memory: list[Row], wanted: int | None) -> tuple[int, int]:
    """Return kind and number of a device."""
    most: dict[tuple[int, int], int] = {}
    for one in memory:
        most[_place(one)] = max(most.get(_place(one), 0), _number(one, "Total Allocated"))
    gpus = {place: size for place, size in most.items() if place[0] != _CPU}
    if wanted is not None:
        found = next((place for place in gpus if place[1] == wanted), None)
        if found is None:
            raise ValueError(
                f"has nothing of device {wanted}, but of {', '.join(map(_spelled, sorted(most)))}"
            )
        return found
    there = gpus or most
    return max(there, key=lambda place: there[place])


def _spelled(place: tuple[int, int]) -> str:
    return "cpu" if place[0] == _CPU else f"{_KINDS.get(place[0], 'device')}:{place[1]}"


def _stacks(rows: list[Row], own: list[Row]) -> list[tuple[Frame, ...]]:
    """Return for each event the spans around it on its thread, innermost first."""
    spans: dict[str, list[tuple[float, float, str]]] = {}
    for one in rows:
        if one.get("ph") == "X" and one.get("cat") in _SPANS:
            begin, name = _time(one), str(one.get("name"))
            spans.setdefault(str(one.get("tid")), []).append((begin, begin + _time(one, "dur"), name))
    found = list[tuple[Frame, ...]]([()] * len(own))
    frames: dict[str, Frame] = {}
    for thread, there in spans.items():
        there.sort(key=lambda span: (span[0], -span[1]))
        events = [(place, _time(one)) for place, one in enumerate(own) if str(one.get("tid")) == thread]
        open_spans, following = list[tuple[float, str]](), 0
        for place, time in events:
            while following < len(there) and there[following][0] <= time:
                begin, end, name = there[following]
                open_spans = [span for span in open_spans if span[0] >= begin]
                open_spans.append((end, name))
                following += 1
            open_spans = [span for span in open_spans if span[0] >= time]
            found[place] = tuple(frames.setdefault(name, _frame(name)) for _end, name in reversed(open_spans))
    return found


def _frame(name: str) -> Frame:
    match = _FUNCTION.fullmatch(name)
    return Frame("", 0, name) if match is None else Frame(match[1], int(match[2]), match[3])


def _place(event: Row) -> tuple[int, int]:
    return _number(event, "Device Type"), _number(event, "Device Id")


def _number(event: Row, name: str) -> int:
    return int(_finite(cast("Row", event["args"]).get(name, 0), name))


def _time(event: Row, name: str = "ts") -> float:
    return float(_finite(event.get(name, 0), name))


def _finite(value: object, name: str) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _MOST:  # nor NaN
        raise ValueError(f"an event has a {name} that is not a number, or too large")
    return value
