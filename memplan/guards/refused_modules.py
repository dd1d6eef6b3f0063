"""Modules and tensors that can't be in a plan: refused before the trace, in one line.

Modules of several processes, scripts, hooks of parameters, tensors that are not one block of memory.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..devices.sharded.local_tensors import local_tensor
from ..graphs.errors import InputError
from ..model.iteration import Iteration
from ..torch_support.hints import NESTED, SPARSE
from ..torch_support.reach import is_of_user_class
from ..torch_support.torch_fakes import FakeTensor, dispatches
from ..torch_support.torch_modules import WRAPPERS
from ..torch_support.torch_tensors import has_hooks, wraps_others


def refuse(iteration: Iteration) -> None:
    """Raise InputError, one line, for a module that can't be in a plan."""
    module = iteration.module
    for path, part in module.named_modules():
        name = f"{path or 'the module'} is a {type(part).__name__}"
        # By name: isinstance would import parts of torch.distributed that not every build has.
        kinds = {(kind.__module__, kind.__name__) for kind in type(part).__mro__}
        if (WRAPPERS, "OffloadWrapper") in kinds:
            raise InputError(
                f"{name}, which keeps activations in host memory its own way: plan the module without "
                "offload_wrapper; give optimize a machine= with host memory, and the plan offloads them"
            )
        # A CheckpointWrapper calls torch.utils.checkpoint, which the trace replaces.
        if any(place.startswith("torch.distributed.") for place, _ in kinds if place != WRAPPERS):
            raise InputError(
                f"{name}, whose communication can't be planned: plan the module inside, on one process"
            )
        if isinstance(part, torch.jit.ScriptModule):
            raise InputError(f"{name} of torch.jit, which can't be traced: plan the module it was made from")
        # On one device it only calls its module.
        if isinstance(part, nn.DataParallel) and len(part.device_ids) > 1:
            raise InputError(f"{name} on {len(part.device_ids)} devices: plan the module inside, on one")
    for name, parameter in module.named_parameters():
        if type(parameter).__module__.startswith("torch.distributed.") and iteration.peers is None:
            raise InputError(
                f"{name} is a {type(parameter).__name__}, spread over processes: it can't be planned"
            )
        refuse_hooks(name, parameter)
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        tensor = local_tensor(tensor) if iteration.peers is not None else tensor
        refuse_layout(name, tensor)
        kind = type(tensor)
        if wraps_others(tensor):
            raise InputError(
                f"{name} is a {kind.__name__}, a tensor that wraps others, whose memory no plan sees: keep "
                "its parts as buffers, and make the weight of them in forward, as with "
                'parametrize.register_parametrization(layer, "weight", torchao.utils.UnwrapTensorSubclass())'
            )
        refuse_class(name, tensor)


def refuse_layout(name: str, tensor: Tensor) -> None:
    """Raise InputError, one line, unless the tensor is in one block of memory."""
    if tensor.is_nested:
        raise InputError(f"{name} is a nested tensor: {NESTED}")
    if tensor.layout != torch.strided:
        layout = str(tensor.layout).removeprefix("torch.")
        advice = SPARSE if layout.startswith("sparse") else "make it dense, by to_dense()"
        raise InputError(f"{name} is a tensor of layout {layout}, which can't be planned: {advice}")


_HARMLESS = frozenset(
    {
        *("__new__", "__init__", "__init_subclass__", "__repr__", "__str__", "__format__", "__dir__"),
        *(
            "__deepcopy__",
            "__reduce__",
            "__reduce_ex__",
            "__getstate__",
            "__setstate__",
            "__torch_dispatch__",
        ),
        *("__doc__", "__dict__", "__module__", "__annotations__", "__slots__", "__weakref__"),
    }
)
"""Names of a class of tensors that change nothing of what is computed."""


def refuse_class(name: str, tensor: Tensor) -> None:
    """Raise InputError, one line, if the user's own class of the tensor defines what its operators
    compute.

    In a trace the tensor is one like others.
    """
    for base in type(tensor).__mro__:
        if issubclass(base, Tensor) and is_of_user_class(base):
            # Methods of its own are called by name, and traced; overridden ones run inside operators.
            own = [each for each in vars(base) if each not in _HARMLESS and hasattr(Tensor, each)]
            if own:
                raise InputError(
                    f"{name} is a {type(tensor).__name__} with its own {own[0]}, which a trace does not "
                    "follow: give it as a torch.Tensor, by as_subclass(torch.Tensor), and write what that "
                    "does in forward"
                )


def refuse_input(name: str, tensor: Tensor) -> None:
    """Raise InputError, one line, for an input that is not an ordinary tensor in one block of memory."""
    refuse_layout(f"input {name}", tensor)
    if dispatches(tensor) and not isinstance(tensor, FakeTensor):
        raise InputError(
            f"input {name} is a {type(tensor).__name__}, a tensor that computes its own way, which no plan "
            "follows: give its parts as inputs of their own"
        )
    refuse_class(f"input {name}", tensor)


def refuse_hooks(name: str, parameter: Tensor) -> None:
    if has_hooks(parameter):
        raise InputError(
            f"{name} has a hook on its gradient (register_hook, register_post_accumulate_grad_hook): "
            "a plan does not run it. Register it in forward, on self.weight.view_as(self.weight), and "
            "compute with that; or do after the step's backward() what it does, to .grad"
        )
