"""Every parameter that eager's backward gives a gradient gets it, also where code holds it itself; what
would be lost is refused."""

from __future__ import annotations

import ctypes
from typing import Any

import memplan
import pytest
import torch
from memplan.model.iteration import Iteration
from memplan.torch_support.unsupported import TraceError
from memplan.tracing.trace import trace
from not_none import not_none
from torch import nn
from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_mutation

# ── followed ────────────────────────────────────────────────────────────────────────────────────────


class Listed(nn.Module):
    """Reads its weights from a list."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.read = [self.linear.weight, self.linear.bias]

    def forward(self, x):
        return nn.functional.linear(x, *self.read)


class Variable:
    """Stands for a parameter, as Keras' do."""

    def __init__(self, parameter):
        self.parameter = parameter

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return func(*(arg.parameter if isinstance(arg, cls) else arg for arg in args), **(kwargs or {}))


class Keras(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.variable: Any = Variable(self.weight)

    def forward(self, x):
        return torch.matmul(x, self.variable)


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight.t(), x.t() @ gradient


class Applied(Listed):
    """Hands a weight from a list to a Function."""

    def forward(self, x):
        return Product.apply(super().forward(x), self.read[0])


def penalised():
    """A penalty whose parameters come from a closure."""
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    weights = list(module.parameters())
    return module, lambda output: output.square().mean() + torch.cat([w.flatten() for w in weights]).norm()


CASES = {
    "a list": lambda: (Listed(), mean_square),
    "an object that stands for a parameter": lambda: (Keras(), mean_square),
    "a Function's argument": lambda: (Applied(), mean_square),
    "a penalty": penalised,
}


def mean_square(output):
    return output.square().mean()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("compare", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_parameters_that_code_holds_itself(name, compare):
    torch.manual_seed(0)
    module, loss_fn = CASES[name]()
    x = torch.randn(3, 4)
    loss_fn(module(x)).backward()
    eager = [parameter.grad for parameter in module.parameters()]
    module.zero_grad()
    step = memplan.optimize(
        module, x, loss_fn=loss_fn, budget="100%", solver="store-all", cache=False, verify=compare
    )
    step(x).backward()
    assert all(torch.equal(p.grad, known) for p, known in zip(module.parameters(), eager, strict=True))


# ── refused ─────────────────────────────────────────────────────────────────────────────────────────


class Recomputed(torch.autograd.Function):
    """Unsloth's checkpoint: weights are no inputs of the Function."""

    @staticmethod
    def forward(ctx, layer, x):
        ctx.save_for_backward(x)
        ctx.layer = layer
        with torch.no_grad():
            return layer(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.layer(x)
        torch.autograd.backward(y, gradient)
        return None, x.grad


class Checked(Recomputed):
    """Megatron's, DeepSpeed's, fairscale's: they ask the engine whether it is a backward."""

    @staticmethod
    def backward(ctx, gradient):
        if not torch.autograd._is_checkpoint_valid():
            raise RuntimeError("Checkpointing is not compatible with .grad(), please use .backward()")
        return Recomputed.backward(ctx, gradient)


class ByHand(Recomputed):
    """Adds to the gradient itself."""

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        weight = ctx.layer.weight
        weight.grad = gradient.t() @ x if weight.grad is None else weight.grad + gradient.t() @ x
        return None, gradient @ weight.detach()


class Checkpointed(nn.Module):
    """function: none, one of the above, or the torch function that does it right."""

    def __init__(self, function=None):
        super().__init__()
        self.before, self.layer, self.function = nn.Linear(4, 4), nn.Linear(4, 4, bias=False), function

    def forward(self, x):
        x = self.before(x)
        return self.layer(x) if self.function is None else self.function.apply(self.layer, x)


class BackwardInForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        x = self.one(x)
        y = x.detach().requires_grad_()
        self.other(y).sum().backward()
        return x * y.grad


class ReadsGradient(nn.Linear):
    def forward(self, x):
        return super().forward(x) * (1 if self.weight.grad is None else 2)


OWN = r"test_gradients.py:\d+: runs a backward of its own.*switch it off: the plan recomputes"


@pytest.mark.parametrize(
    ("module", "line"),
    [
        (Checkpointed(Recomputed), OWN),
        (Checkpointed(Checked), OWN),
        (BackwardInForward(), OWN),
        (Checkpointed(ByHand), r"test_gradients.py:\d+: reads or sets layer.weight.grad inside"),
        (ReadsGradient(4, 4), r"test_gradients.py:\d+: reads or sets weight.grad inside"),
    ],
)
def test_gradients_that_would_be_lost(module, line):
    x = torch.randn(3, 4)
    with pytest.raises(TraceError, match=line) as caught:
        trace(Iteration(module, (x,), mean_square))
    assert "\n" not in str(caught.value)
    # The user's own graph goes on as before: no hook of the trace has stayed.
    mean_square(module(x)).backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_a_checkpoint_that_is_switched_off_trains():
    torch.manual_seed(0)
    module, x = Checkpointed(), torch.randn(3, 4)
    step = memplan.optimize(module, x, loss_fn=mean_square, budget="100%", solver="store-all", cache=False)
    step(x).backward()
    found = [not_none(parameter.grad) for parameter in module.parameters()]
    module.function = Recomputed
    module.zero_grad()
    mean_square(module(x)).backward()
    for parameter, known in zip(module.parameters(), found, strict=True):
        assert torch.equal(not_none(parameter.grad), known)


# ── addresses ───────────────────────────────────────────────────────────────────────────────────────

libc = ctypes.CDLL(None)


def copied(x, address):
    y = torch.empty_like(x)
    libc.memcpy(ctypes.c_void_p(address(y)), ctypes.c_void_p(address(x)), ctypes.c_size_t(4 * x.numel()))
    return y


ADDRESSES = {
    "tensor": lambda x: x.data_ptr(),
    "storage": lambda x: x.untyped_storage().data_ptr(),
}


class Native(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, address, backward):
        ctx.address = address if backward else None
        return x.clone() if backward else copied(x, address)

    @staticmethod
    def backward(ctx, gradient):
        made = gradient if ctx.address is None else copied(gradient, ctx.address)
        return made, None, None


@torch.library.custom_op("memplan_tests::copied", mutates_args=())
def copied_by_operator(x: torch.Tensor) -> torch.Tensor:
    return copied(x, ADDRESSES["tensor"])


copied_by_operator.register_fake(torch.empty_like)
copied_by_operator.register_autograd(lambda _ctx, gradient: gradient)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("address", ADDRESSES)
def test_a_function_that_hands_an_address_to_native_code(address, backward):
    """A fake tensor has none: with zero in its place the process would end."""

    def loss(output):
        return Native.apply(output, ADDRESSES[address], backward).square().mean()

    line = r"test_gradients.py:\d+: takes the address of a tensor.*torch.library.custom_op"
    with pytest.raises(TraceError, match=line):
        trace(Iteration(nn.Linear(4, 4), (torch.randn(3, 4),), loss))


def test_native_code_in_an_operator_trains():
    torch.manual_seed(0)
    module, x = nn.Linear(4, 4), torch.randn(3, 4)
    step = memplan.optimize(
        module,
        x,
        loss_fn=lambda output: copied_by_operator(output).square().mean(),
        budget="100%",
        solver="store-all",
        cache=False,
    )
    step(x).backward()
    found = module.weight.grad
    module.zero_grad()
    Native.apply(module(x), ADDRESSES["tensor"], False).square().mean().backward()
    assert torch.equal(not_none(found), not_none(module.weight.grad))


@torch.library.custom_op("memplan_tests::launched", mutates_args=())
def launched(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


@launched.register_fake
def _(x):
    """Launches a kernel as `torch.library.wrap_triton` does in the fake kernel of a `triton_op`."""
    made = torch.empty_like(x)
    triton_kernel_wrapper_mutation(
        kernel_idx=0,
        constant_args_idx=0,
        grid=[(1, 1, 1)],
        tma_descriptor_metadata={},
        kwargs={"x_ptr": x, "y_ptr": made},
    )
    return made


launched.register_autograd(lambda _ctx, gradient: 2 * gradient)


def test_a_triton_kernel_in_an_operator_trains():
    torch.manual_seed(0)
    module, x = nn.Linear(4, 4), torch.randn(3, 4)
    iteration = Iteration(module, (x,), lambda output: launched(output).square().mean())
    names = [operation.name for operation in trace(iteration).operations]
    assert names.count("launched") == 1
    step = memplan.optimize(
        module, x, loss_fn=iteration.loss_fn, budget="100%", solver="store-all", cache=False
    )
    step(x).backward()
    found = not_none(module.weight.grad)
    module.zero_grad()
    (2 * module(x)).square().mean().backward()
    assert torch.equal(found, not_none(module.weight.grad))
