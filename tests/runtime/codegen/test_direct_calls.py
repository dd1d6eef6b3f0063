"""Generated code calls operators by PyTorch's functions in C, and folds chains of views.

The oracles: the operator itself, called with the same tensors, and the chain, one view after the other.
"""

from __future__ import annotations

import random
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any

import pytest
import torch
from iterations import ITERATIONS
from memplan.devices.measuring.synthetic_inputs import SyntheticInputs
from memplan.graphs.graph import Kind
from memplan.program.program import Call, Program, Ref, Setting, Storage, Value
from memplan.runtime.codegen.direct_calls import direct_call
from memplan.runtime.codegen.views import Same, Views
from memplan.torch_support.below_autograd import as_traced
from memplan.tracing.output_layouts import residents, trace_real_layouts
from torch import Tensor
from torch.utils import _pytree as pytree

aten: Any = torch.ops.aten
CPU = torch.device("cpu")


def tensors_of(results: Any) -> list[Tensor]:
    return [each for each in pytree.tree_leaves(results) if isinstance(each, Tensor)]


def content(results: Any) -> list[tuple[Any, ...]]:
    """Dtype, layout and bytes of each tensor."""
    found: list[tuple[Any, ...]] = []
    for tensor in tensors_of(results):
        flat = tensor.detach().resolve_conj().contiguous().flatten()
        found.append((tensor.dtype, tensor.shape, tensor.stride(), flat.view(torch.uint8).numpy().tobytes()))
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ITERATIONS)
def test_each_call_of_a_program_has_the_bits_of_its_operator(name: str) -> None:
    iteration = ITERATIONS[name]()
    program = trace_real_layouts(iteration)
    walk = SyntheticInputs(program, residents(program, iteration))
    direct = 0
    with as_traced(program.device):
        for operation in program.operations:
            bound = walk.call()
            function = direct_call(program, operation.call).target
            direct += function is not operation.call.target
            torch.manual_seed(5)
            expected = content(bound())
            torch.manual_seed(5)
            repeated = content(bound())
            torch.manual_seed(5)
            found = content(function(*bound.args, **bound.keywords))
            for one, other, third in zip(expected, repeated, found, strict=True):
                assert third[:3] == one[:3]
                # Memory that nobody has written, of `empty`; oneDNN's workspace has some too.
                target = str(operation.call.target)
                unwritten = "empty" in target or (one[0] == torch.uint8 and "mkldnn_rnn" in target)
                assert third == one or one != other or unwritten
            walk.advance()
    assert direct > len(program.operations) / 2


def program_of(*forms: Value) -> Program:
    storages = [Storage("x", 4, Kind.ACTIVATION, None) for _ in range(1 + max(x.storage for x in forms))]
    return Program(CPU, storages, forms, [], {}, {}, {}, {}, {}, None, {})


def float32(*shape: int) -> Value:
    return Value(0, shape, torch.empty(shape).stride(), 0, torch.float32, CPU)


X, NUMBER = Ref(0), Ref(1)
FUNCTIONS = {
    "add": (aten.add.Tensor, (X, X), {"alpha": 2}, torch.add),
    "a number": (aten.mul.Tensor, (X, 0.5), {}, torch.mul),
    "a setting": (aten.mul.Tensor, (X, Setting(0, 0.5)), {}, torch.mul),
    "of tensors": (aten.view.default, (X, [3, -1]), {}, Tensor.view),
    "of nn": (aten.gelu.default, (X,), {"approximate": "tanh"}, torch.nn.functional.gelu),
    "a list of tensors": (aten.cat.default, ([X, X], 1), {}, torch.cat),
    "power": (aten.pow.Tensor_Scalar, (X, 2), {}, torch.pow),
    "power of a tensor": (aten.pow.Tensor_Tensor, (X, NUMBER), {}, torch.pow),
    # torch.mul of a number calls mul.Tensor.
    "another overload": (aten.mul.Scalar, (X, 0.5), {}, None),
    "the sum of all": (aten.sum.dim_IntList, (X, None), {}, torch.sum),
    "a function in Python": (aten.split.Tensor, (X, 1), {}, None),
    "no function": (aten.tanh_backward.default, (X, X), {}, None),
    "no tensor": (aten.full.default, ([2], 1.0), {}, None),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_function(name: str) -> None:
    target, arguments, keywords, expected = FUNCTIONS[name]
    program = program_of(float32(2, 3), float32())
    made = direct_call(program, Call(target, arguments, keywords, (2,), several=False))
    if expected is None:
        assert made.target not in (target, torch.mul, torch.sum, torch.full)
        assert made.arguments == arguments
    else:
        assert made.target is expected
        assert isinstance(made.target, BuiltinFunctionType | MethodDescriptorType)


def test_what_is_no_operator_stays() -> None:
    call = Call(torch.relu, (X,), {}, (1,), several=False)
    assert direct_call(program_of(float32(2, 3)), call) is call


# ── views ───────────────────────────────────────────────────────────────────────────────────────────


def some_view(rng: random.Random, x: Tensor) -> tuple[Any, tuple[Any, ...], int | None]:
    """A view of x at random: operator, arguments after x, index of the result if there are several."""
    dims = list(range(x.dim()))
    dim = rng.choice(dims) if dims else 0
    kinds: list[tuple[Any, tuple[Any, ...], int | None]] = [
        (aten.unsqueeze.default, (rng.randint(0, x.dim()),), None),
        (aten.permute.default, (rng.sample(dims, len(dims)),), None),
        (aten.detach.default, (), None),
        (aten.alias.default, (), None),
        (aten.view.default, (list(x.shape),), None),
        (aten.expand.default, ([2, *x.shape],), None),
    ]
    if dims:
        size = x.shape[dim]
        at = rng.randrange(size)
        kinds += [
            (aten.select.int, (dim, at), None),
            (aten.slice.Tensor, (dim, at, size, rng.choice([1, 2])), None),
            (aten.transpose.int, (dim, rng.choice(dims)), None),
            (aten.split.Tensor, (max(1, size // 2), dim), rng.randrange(-(-size // max(1, size // 2)))),
            (aten.unbind.int, (dim,), at),
            (aten.squeeze.dim, (dim,), None),
        ]
        if x.is_contiguous():
            kinds += [(aten.view.default, ([-1],), None), (aten._unsafe_view.default, ([1, -1],), None)]
    return rng.choice(kinds)


def chain(rng: random.Random, x: Tensor, *, of_caller: bool) -> tuple[Program, list[Tensor]]:
    """A program of views, each of the one before, and these tensors, x first."""
    tensors, calls = [x], dict[int, Call]()
    for number in range(1, rng.randint(2, 6)):
        target, rest, index = some_view(rng, tensors[-1])
        made = target(tensors[-1], *rest)
        several = index is not None
        outputs = tuple(number if i == index else None for i in range(len(made))) if several else (number,)
        calls[number] = Call(target, (Ref(number - 1), *rest), {}, outputs, several=several)
        tensors.append(made[index] if several else made)
    forms = [Value(0, tuple(t.shape), t.stride(), int(t.storage_offset()), t.dtype, CPU) for t in tensors]
    storages = [Storage("x", 4, Kind.ACTIVATION, None)]
    inputs = {"x": 0} if of_caller else {}
    return Program(CPU, storages, forms, [], calls, {}, {}, inputs, {}, None, {}), tensors


def result(call: Call, base: Tensor, value: int) -> Tensor:
    made = call.target(base, *call.arguments[1:])
    return made[call.outputs.index(value)] if call.several else made


def geometry(tensor: Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.data_ptr()


@pytest.mark.parametrize("seed", range(300))
def test_a_chain_of_views_is_the_chain(seed: int) -> None:
    """From any value that has a variable, and of a caller's tensor that begins elsewhere in its memory."""
    rng = random.Random(seed)
    shape = [rng.randint(1, 4) for _ in range(rng.randint(1, 4))]
    x = torch.arange(200.0)[: torch.Size(shape).numel()].view(shape)
    if rng.random() < 0.5:
        x = x.permute(rng.sample(range(x.dim()), x.dim()))
    of_caller = rng.random() < 0.5
    program, tensors = chain(rng, x, of_caller=of_caller)
    start = x if not of_caller else torch.arange(300.0).as_strided(x.shape, x.stride(), 7)
    made, calls = {0: start}, 0
    expected = start
    for number in range(1, len(tensors)):
        expected = result(program.views[number], expected, number)
    last = len(tensors) - 1
    need = [last]
    while need:
        found = Views(program).make(need[-1], made)
        base = found.base if isinstance(found, Same) else found.arguments[0].value
        if base not in made:
            need.append(base)
            continue
        value, calls = need.pop(), calls + 1
        if isinstance(found, Same):
            made[value] = made[base]
            continue
        made[value] = result(found, made[base], value)
    assert geometry(made[last]) == geometry(expected)
    assert calls <= last
    assert of_caller or calls == 1


@pytest.mark.parametrize(
    ("target", "dtype"),
    [
        (aten._conj.default, torch.complex64),
        (aten._neg_view.default, torch.float32),
        (aten.view_as_real.default, torch.complex64),
    ],
)
def test_views_of_other_values_are_not_folded(target: Any, dtype: torch.dtype) -> None:
    x = torch.ones(2, 3, dtype=dtype)
    forms = [x, target(x), target(x).transpose(0, 1)]
    values = [Value(0, tuple(t.shape), t.stride(), 0, t.dtype, CPU) for t in forms]
    calls = {
        1: Call(target, (Ref(0),), {}, (1,), several=False),
        2: Call(aten.transpose.int, (Ref(1), 0, 1), {}, (2,), several=False),
    }
    program = Program(
        CPU, [Storage("x", 4, Kind.ACTIVATION, None)], values, [], calls, {}, {}, {}, {}, None, {}
    )
    assert Views(program).make(2, {0}) is calls[2]
    assert Views(program).make(1, {0}) is calls[1]


def test_a_result_is_a_tensor_of_its_own() -> None:
    """A caller may change the form of one, and the other stays."""
    x = torch.ones(2)
    values = [Value(0, (2,), (1,), 0, x.dtype, CPU)] * 2
    call = Call(aten.detach.default, (Ref(0),), {}, (1,), several=False)
    storages = [Storage("x", 4, Kind.ACTIVATION, None)]
    program = Program(CPU, storages, values, [], {1: call}, {}, {}, {}, {}, None, {})
    assert Views(program).make(1, {0}) == Same(0)
    returned = Program(CPU, storages, values, [], {1: call}, {}, {}, {}, {}, None, {}, outputs={"y": 1})
    assert Views(returned).make(1, {0}) is call
