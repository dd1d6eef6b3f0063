"""All names that torch does not promise to keep, with what they are for. The runtime takes them from here,
those of Inductor from torch_inductor.py, of traces from torch_make_fx.py.

Not promised: names that begin with `_`, modules that do, operators that do, and what its documentation leaves
out (`torch.fx.experimental`, the parts of `torch.utils.flop_counter`, `torch.utils.weak`). All did what they
are for in torch 2.10.0, 2.13.0 and 2.15.0.
"""

# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import cache, partial, wraps
from itertools import islice
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any, TypeVar
from unittest.mock import patch
from weakref import WeakSet

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch import distributed as dist
from torch._C._autograd import (
    _disable_profiler,
    _enable_profiler,
    _get_current_graph_task_keep_graph,
    _prepare_profiler,
    _profiler_enabled,
)
from torch._C._profiler import (
    ProfilerActivity,
    ProfilerConfig,
    ProfilerState,
    RecordScope,
    _ExperimentalConfig,
)
from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_mutation
from torch._ops import OperatorBase, OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
    run_fallback_kernel,
)
from torch.autograd.graph import _engine_run_backward
from torch.optim.optimizer import (
    _default_to_fused_or_foreach,
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
)
from torch.overrides import _get_current_function_mode_stack
from torch.utils import _pytree
from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
)
from torch.utils._pytree import (
    SUPPORTED_NODES,
    GetAttrKey,
    tree_flatten_with_path,
    tree_map,
    tree_unflatten,
)
from torch.utils.flop_counter import conv_flop_count, flop_registry, sdpa_backward_flop_count, sdpa_flop_count
from torch.utils.weak import WeakIdKeyDictionary

from .raw import class_entry, is_one_of

Mode = TypeVar("Mode", bound=FakeTensorMode)
"""A mode of fake tensors."""

__all__ = [
    # Shapes without data, and that a value was asked for which they cannot tell.
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    # An operator, among other callables.
    "OpOverload",
    # Modes that intercept every operator.
    "TorchDispatchMode",
    # A table by tensor that keeps none alive.
    "WeakIdKeyDictionary",
    # FLOPs of operators.
    "conv_flop_count",
    "flop_registry",
    # FLOPs of attention.
    "sdpa_backward_flop_count",
    "sdpa_flop_count",
    # Tensors anywhere in an operator's arguments.
    "tree_map",
]


def in_backward() -> bool:
    """Tell whether autograd runs this code in a backward pass."""
    return torch._C._current_graph_task_id() != -1


OPERATORS = (OperatorBase, OpOverloadPacket)
"""Classes of operators, which fill attributes of theirs when they are first asked."""


class DispatchMode(TorchDispatchMode):
    """Mode of the trace that intercepts every operator, which torch.compile need not look at."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else each call goes through two functions more, and the first one imports Dynamo


_DEVICE_OF = torch.ops.prim.device.default


def asks_for_device(operator: Any, args: Sequence[Any]) -> bool:
    """Tell whether PyTorch asks for a fake tensor's device, as for each call several times.

    Answer by `device_of_fake`, else the question goes through all modes.
    """
    return operator is _DEVICE_OF and type(args[0]) is FakeTensor


def device_of_fake(tensor: FakeTensor) -> torch.device:
    """Return what a fake mode says of a tensor's device."""
    return _META if tensor.fake_mode.in_kernel_invocation else tensor.fake_device


_META = torch.device("meta")

aten: Any = torch.ops.aten
ASKS_FOR_A_NUMBER = aten._local_scalar_dense.default
"""`.item()`."""
FUNCTIONAL_BATCH_NORM = aten._native_batch_norm_legit_functional.default
"""Batch norm that returns its new statistics."""
GROUPED_PRODUCT = getattr(getattr(aten, "_grouped_mm", None), "default", None)
"""Matrix products in groups, since torch 2.8."""
SPLITS_THAT_DENY_IT = (aten.unsafe_split.Tensor, aten.unsafe_split_with_sizes.default)
"""They return views as if these were none; `unsafe_chunk` is made of them."""
UNIQUE = aten._unique2.default
"""`unique`."""
CTC_LOSS, CTC_LOSS_BACKWARD = aten._ctc_loss.default, aten._ctc_loss_backward.default
"""CTC losses of lengths as numbers."""
PACK, PAD_PACKED = "_pack_padded_sequence", "_pad_packed_sequence"
"""Functions that torch.nn.utils.rnn calls."""
RESHAPING_VIEWS = (aten.view.default, aten._unsafe_view.default)
"""Operators that reshape without a copy."""
OLD_CONVOLUTION = aten._convolution
ATTENTION = (
    aten._scaled_dot_product_flash_attention_for_cpu,
    aten._scaled_dot_product_fused_attention_overrideable,
    aten._scaled_dot_product_flash_attention,
    aten._scaled_dot_product_efficient_attention,
    aten._scaled_dot_product_cudnn_attention,
)
"""Fused attention, of whose FLOPs torch's registry lacks some and counts causal ones twice."""
EFFICIENT_BACKWARD = aten._scaled_dot_product_efficient_attention_backward
TO_COPY = aten._to_copy.default
SOFTMAX_BACKWARD = aten._softmax_backward_data
SOFTMAXES = (aten._softmax, SOFTMAX_BACKWARD, aten._log_softmax, aten._log_softmax_backward_data)
BATCH_NORMS = (aten._native_batch_norm_legit, aten._native_batch_norm_legit_functional)
"""Batch norm in training, besides the public `native_batch_norm`."""
ATTENTION_BACKWARD = (
    aten._scaled_dot_product_flash_attention_for_cpu_backward,
    aten._scaled_dot_product_fused_attention_overrideable_backward,
    aten._scaled_dot_product_flash_attention_backward,
    EFFICIENT_BACKWARD,
    aten._scaled_dot_product_cudnn_attention_backward,
)

FUSIBLE_PRIVATE = {
    "pointwise": ("_to_copy", "_prelu_kernel"),
    "summing": (
        *("_softmax", "_softmax_backward_data", "_log_softmax", "_log_softmax_backward_data"),
        *("_safe_softmax", "_native_batch_norm_legit_functional", "_fused_rms_norm"),
    ),
    "views": ("_unsafe_view",),
}
"""Operators of ATen that Inductor compiles, by what they do."""

fused_adam: Any = torch._fused_adam_
fused_adamw: Any = torch._fused_adamw_
fused_sgd: Any = torch._fused_sgd_
"""Function that `torch.optim` calls with `fused=True`, on lists of tensors."""

FAKE_TENSOR_LOGGER = "torch._subclasses.fake_tensor"
"""Logger to which the tracer reports an operation that it cannot trace."""

UNCHECKED_INDEX = (aten._unsafe_index, aten._unsafe_index_put)
"""Indexing that does not look whether indices are in range."""

WRAPPERS = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper"
"""Module of torch's wrappers of modules that save activations in another way."""

MODULE_REGISTERS = ("_parameters", "_buffers", "_modules")
"""The dicts of a module, by the names of its attributes."""
FORWARD_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
RUNS_IN_FORWARD = ("_modules", *FORWARD_HOOKS)
"""Those whose code runs when a module is called."""
HOOK_REGISTERS = (*FORWARD_HOOKS, "_backward_hooks", "_backward_pre_hooks")
VERSION = "_version"
"""A tensor's count of its changes."""

CALLS_FOR_THE_ORDER = ("_functional_assert_", "_functional_sym_constrain_", "_make_dep_token")
"""Prefixes of names of aten's operators that give others a token to wait for, and compute nothing."""

HOOKS_OF_TENSOR: Any = (Tensor._backward_hooks, Tensor._post_accumulate_grad_hooks)
"""The attributes in which a tensor keeps its hooks; to read them says nothing of its values."""

HOLD = "_memplan"
"""The attribute of an offloaded tensor that says who holds its values, see devices/storage/offloaded.py."""

_ATTRIBUTES: Any = vars(Tensor)["__dict__"].__get__

_OF_GRAD: Any = Tensor.grad
GRADIENT_OF_TENSOR: Any = (_OF_GRAD.__get__, _OF_GRAD.__set__)
"""Functions that a mode sees when `.grad` is read or set."""

HOOKS_OF_STEPS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
"""Attributes in which an optimizer keeps the hooks around its steps."""

no_dispatch_modes = _disable_current_modes
no_torch_function = torch._C.DisableTorchFunctionSubclass
"""Contexts: dispatch modes, and `__torch_function__` of subclasses, are left out."""
no_function_modes = torch._C.DisableTorchFunction
"""Context without `__torch_function__`, both of subclasses and of modes."""


def leaves_and_form(nest: Any) -> tuple[dict[str, Any], Callable[[list[Any]], Any]]:
    """Return the leaves of nested containers, by their path (`hidden_states.0`), and a function that makes
    the nest of leaves.

    Containers that libraries have registered are included.
    """
    leaves, spec = tree_flatten_with_path(nest)
    named = {".".join(_key_text(key) for key in path): leaf for path, leaf in leaves}
    return named, lambda leaves: tree_unflatten(leaves, spec)


def tree_leaves(nest: Any) -> list[Any]:
    """Return the leaves of nested containers; fast for what operators are given."""
    found: list[Any] = []
    _gather(nest, found)
    return found


_LEAVES = {FakeTensor, Tensor, nn.Parameter, int, float, bool, str, type(None), torch.dtype, torch.device}


def _gather(nest: Any, found: list[Any]) -> None:
    kind = type(nest)
    if kind in _LEAVES:
        found.append(nest)
    elif kind is tuple or kind is list:
        for part in nest:
            _gather(part, found)
    elif kind is dict:
        for part in nest.values():
            _gather(part, found)
    else:
        found += _pytree.tree_leaves(nest)


def _key_text(key: Any) -> str:
    if isinstance(key, GetAttrKey):
        return key.name
    return str(key.idx if hasattr(key, "idx") else key.key)


def wraps_others(tensor: Tensor) -> bool:
    """Tell whether a tensor is made of other tensors, and has no memory of its own."""
    return hasattr(type(tensor), "__tensor_flatten__") and not isinstance(tensor, FakeTensor)


def schema_of(operator: Any) -> Any:
    """Return an operator's schema: name, arguments and defaults, and whether it changes any."""
    return operator._schema


def written_tensors(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    """Yield the tensors among the arguments of a call that the operator changes."""
    for place, argument in enumerate(schema_of(operator).arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = kwargs.get(argument.name) if place >= len(args) else args[place]
            yield from (leaf for leaf in tree_leaves(given) if isinstance(leaf, Tensor))


def functions_named(name: str) -> Iterator[Callable[..., Any]]:
    """Yield PyTorch's functions in C with an operator's name: of the package, of tensors, of `nn.functional`.

    Functions written in Python are not among them.
    """
    for place in (torch, torch.Tensor, torch._C._nn):
        function = getattr(place, name, None)
        if isinstance(function, BuiltinFunctionType | MethodDescriptorType):
            yield function


def inner_function(operator: Any) -> Callable[..., Any]:
    """Return the function in C that an operator's `__call__` calls, or the operator if it has none."""
    return getattr(operator, "_op", operator)


def can_decompose(operator: Any) -> bool:
    """Tell whether an operator is made of others, by its own rule."""
    return operator._can_decompose()


def parts_of_wrapper(tensor: Tensor) -> list[Tensor]:
    """Return the tensors that a wrapper is made of; none if it is not a wrapper."""
    if not wraps_others(tensor):
        return []
    wrapper: Any = tensor
    names, _context = wrapper.__tensor_flatten__()
    return [getattr(wrapper, name) for name in names]


def coo_parts(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the indices and the values of a COO tensor, coalesced or not."""
    return matrix._indices(), matrix._values()


def memory_of(tensor: Tensor) -> int:
    """Return the identity of a tensor's memory, real or fake, as long as the tensor lives.

    An offloaded tensor stays so: it shares its memory with none.
    """
    with no_torch_function():
        return tensor.untyped_storage()._cdata


def identity_of(generator: torch.Generator) -> int:
    """Return a number that is equal for two objects that stand for one generator: dispatch makes new ones."""
    return generator._cdata


def default_store() -> dist.Store:
    """Return the store over which the processes of the default group have met."""
    return dist.distributed_c10d._get_default_store()


def timeout_of(group: dist.ProcessGroup, device: torch.device) -> timedelta:
    """Return after how long a collective of the group fails."""
    return group._get_backend(device).options._timeout


def connects_processes(group: dist.ProcessGroup) -> bool:
    """Tell whether the group's processes are connected by gloo, for tensors on the CPU."""
    try:
        backend = group._get_backend(torch.device("cpu"))
    except RuntimeError:  # NCCL alone
        return False
    return type(backend).__name__ == "ProcessGroupGloo"


def coalesced(group: dist.ProcessGroup | None) -> AbstractContextManager[Any]:
    """Return a context whose collectives of the group, all of one kind, run as one when it ends."""
    return dist.distributed_c10d._coalescing_manager(group)


def parameter_at(tensor: Tensor) -> Tensor:
    """Return a parameter in the tensor's memory, made as `nn.Parameter` makes it."""
    return Tensor._make_subclass(nn.Parameter, tensor.detach())


def dynamo_is_imported() -> bool:
    """Tell whether the modules of torch.compile are there, which the first fake mode imports."""
    return "torch._dynamo" in sys.modules


def version_of(tensor: Tensor) -> int:
    """Return how often the tensor has been changed in place."""
    return -1 if tensor.is_inference() else tensor._version


def set_version(tensor: Tensor, version: int) -> None:
    """Set the number of changes that autograd counts for the tensor; nothing for one without a count (-1)."""
    if version >= 0 and not tensor.is_inference() and tensor._version != version:
        torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))


def operator_without_fake_kernel(error: BaseException) -> Any:
    """Return the operator at which a trace failed for lack of a kernel for fake tensors; None for another
    reason.

    PyTorch runs some of those on zeros instead, which the operator may refuse by an error of its own.
    """
    if isinstance(error, UnsupportedOperatorException):
        return error.func
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code is run_fallback_kernel.__code__:
            return trace.tb_frame.f_locals["func"]
        trace = trace.tb_next
    return None


def is_made(module: nn.Module) -> bool:
    """Tell whether `nn.Module.__init__` has run."""
    return all(name in vars(module) for name in RUNS_IN_FORWARD)


def has_communication_hooks(module: nn.Module) -> bool:
    """Tell whether a DistributedDataParallel does something else with the gradients than sum them."""
    return bool(vars(module).get("_comm_hooks"))


def call_in_parallel(
    parallel: nn.Module, function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> Any:
    """Call a function as a DistributedDataParallel calls its module: buffers are sent before, gradients are
    averaged in backward."""
    around: Any = parallel
    arguments, keywords = around._pre_forward(*arguments, **keywords)
    return around._post_forward(function(*arguments, **keywords))


def has_hooks(tensor: Tensor) -> bool:
    """Tell whether something is to be done with the tensor's gradient."""
    return bool(tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None))


def any_has_hooks(tensors: Sequence[Tensor]) -> bool:
    """Tell whether one of the tensors has hooks; without `__torch_function__`."""
    of_gradient, after_accumulation = HOOKS_OF_TENSOR
    return any(map(of_gradient.__get__, tensors)) or any(map(after_accumulation.__get__, tensors))


@contextmanager
def functionalising() -> Generator[None]:
    """Turn changes in place of functional tensors into new tensors.

    `torch.func.functionalize` does so too, but with functorch's own decompositions of some losses and
    dropouts, which round differently.
    """
    torch._enable_functionalization(reapply_views=True)
    try:
        yield
    finally:
        torch._disable_functionalization()


def to_functional(tensor: Tensor) -> Tensor:
    return torch._to_functional_tensor(tensor)


def from_functional(tensor: Tensor) -> Tensor:
    """Return the tensor that a functional one wraps, with all changes applied."""
    if not torch._is_functional_tensor(tensor):
        return tensor
    torch._sync(tensor)
    return torch._from_functional_tensor(tensor)


def change_functional(tensor: Tensor, new: Tensor) -> Tensor:
    """Make the functional tensor `tensor` have the values of `new` from now on, as a change in place does."""
    torch._functionalize_replace(tensor, from_functional(new))
    torch._functionalize_commit_update(tensor)
    torch._functionalize_sync(tensor)
    return tensor


@contextmanager
def checkpoints_replaced(
    reentrant: Callable[..., Any], surroundings: Callable[..., Generator[None]]
) -> Generator[None]:
    """Replace the inner functions of `torch.utils.checkpoint`, since libraries bind its outer ones early.

    reentrant: what a reentrant checkpoint calls.
    surroundings: a generator that surrounds the function that any other checkpoint runs.
    """
    with (
        patch.object(torch.utils.checkpoint.CheckpointFunction, "apply", staticmethod(reentrant)),
        patch.object(torch.utils.checkpoint, "_checkpoint_without_reentrant_generator", surroundings),
    ):
        yield


def norms_replaced(forward: Callable[[Callable[..., Tensor]], Callable[..., Tensor]]) -> Any:
    """Return a context in which BatchNorms have the forward that `forward` makes of theirs."""
    norm: Any = nn.modules.batchnorm._BatchNorm
    return patch.object(norm, "forward", forward(norm.forward))


def check_input_of_norm(norm: nn.Module, x: Tensor) -> None:
    """Raise ValueError if the input has another number of dimensions than the BatchNorm takes, as its
    forward does.
    """
    own: Any = norm
    own._check_input_dim(x)


def function_of(node: Any) -> Any:
    """Return the `torch.autograd.Function` of an autograd node; None for a node of another kind."""
    kind: Any = type(node)
    return getattr(kind, "_forward_cls", None)


def function_arguments_replaced(change: Callable[[Any], Any]) -> Any:
    """Return a context in which every `torch.autograd.Function` is applied to `change(arguments)`."""
    apply: Any = vars(torch.autograd.Function)["apply"]  # a class method, of C from torch 2.15 on

    def applied(cls: Any, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = change((args, kwargs))
        return apply.__get__(None, cls)(*args, **kwargs)

    return patch.object(torch.autograd.Function, "apply", classmethod(applied))


def functions_applied(call: Callable[[Any, Callable[..., Any], Any, Any], Any]) -> Any:
    """Return a context in which every `torch.autograd.Function` is applied by `call(class, apply, arguments,
    keywords)`.
    """
    apply: Any = vars(torch.autograd.Function)["apply"].__func__

    def applied(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return call(cls, partial(apply, cls), args, kwargs)

    return patch.object(torch.autograd.Function, "apply", classmethod(applied))


@contextmanager
def fake_results_forgotten() -> Generator[None]:
    """Forget which fake tensors operators returned within the block.

    torch keeps that forever for each operator and shapes, which nobody needs once there is a plan for them.
    """
    kept = FakeTensorMode.cache
    before = len(kept)  # in the order in which they came
    try:
        yield
    finally:
        for key in list(islice(kept, before, None)):
            kept.pop(key, None)


@contextmanager
def uncompiled() -> Generator[None]:
    """Run what `torch.compile` has compiled as it was before, in a trace too."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled, then
        yield
        return
    config: Any = torch._dynamo.config
    before = config.error_on_nested_fx_trace
    # Not by `config.patch`: since torch 2.13 each patch leaves a variable in the thread's context forever.
    config.error_on_nested_fx_trace = False
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        config.error_on_nested_fx_trace = before


def addresses_refused(mode: FakeTensorMode) -> Any:
    """Return a context that raises RuntimeError if code asks for the address of a fake tensor, which has
    none.

    Native code that gets zero instead ends the process.
    """
    return patch.object(mode, "_allow_unsafe_data_ptr_access", False)


def launches_nothing(mode: type[Mode]) -> type[Mode]:
    """Decorate a mode of fake tensors: a launch of a Triton kernel in it does nothing, as in PyTorch's own.

    The kernel is one of `torch.library.triton_op`, whose fake kernel is the operator's own code.
    """

    def nothing(mode: FakeTensorMode, **_launch: Any) -> None:
        del mode

    triton_kernel_wrapper_mutation.py_impl(mode)(nothing)
    return mode


def fakes_retyped(retype: Callable[[Tensor, type[Tensor]], Tensor]) -> Any:
    """Return a context in which `as_subclass` of a fake tensor is `retype`.

    PyTorch's own returns a tensor that is not fake any more, without data.
    """
    return patch.object(FakeTensor, "as_subclass", retype, create=True)


def dispatches(tensor: Tensor) -> bool:
    """Tell whether the tensor's class computes in its own way (`__torch_dispatch__`)."""
    return type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__


@contextmanager
def distributions_not_validated() -> Generator[None]:
    """Switch off the validation of distributions, as `set_default_validate_args(False)` does, and restore
    it.
    """
    with patch.object(torch.distributions.Distribution, "_validate_args", False):
        yield


def below_autograd() -> Any:
    """Return a context in which calls go straight to the kernels: nothing is recorded for a backward."""
    return torch._C._AutoDispatchBelowAutograd()


def parameters_of(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """Return the module's own parameters, to be replaced in place, past its `__setattr__`."""
    return module._parameters


@contextmanager
def with_first_parts(module: nn.Module, number: int) -> Generator[None]:
    """Leave only a module's first parts in it meanwhile."""
    every = module._modules
    module._modules = dict(list(every.items())[:number])
    try:
        yield
    finally:
        module._modules = every


def buffers_of(module: nn.Module) -> dict[str, Tensor | None]:
    return module._buffers


def pytree_node(kind: type) -> Any:
    """Return how PyTorch's pytrees flatten and unflatten a registered class; None for others."""
    if is_one_of(kind, _OWN_NODES):
        return None
    # A metaclass of the user's may have another hash, and refuse to tell it.
    hashable = class_entry(type(kind), "__hash__") is object.__hash__
    return SUPPORTED_NODES.get(kind) if hashable else None


_OWN_NODES = (tuple, list, dict, OrderedDict, defaultdict, deque)


def module_structure(module: nn.Module) -> tuple[tuple[Any, ...], tuple[int, ...], list[str]]:
    """Return the structure of a module: its submodules, the identities of its hooks, the names of its own
    tensors.

    Without hooks that only look on: transformers installs its own at a model's first call, and memplan after
    a sharded plan.
    """
    own: Any = module
    registers = (own._forward_pre_hooks, own._forward_hooks, own._backward_pre_hooks, own._backward_hooks)
    hooks = [id(hook) for register in registers for hook in register.values() if not looks_on(hook)]
    parts = (*module._modules, *map(id, module._modules.values()))
    own_tensors = (*module._parameters.items(), *module._buffers.items())
    return parts, tuple(hooks), [name for name, tensor in own_tensors if tensor is not None]


def looks_on(hook: Any) -> bool:
    """Tell whether a module's hook is known to change nothing that the module computes."""
    home = getattr(hook, "__module__", None) or ""
    return home == "transformers.utils.output_capturing" or home.endswith(".devices.sharded.direct_calls")


def hooks_of_all_modules() -> list[int]:
    """Return the identities of hooks that `register_module_forward_hook` and the like have registered."""
    kinds = ("forward_pre", "forward", "backward_pre", "backward")
    registers = (getattr(torch.nn.modules.module, f"_global_{kind}_hooks") for kind in kinds)
    return [id(hook) for register in registers for hook in register.values()]


def hooks_of_steps(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Return the hooks on the steps of this optimizer, and those of others than PyTorch on all steps."""
    every = (*_global_optimizer_pre_hooks.values(), *_global_optimizer_post_hooks.values())
    others = [hook for hook in every if getattr(hook, "__module__", "") != "torch.profiler"]
    return [*(hook for name in HOOKS_OF_STEPS for hook in getattr(optimizer, name).values()), *others]


def modes_around() -> list[Any]:
    """Return the function modes and dispatch modes that are active, without PyTorch's own and memplan's."""
    if not (torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack()):
        return []
    modes = (*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack())
    own = ("torch", __name__.partition(".")[0])
    return [mode for mode in modes if type(mode).__module__.partition(".")[0] not in own]


def hooks_of_saved_tensors() -> tuple[Any, Any] | None:
    """Return the innermost `saved_tensors_hooks` that are active."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False)


def applied(module: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
    """Apply a change to all tensors of the module, as `Module.to`, `half` and `cuda` do."""
    module._apply(change)


def applied_by(apply: Callable[..., nn.Module]) -> Any:
    """Return a context in which `apply` replaces `_apply` in all modules that do not override it."""
    return patch.object(nn.Module, "_apply", apply)


def says_compiling() -> bool:
    """Return what `torch.compiler.is_compiling()` answers outside of a compilation."""
    return torch.compiler._is_compiling_flag


def say_compiling(flag: bool) -> None:
    torch.compiler._is_compiling_flag = flag


def count_as_stepped(optimizer: torch.optim.Optimizer) -> None:
    """Mark the optimizer as stepped: learning rate schedules warn of optimizers whose `step` was not
    called.
    """
    vars(optimizer)["_opt_called"] = True


def gradients_of(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], cotangents: Sequence[Tensor]
) -> Sequence[Tensor | None]:
    """Return `torch.autograd.grad` of the outputs, None for inputs that none of them follows from.

    cotangents: gradients of the outputs.

    Function modes stay on in the backward of a `torch.autograd.Function`: that calls itself without them.
    """
    return _engine_run_backward(
        tuple(outputs), tuple(cotangents), False, False, tuple(inputs), True, accumulate_grad=False
    )


def graph_is_kept() -> bool:
    """Tell, within a backward, whether it may be called another time (`retain_graph`)."""
    return _get_current_graph_task_keep_graph()


def norm_of(tensor: Tensor) -> Tensor:
    """Return the tensor's 2-norm, by the kernel with which `clip_grad_norm_` takes those of many."""
    return torch._foreach_norm([tensor], 2.0)[0]


def has_fake_kernel(name: str) -> bool:
    """Tell whether PyTorch knows the shapes of an operator's results; name: like `aten::mm`."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, "Meta")


def kernel_for_lists(name: str) -> Callable[..., Any]:
    """Return an elementwise kernel over lists of tensors; name: of the operation, like `add_`."""
    return getattr(torch, f"_foreach_{name}")


def takes_lists(parameters: Sequence[Tensor]) -> bool:
    """Tell whether optimizers step these parameters by kernels for lists (`foreach`) by default."""
    return _default_to_fused_or_foreach(list(parameters), False)[1]


def check_and_unscale(gradient: Tensor, infinite: Tensor, inverse: Tensor) -> None:
    """Multiply the gradient by the inverse scale in place, as `GradScaler.unscale_` does.

    infinite: set to 1 if the gradient is not finite.
    """
    torch._amp_foreach_non_finite_check_and_unscale_([gradient], infinite, inverse)


def takes_scaled_gradients(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether `GradScaler.step` leaves gradients as they are and hands the optimizer the scale."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def report_infinite(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, infinite: Tensor) -> None:
    """Record for `scaler.update()` whether gradients are infinite, as `scaler.step(optimizer)` does.

    infinite: 1.0 or 0.0.
    """
    scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"] = {infinite.device: infinite}


def reported_infinite(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> bool:
    """Return whether `scaler.step(optimizer)` has found infinite gradients. Waits for the device."""
    return any(scaler._found_inf_per_device(optimizer).values())


def grouped_by_dtype(tensors: list[Tensor]) -> list[int]:
    """Return the tensors' positions, those of one dtype together, as `clip_grad_norm_` groups gradients of
    one device.
    """
    groups: Any = _group_tensors_by_device_and_dtype([tensors], with_indices=True)  # pyright: ignore
    return [place for _tensors, places in groups.values() for place in places]


def attributes_of(tensor: Tensor) -> dict[str, Any]:
    """Return a tensor's `__dict__`; of an offloaded one without having it back."""
    return _ATTRIBUTES(tensor)


def empty_for_nobody(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Create a tensor without memory, whose address nobody gets: C code that asks for it raises
    RuntimeError.
    """
    made = torch.empty(0, dtype=dtype, device=device)
    torch._C._set_throw_on_mutable_data_ptr(made)
    return made


def profiler_is_on() -> bool:
    """Tell whether PyTorch's one profiler records, for whichever thread."""
    return _profiler_enabled() or bool(getattr(torch.autograd.profiler, "_is_profiler_enabled", False))


def profiler_is_prepared() -> bool:
    """Return whether a profiler of the user's warms up, between `prepare_trace` and `start_trace`."""
    return any(
        getattr(each, "entered", False) and getattr(each, "kineto_results", None) is None
        for each in _profilers()
    )


@cache
def _profilers() -> WeakSet[Any]:
    """Return the profilers that have been prepared: PyTorch keeps no list of them.

    From the first call on each notes itself; those of before are looked for among all objects, once.
    """
    kind = torch.autograd.profiler.profile
    prepare = kind._prepare_trace
    noted: WeakSet[Any] = WeakSet()

    @wraps(prepare)
    def prepare_and_note(self: Any) -> None:
        noted.add(self)  # first: a signal's handler may raise once the trace is prepared
        prepare(self)

    kind._prepare_trace = prepare_and_note
    for each in gc.get_objects():
        if issubclass(type(each), kind):
            noted.add(each)
    return noted


def record_allocations() -> None:
    """Record the CPU allocator's events, no operations: about 10 µs a block. `torch.profiler` can't."""
    config = ProfilerConfig(ProfilerState.KINETO, False, True, False, False, False, _ExperimentalConfig())
    enable: Any = _enable_profiler  # its stub lacks the third argument, the scopes to record
    _prepare_profiler(config, {ProfilerActivity.CPU})
    enable(config, {ProfilerActivity.CPU}, {RecordScope.USER_SCOPE})


def recorded_allocations() -> Any:
    """Stop recording, and return the record; its `experimental_event_tree()` holds the events."""
    return _disable_profiler()


def grow_segments() -> None:
    """Let CUDA's allocator use expandable segments, unless the environment has settings for it."""
    if not (os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or os.environ.get("PYTORCH_ALLOC_CONF")):
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")


def drop_product_workspaces() -> None:
    """Free cuBLAS' memory, until the next product."""
    torch._C._cuda_clearCublasWorkspaces()


# ── the dispatcher's tables ─────────────────────────────────────────────────────────────────────────


def overload(name: str) -> Any:
    """Return an ATen operator by its name: `mm`, `sum.dim_IntList`."""
    packet, _dot, overloaded = name.partition(".")
    return getattr(getattr(aten, packet), overloaded or "default")


@cache
def autocast_operators(key: str) -> frozenset[str]:
    """Return the names of the ATen operators that have an entry of their own for a dispatch key."""
    names = torch._C._dispatch_get_registrations_for_dispatch_key(key)
    return frozenset(name.removeprefix("aten::") for name in names if name.startswith("aten::"))


def autocast_excluded() -> Any:
    """Return a context in which the CPU's autocast is off, as in the kernels of its own operators."""
    keys: Any = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
    return torch._C._ExcludeDispatchKeyGuard(keys)


@contextmanager
def overriding_silently() -> Generator[None]:
    """Let kernels be overridden without the warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators", UserWarning)
        yield


def composite(operator: Any) -> Callable[..., Any]:
    """Return an operator's implementation by others, as in C++: Python's, `decompose`, can differ."""
    key: Any = torch._C.DispatchKey.CompositeImplicitAutograd
    return partial(operator._op_dk, key)


def attention_of(model: Any) -> str | None:
    """Return the attention that a model of transformers computes with: 'eager', 'sdpa'."""
    return getattr(model.config, "_attn_implementation", None)


CAST: Any = torch.ops.aten._to_copy.default
"""The operator that `to` calls for another dtype or device."""
