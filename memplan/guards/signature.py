"""The signature of a comparison with eager PyTorch: one hash of all that it rests on. If it is the same,
so is the verdict.

The plan is traced anew at each start, so what the trace sees is in the program. What eager PyTorch may do
differently without the trace's seeing it is here:

    the code      bytecode of all functions that the iteration reaches; the files of the user's modules, of
                  libraries when and how large they are; versions
    the state     simple values that this code can reach: attributes, configurations, closures, globals
    the form      of weights, buffers and the optimizer; their values do not decide, nor do the batch's
    the settings  of PyTorch, and what of the environment its kernels read

It is rather too much: if one of it changes for no reason, a comparison is made that need not be.
"""

from __future__ import annotations

import os
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum
from functools import cache
from hashlib import sha256
from pathlib import Path as File
from types import BuiltinFunctionType, CodeType, FunctionType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..model.attached import named_buffers
from ..model.iteration import Iteration, others_in
from ..program.program import Program
from ..torch_support.raw import full_name, is_a, module_of, own_attributes
from ..torch_support.reach import (
    Parts,
    container_of,
    entries_of,
    is_of_library,
    is_of_user_class,
    parts_with_code,
    reachable,
    simple_text,
)
from ..torch_support.torch_optimizers import HOOKS_OF_STEPS
from ..updates.several import members_of

_BEGUN = time.time()
_OURS = __name__.partition(".")[0]
_SIMPLE = (str, bytes, int, float, complex, bool, type(None))
_SPELLED = (*_SIMPLE, torch.dtype, torch.device, torch.Size, torch.layout, range, slice, np.generic, File)
_SPACES = (Namespace, SimpleNamespace)
_HASH = 2**32
"""Whole numbers from here on are hashes and addresses, other ones in each process: only that there is one
counts."""
_READ_BY_KERNELS = (
    "ATEN_",
    "CUBLAS_",
    "CUDNN_",
    "MKL_",
    "NVIDIA_TF32",
    "OMP_",
    "ONEDNN_",
    "PYTORCH_",
    "TORCH_",
)


def grounds(iteration: Iteration, program: Program, *more: object) -> str | None:
    """Return the signature of a comparison of the iteration with eager PyTorch.

    more: what else counts, by its `str`.

    Returns None if the code is not known: some has no file (a notebook's), or one that was written after this
    process began and may not be what runs.
    """
    files = _users_files()
    if files is None:
        return None
    lines = [
        program.fingerprint,
        *map(str, more),
        *(program.used.texts() if program.used else ()),
        *_options(iteration),
        *_forms(iteration),
        *sorted(_reached(iteration)),
        *files,
        *_libraries(),
        *_settings(program.device.type),
    ]
    return sha256("\n".join(lines).encode(errors="replace")).hexdigest()


def _options(iteration: Iteration) -> Iterator[str]:
    """Yield the options of an iteration and its optimizer.

    Numbers of the optimizer count by their sign: schedules change them, and with zero nothing is seen.
    """
    yield repr(
        (
            iteration.purpose,
            iteration.outputs,
            iteration.autocast,
            iteration.accumulate,
            iteration.scaler is None,
        )
    )
    if iteration.updates is None:
        return
    optimizer, when, clipping, masters, ema, wide, *switches = iteration.updates
    kinds = " ".join(str(type(member)) for member in members_of(optimizer))
    # With states or without: a first step runs the code that creates them.
    yield f"{kinds} {when} {clipping is None} {masters} {ema} {bool(optimizer.state)} {wide} {switches}"
    for group in optimizer.param_groups:
        yield repr(sorted((name, _option(value)) for name, value in group.items() if name != "params"))


def _option(value: Any) -> str:
    if is_a(value, bool | str | None):
        return _spelled(value)
    if is_a(value, tuple | list):
        return repr([_option(each) for _key, each in entries_of(value, container_of(value)) or ()])
    known = is_a(value, int | float) and not is_of_user_class(type(value))
    is_number = known or (is_a(value, Tensor) and value.numel() == 1)
    return f"{full_name(type(value))} {np.sign(float(value)) if is_number else 1.0}"


def _forms(iteration: Iteration) -> Iterator[str]:
    for tensors in (iteration.module.named_parameters(), named_buffers(iteration.module).items()):
        yield from (f"{name} {_form(tensor)}" for name, tensor in tensors)


def _form(tensor: Tensor) -> str:
    return f"{type(tensor)} {tensor.dtype} {list(tensor.shape)} {tensor.stride()} {tensor.requires_grad}"


# ── code and state that are reached ─────────────────────────────────────────────────────────────────


def _reached(iteration: Iteration) -> Iterator[str]:
    """Yield each reachable thing by its path, and its simple parts; in any order, as sets have none."""
    roots: dict[str, Any] = {"module": iteration.module, "loss_fn": iteration.loss_fn}
    roots["inputs"] = others_in(iteration.inputs)
    if iteration.updates is not None:
        members = members_of(iteration.updates.optimizer)
        roots |= {name: [vars(each).get(name) for each in members] for name in HOOKS_OF_STEPS}
    for path, thing in reachable(roots, _parts):
        where = "/".join(map(_key, path))
        yield f"{where} {_what(thing)}"
        simple = ((key, part) for key, part in _parts(thing) if is_a(part, _SIMPLE))
        yield from (f"{where}/{_key(key)} {_spelled(part)}" for key, part in simple)


def _parts(thing: Any) -> Parts:
    """Yield what a thing holds, for a walk that also follows code; things of this package are ends."""
    if is_a(thing, FunctionType):
        module = str(thing.__module__)
    else:
        module = module_of(thing if is_a(thing, type) else type(thing))
    if module.partition(".")[0] == _OURS:
        return
    yield from (own_attributes(thing) or {}).items() if is_a(thing, _SPACES) else parts_with_code(thing)


def _key(key: object) -> str:
    return _spelled(key) if is_a(key, _SPELLED) else full_name(type(key))


def _spelled(thing: Any) -> str:
    large = is_a(thing, int) and abs(int.__int__(thing)) >= _HASH
    return "a large number" if large else simple_text(thing)


def _what(thing: Any) -> str:
    if is_a(thing, _SPELLED):
        return _spelled(thing)
    if is_a(thing, Tensor):
        return _form(thing)
    if is_a(thing, np.ndarray):
        return f"{thing.dtype} {thing.shape} {sha256(thing.tobytes()).hexdigest()}"
    if is_a(thing, Enum):
        return _spelled(thing)
    if is_a(thing, type):
        return full_name(thing)
    if is_a(thing, FunctionType):
        return f"{thing.__module__} {code_hash(thing.__code__)}"
    base = container_of(thing)
    length = "" if base is None else base.__len__(thing)
    name = thing.__qualname__ if is_a(thing, BuiltinFunctionType) else ""
    return f"{full_name(type(thing))} {length} {name}"


@cache
def code_hash(code: CodeType) -> str:
    """Return a hash of what the code does: without its file and lines, so that a comment changes nothing."""
    constants = [_constant(each) for each in code.co_consts]
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_argcount, code.co_kwonlyargcount)
    return sha256(repr((code.co_code, constants, names, code.co_flags)).encode()).hexdigest()


def _constant(constant: Any) -> str:
    if is_a(constant, CodeType):
        return code_hash(constant)
    # A frozenset (`x in {1, 2}`) has another order in another process, by the hashes of its texts.
    return repr(sorted(map(repr, constant)) if is_a(constant, frozenset) else constant)


# ── code on disk ────────────────────────────────────────────────────────────────────────────────────


def _users_files() -> list[str] | None:
    """List the modules that are neither a library's nor Python's nor this package's, with hashes of their
    files.

    Returns None if a file was written after the process began.
    """
    found: list[str] = []
    for name, file in _modules():
        if file is None or _is_of_others(name, file):
            continue
        try:
            if os.stat(file).st_mtime > process_began():
                return None
            found.append(f"{name} {sha256(File(file).read_bytes()).hexdigest()}")
        except OSError:
            return None
    main = sys.modules.get("__main__")
    return found if getattr(main, "__file__", None) else None


@cache
def _libraries() -> tuple[str, ...]:
    """List the versions of Python and PyTorch, and of other libraries the files with size and time.

    Only libraries that are loaded at the first call count, as planning itself loads more.
    """
    stated = [f"Python {sys.version}", f"PyTorch {torch.__version__} {torch.version.git_version}"]
    files = {file for name, file in _modules() if file and _is_of_others(name, file)}
    # Libraries of custom operators are no modules of Python.
    for file in sorted(files | set(torch.ops.loaded_libraries)):
        with suppress(OSError):
            about = os.stat(file)
            stated.append(f"{file} {about.st_size} {about.st_mtime_ns}")
    return tuple(stated)


def _modules() -> Iterator[tuple[str, str | None]]:
    """Yield modules by name, with their files; without PyTorch's, Python's and this package's."""
    for name, module in sorted(sys.modules.items()):
        top = name.partition(".")[0]
        if top not in ("torch", _OURS) and top not in sys.stdlib_module_names:
            yield name, getattr(module, "__file__", None)


def _is_of_others(name: str, file: str) -> bool:
    return name.startswith("__editable__") or is_of_library(file)


@cache
def process_began() -> float:
    """Return when the process began, in seconds since the epoch, a second early at most.

    If the system does not say, it is when this module was imported.
    """
    with suppress(OSError, ValueError, IndexError):
        # Field 22, counted after the command's name: that may contain spaces and brackets.
        ticks = int(File("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        booted = next(
            line for line in File("/proc/stat").read_text().splitlines() if line.startswith("btime")
        )
        return int(booted.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")
    return _BEGUN


def _settings(device: str) -> Iterator[str]:
    """Yield PyTorch's settings for the device, and the environment variables that kernels read."""
    cuda, cudnn, mkldnn = torch.backends.cuda, torch.backends.cudnn, torch.backends.mkldnn
    yield repr(
        [
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.get_float32_matmul_precision(),
            torch.get_default_dtype(),
            torch.is_grad_enabled(),
            (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)),
            (torch.get_num_threads(), torch.get_num_interop_threads()),
            torch.backends.cpu.get_cpu_capability(),
            (cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32),
            (cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled()),
            (cuda.cudnn_sdp_enabled(), cuda.matmul.allow_tf32),
            (cuda.matmul.allow_fp16_reduced_precision_reduction, mkldnn.enabled),
            (cuda.matmul.allow_bf16_reduced_precision_reduction, mkldnn.deterministic),
        ]
    )
    yield from (f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith(tuple(_READ_BY_KERNELS)))
