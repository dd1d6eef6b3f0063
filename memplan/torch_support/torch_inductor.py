"""PyTorch's Inductor: compiles a function of tensors, or says why it can't.

torch does not promise to keep these names.
"""

from __future__ import annotations

import importlib.util
import shlex
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from ..graphs.undisturbed import undisturbed
from .torch_fakes import FakeTensorMode
from .torch_make_fx import make_fx


@undisturbed()
def inductor(
    function: Callable[..., list[Tensor]], inputs: list[Tensor], strides: list[tuple[int, ...]]
) -> Callable[[], Callable[[list[Tensor]], Any]] | None:
    """Begin to compile the function of tensors of these forms.

    strides: of the results.

    Returns a function that waits for the compilation and returns a function of a list of tensors; meanwhile
    others can be begun. Returns None if its results would have other strides. Both functions raise whatever
    Inductor raises.
    """
    from torch._guards import TracingContext, tracing
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    _quote_library_folders()
    mode = FakeTensorMode(shape_env=ShapeEnv())  # without one Inductor's cache is not asked
    fakes: list[Any] = [mode.from_tensor(tensor, static_shapes=True) for tensor in inputs]
    with mode:
        graph = make_fx(function, decomposition_table=select_decomp_table())(*fakes)
    (output,) = graph.graph.find_nodes(op="output")
    results: Any = output.args[0]
    if [tuple(node.meta["val"].stride()) for node in results] != strides:
        return None
    # Of other outputs Inductor may change the strides.
    output.meta["user_visible_output_idxs"] = list(range(len(results)))
    wait, waits = AsyncCompile.wait, list[Callable[[], None]]()

    # Postponed, so that C++ compilers of several kernels run at the same time.
    def later(own: Any, scope: dict[str, Any]) -> None:
        waits.append(partial(wait, own, scope))

    on_cpu = all(tensor.device.type == "cpu" for tensor in inputs)
    waiting = patch.object(AsyncCompile, "wait", later) if on_cpu else nullcontext()
    with tracing(TracingContext(mode)), torch.no_grad(), waiting:
        run: Any = compile_fx_inner(graph, fakes)

    @undisturbed()
    def ready() -> Callable[[list[Tensor]], Any]:
        for each in waits:
            each()
        return run

    return ready


@cache
def _quote_library_folders() -> None:
    """Quote library folders: Inductor splits the compiler's command at spaces and does not quote PyTorch's
    own folder.
    """
    from torch._inductor.cpp_builder import BuildOptionsBase

    folders = BuildOptionsBase.get_libraries_dirs
    BuildOptionsBase.get_libraries_dirs = lambda self: [shlex.quote(folder) for folder in folders(self)]


@cache
@undisturbed()
def compiler_fault(device: torch.device) -> str | None:
    """Return why Inductor can't compile for the device; None if it can. On the CPU it tries."""
    from torch._inductor.cpp_builder import get_cpp_compiler

    def one_more(tensor: Tensor) -> list[Tensor]:
        return [tensor + 1]

    if device.type != "cpu":
        return None if importlib.util.find_spec("triton") else "there is no Triton"
    try:
        get_cpp_compiler()
    except Exception:
        return "there is no C++ compiler"
    try:
        begun = inductor(one_more, [torch.ones(2, device="cpu")], [(1,)])
        if begun is not None:
            begun()([torch.ones(2, device="cpu")])
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        said = next((line for line in lines if "error:" in line), lines[-1] if lines else repr(error))
        return f"the C++ compiler failed: {said[:200]}"
    return None
