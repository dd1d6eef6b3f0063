"""A CUDA device for fake tensors, on a PyTorch that has none.

C++ takes the device for `cpu:0`, which no real tensor has (theirs is `cpu`), and so follows it through all
operators, refuses mixtures and records copies, as it does for CUDA. Python sees `cuda:0`:

    model code, fake kernels  ──▶  cuda:0   FakeTensor.device, is_cuda, torch.cuda.is_available() …
    C++ (dispatcher, autograd) ─▶  cpu:0    FakeTensor.__new__, arguments of functions
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode

from ...graphs.errors import InputError
from ...torch_support.torch_fakes import FakeTensor
from .capability import Capability
from .questions import Questions

STAND_IN = torch.device("cpu", 0)
"""The device in C++."""
SHOWN = torch.device("cuda", 0)
"""The device in Python."""


def shown(device: torch.device) -> torch.device:
    """Return the device that Python sees."""
    return SHOWN if device == STAND_IN else device


_OTHERS = re.compile(r"(mps|xpu|npu|hpu|xla|mtia|ipu|privateuseone)(:\d+)?")


def _held(device: Any) -> Any:
    """Return the device that C++ sees; anything else as it is.

    Raises InputError for a device that is not there.
    """
    if not isinstance(device, torch.device | str):
        return device
    wanted = str(device)
    if _OTHERS.fullmatch(wanted):
        raise InputError(f"the model asks for {wanted}: an estimate is for NVIDIA's GPUs, which are cuda")
    if not wanted.startswith("cuda"):
        return device
    if torch.device(wanted).index:  # None is the first one, as 0 is
        raise InputError(f"the model asks for {wanted}: an estimate is for one GPU, which is cuda:0")
    return STAND_IN


_entered: list[Capability] = []


def is_absent_gpu() -> bool:
    """Return whether a trace is for a GPU that is not here."""
    return bool(_entered)


_FROM_DATA = (torch.tensor, torch.as_tensor, torch.asarray)
"""Functions that make a tensor of numbers, in C++ without the trace, on the CPU: a copy follows."""


class _Devices(TorchFunctionMode):
    """Mode that gives functions the device that C++ sees."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.cuda:
            return args[0].to(STAND_IN, **{k: v for k, v in (kwargs or {}).items() if k == "non_blocking"})
        if func is torch.device:  # it stays cuda, and is replaced where it is used
            return func(*args, **(kwargs or {}))
        if func is torch.Tensor.new_tensor and args[0].is_cuda:
            given: dict[str, Any] = {"dtype": args[0].dtype, "device": SHOWN, **(kwargs or {})}
            return torch.tensor(args[1], dtype=given["dtype"], device="cpu").to(_held(given["device"]))
        if func is torch.Tensor.__setitem__ and isinstance(args[2], int | float) and args[0].is_cuda:
            # On CUDA a number that is assigned is a tensor of the CPU.
            return func(*args[:2], torch.tensor(args[2], dtype=args[0].dtype, device="cpu"))
        device = (kwargs or {}).get("device")
        if func in _FROM_DATA and device is not None and _held(device) == STAND_IN:
            return func(*args, **{**(kwargs or {}), "device": None}).to(STAND_IN)
        args = tuple(map(_held, args))
        return func(*args, **{name: _held(value) for name, value in (kwargs or {}).items()})


_key_of: Callable[[str], str] = torch._C._dispatch_key_for_device


def _no(_tensor: Any) -> bool:
    return False


def _dispatch_key(kind: str) -> str:
    return _key_of("cpu" if kind == "cuda" else kind)


@contextmanager
def cuda_devices(questions: Questions) -> Generator[None]:
    """Let fake tensors be on the CUDA device that answers these questions."""
    import_module("torch._dynamo")  # before its tables of functions would meet those that are replaced here
    fake: Any = FakeTensor
    device, make = fake.__dict__["device"], fake.__dict__["__new__"].__func__

    def shown_device(tensor: Any) -> torch.device:
        return shown(device.fget(tensor))

    def make_fake(cls: Any, *arguments: Any, **keywords: Any) -> Any:
        held = {name: _held(value) for name, value in keywords.items()}
        return make(cls, *map(_held, arguments), **held)

    properties = {
        "device": property(shown_device, device.fset),
        "is_cuda": property(lambda tensor: tensor.device.type == "cuda"),
        "is_cpu": property(lambda tensor: tensor.device.type == "cpu"),
        "__new__": staticmethod(make_fake),
    }
    with ExitStack() as stack:
        for name, value in properties.items():
            stack.enter_context(patch.object(fake, name, value, create=True))
        for name, answer in _answers(questions).items():
            stack.enter_context(patch.object(torch.cuda, name, answer))
        stack.enter_context(patch.object(torch._C, "_dispatch_key_for_device", _dispatch_key))
        # A recurrent layer asks when it is made, and would warn of a PyTorch without cuDNN.
        stack.enter_context(patch.object(torch.backends.cudnn, "is_acceptable", _no))
        stack.enter_context(_Devices())
        _entered.append(questions.capability)
        stack.callback(_entered.pop)
        yield


def _numbers(capability: Capability) -> tuple[int, int]:
    return capability.major, capability.minor


class _Properties(SimpleNamespace):
    """Stand-in for the result of `torch.cuda.get_device_properties`."""

    def __init__(self, questions: Questions) -> None:
        super().__init__(name="GPU", total_memory=0, multi_processor_count=1)
        self._questions = questions

    @property
    def major(self) -> int:
        return self._questions.answer(lambda one: one.major)

    @property
    def minor(self) -> int:
        return self._questions.answer(lambda one: one.minor)


def _answers(questions: Questions) -> Mapping[str, Callable[..., Any]]:
    """Return what `torch.cuda` answers, by name of its function."""
    properties = _Properties(questions)

    def always(value: Any) -> Callable[..., Any]:
        return lambda *_arguments, **_keywords: value

    def has_bfloat16(including_emulation: bool = True) -> bool:
        return including_emulation or questions.answer(lambda one: one.major >= 8)

    nothing = always(None)
    return {
        "is_available": always(True),
        "is_initialized": always(True),
        "device_count": always(1),
        "current_device": always(0),
        "get_device_capability": lambda *_arguments, **_keywords: questions.answer(_numbers),
        "get_device_name": always(properties.name),
        "get_device_properties": always(properties),
        "is_bf16_supported": has_bfloat16,
        "memory_allocated": always(0),
        "max_memory_allocated": always(0),
        "memory_reserved": always(0),
        **dict.fromkeys(
            (
                "_lazy_init",
                "init",
                "synchronize",
                "set_device",
                "empty_cache",
                "manual_seed",
                "manual_seed_all",
                "reset_peak_memory_stats",
            ),
            nothing,
        ),
    }


def keep_on_absent_gpu(tensor: Any, device: torch.device | None) -> None:
    """Put a fake copy where it was to be: PyTorch copies small constants for real, which leaves them on the
    CPU.
    """
    if device is not None and _held(device) == STAND_IN and tensor.device != SHOWN:
        tensor.fake_device, tensor.constant = STAND_IN, None


def on_absent_gpu(mode: Any, tensor: Any) -> Any:
    """Return a fake tensor on the GPU: itself if it is there, else one like it."""
    if tensor.device == SHOWN:
        return tensor
    with mode, torch.no_grad():
        made = tensor.to(SHOWN)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(made, tensor.requires_grad)
    return made.requires_grad_(tensor.requires_grad)
