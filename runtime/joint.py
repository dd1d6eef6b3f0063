"""The joint forward-backward graph of one iteration, without side effects until its end.

Two passes with `make_fx` on fake tensors (shapes without data), so no memory is needed whatever the model:

    1. forward, then torch.autograd.grad: what eager PyTorch dispatches, in-place operations included;
    2. that graph again under torch.func.functionalize: no in-place operations but, at the end, a `copy_`
       for each buffer (or other resident) that the iteration changes.

Batch norms change their statistics behind their schema's back, so the second pass puts their functional
form in their place. Parameters come in once even where tied, so their gradients are summed once. All
that is not public in torch is here: the fake tensors, the proxy's current graph and the is-compiling flag.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateImportUsage=false, reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from ..graphs.errors import InputError
from .iteration import Iteration, call, loss_of, tensors_in, with_tensors
from .layers import MARK, Marks, stamp

aten: Any = torch.ops.aten


class Joint(NamedTuple):
    """graph: placeholders = parameters, buffers, inputs; outputs = loss, then the gradients, in order.

    gradients: names of the parameters that get one.
    """

    graph: fx.GraphModule
    parameters: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    inputs: Mapping[str, Tensor]
    gradients: Sequence[str]


@contextmanager
def compiling(flag: bool) -> Generator[None]:
    """`torch.compiler.is_compiling()` answers `flag`: some models then leave out what can't be traced."""
    state: Any = torch.compiler
    before = state._is_compiling_flag
    state._is_compiling_flag = flag
    try:
        yield
    finally:
        state._is_compiling_flag = before


def joint_graph(iteration: Iteration) -> Joint:
    module = iteration.module
    given = (dict(module.named_parameters()), dict(module.named_buffers()), tensors_in(iteration.inputs))
    mode = _fake_mode([tensor for group in given for tensor in group.values()])
    parameters, buffers, inputs = (
        {name: _fake(mode, tensor) for name, tensor in group.items()} for group in given
    )
    flat = [*parameters.values(), *buffers.values(), *inputs.values()]
    gradients: list[str] = []

    def forward_backward(*tensors: Tensor) -> list[Tensor]:
        names = iter(tensors)
        groups = [{name: next(names) for name in group} for group in (parameters, buffers, inputs)]
        gradients.clear()
        return _forward_backward(iteration, *groups, gradients)

    with mode, torch.autograd.set_multithreading_enabled(False):
        eager = make_fx(forward_backward)(*flat)
        with torch.no_grad():
            functional = make_fx(torch.func.functionalize(_Functional(eager).run_flat))
            graph = functional(*(tensor.detach() for tensor in flat))
    return Joint(graph, parameters, buffers, inputs, gradients)


def _forward_backward(
    iteration: Iteration,
    parameters: dict[str, Tensor],
    buffers: dict[str, Tensor],
    inputs: dict[str, Tensor],
    gradients: list[str],
) -> list[Tensor]:
    """The loss and the gradients; `gradients` takes the names of those that there are."""
    marks = Marks(iteration.module)
    state = {**parameters, **buffers}

    def module(*arguments: Any, **keywords: Any) -> Any:
        return torch.func.functional_call(iteration.module, state, arguments, keywords)

    with marks.forward():
        output = call(module, with_tensors(iteration.inputs, inputs))
        loss = loss_of(output, iteration.loss_fn)
    del output
    marks.backward(loss)
    wanted = {name: tensor for name, tensor in parameters.items() if tensor.requires_grad}
    found = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
    kept: list[Tensor] = []
    for (name, parameter), gradient in zip(wanted.items(), found, strict=True):
        if gradient is not None:
            gradients.append(name)
            kept.append(_as_accumulated(gradient, parameter))
    with torch.no_grad():
        for name, buffer in buffers.items():
            if state[name] is not buffer:
                buffer.copy_(state[name])
    stamp(None)
    return [loss, *kept]


def _as_accumulated(gradient: Tensor, parameter: Tensor) -> Tensor:
    """What autograd leaves in `.grad`: it keeps a gradient of the parameter's layout and copies any other."""
    if gradient.is_sparse:
        raise InputError("a gradient is sparse: make the embedding with sparse=False")
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)


class _Functional(fx.Interpreter):
    """Runs a graph node by node, batch norms in functional form; new nodes inherit their node's mark."""

    def run_flat(self, *tensors: Tensor) -> Any:
        return self.run(*tensors, enable_io_processing=False)

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        stamp(n.meta.get(MARK))
        return result

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target is aten.native_batch_norm.default:
            return _batch_norm(*args, **kwargs)
        return super().call_function(target, args, kwargs)


def _batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    training: bool,
    *numbers: float,
) -> tuple[Tensor, ...]:
    if not training or mean is None or variance is None:
        return aten.native_batch_norm.default(x, weight, bias, mean, variance, training, *numbers)
    *results, new_mean, new_variance = aten._native_batch_norm_legit_functional.default(
        x, weight, bias, mean, variance, training, *numbers
    )
    mean.copy_(new_mean)
    variance.copy_(new_variance)
    return tuple(results)


def _fake_mode(tensors: Sequence[Tensor]) -> FakeTensorMode:
    """The mode of a model that is fake already, else a new one."""
    modes = (tensor.fake_mode for tensor in tensors if isinstance(tensor, FakeTensor))
    return next(modes, None) or FakeTensorMode(allow_non_fake_inputs=True)


def _fake(mode: FakeTensorMode, tensor: Tensor) -> Tensor:
    if isinstance(tensor, FakeTensor):
        return tensor
    return mode.from_tensor(tensor, static_shapes=True)
