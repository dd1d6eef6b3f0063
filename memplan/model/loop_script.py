"""A script with its own training loop by accelerate, run up to its first `backward`: model, batch and loss.

The script runs as Python would run it, with models without weights (script_models.py), but for:

    Accelerator(...)               precision and accumulation are noted, not applied; no trackers, no plugins
    accelerator.prepare(...)       gives the model on meta, and the rest as it is
    model(...)                     runs on meta: shapes alone
    accelerator.backward(loss)     ends the script

What the script computes of the model's output for its loss is recorded as calls of PyTorch's functions, which
run for each batch. A number that the script asks a tensor on meta for is 1.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..graphs.errors import InputError
from ..torch_support.torch_trees import leaves_and_form, tensors_among, tree_map
from .file import DEFAULT_ENTRY, ModelFile, guarded, imports_from
from .processes import Around
from .script_models import (
    TrainingReached,
    moved,
    names_of_script,
    run_script,
    stay,
    with_rows,
    without_weights,
)

_BUILD = "write a function build() that returns model and example batch (docs/models.md)"
_NUMBERS: dict[Any, Any] = {Tensor.item: 1, Tensor.__bool__: True, Tensor.__int__: 1, Tensor.__float__: 1.0}


class LoopScript(NamedTuple):
    """The training of a script with its own loop.

    arguments: of its Accelerator and its optimizer, by the names that TrainingArguments has for them.
    batch: shapes of what the model and the loss read.
    """

    file: ModelFile
    arguments: dict[str, Any]
    batch: dict[str, tuple[int, ...]]


class _Call(NamedTuple):
    function: Callable[..., Any]
    args: Any
    keywords: Any
    result: Any


def is_loop_script(path: Path) -> bool:
    """Tell whether a file has no `build`, and calls `prepare` and `backward` of an Accelerator."""
    names, attributes = names_of_script(path)
    return "Accelerator" in names | attributes and {"prepare", "backward"} <= attributes


def read_loop_script(path: Path, words: Sequence[str] = ()) -> LoopScript:
    """Run a script up to its first backward. words: its command line. Raises InputError, one line."""
    seen = _Seen()
    with imports_from(path), _prepared(seen):
        guarded(path, "the script fails before it trains", lambda: run_script(path, words, seen.losses))
    if not seen.losses:
        raise InputError(f"{path}: ends without a call of accelerator.backward(): {_BUILD}")
    if len(seen.calls_of_model) != 1:
        count = len(seen.calls_of_model)
        raise InputError(f"{path}: runs prepared models {count} times before backward, not once: {_BUILD}")
    inputs, compute = seen.loss_of_inputs(path)
    if not inputs:
        raise InputError(f"{path}: its model has no tensor as input: {_BUILD}")
    rows = next(iter(inputs.values())).shape[:1]
    arguments = {**seen.arguments, "per_device_train_batch_size": rows[0] if rows else 1}
    file = ModelFile(str(path), DEFAULT_ENTRY, _builder(seen.model, inputs, compute))
    return LoopScript(file, arguments, {name: tuple(tensor.shape) for name, tensor in inputs.items()})


class _Seen(TorchFunctionMode):
    """Recorder of the calls on meta that a script makes since it has prepared its model.

    calls_of_model: arguments and output of each call of a prepared model.
    """

    def __init__(self) -> None:
        super().__init__()
        self.arguments: dict[str, Any] = {}
        self.model = nn.Module()
        self.calls_of_model: list[tuple[Any, Any]] = []
        self.losses: list[Tensor] = []
        self.started = False
        self._hooks: list[Any] = []
        self._within = 0
        self._calls: list[_Call] = []
        self._on_meta: dict[int, tuple[Tensor, Tensor]] = {}

    def prepared(self, module: nn.Module) -> nn.Module:
        """Return the module on meta; its calls are noted."""
        made = moved({"model": module}, "meta")["model"]

        def before(_module: nn.Module, args: Any, keywords: Any) -> Any:
            self._within += 1
            self.model = made
            on_meta = tree_map(self._meta_of, (args, keywords))
            self.calls_of_model.append((on_meta, None))
            return on_meta

        def after(_module: nn.Module, _args: Any, output: Any) -> None:
            self._within -= 1
            self.calls_of_model[-1] = self.calls_of_model[-1][0], output

        self._hooks.append(made.register_forward_pre_hook(before, with_kwargs=True, prepend=True))
        self._hooks.append(made.register_forward_hook(after))
        return made

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not any(tensor.is_meta for tensor in tensors_among((args, kwargs))):
            return func(*args, **kwargs)
        if func in _NUMBERS:
            return _NUMBERS[func]
        args, kwargs = tree_map(self._meta_of, (args, kwargs))
        result = func(*args, **kwargs)
        if not self._within and tensors_among(result):
            self._calls.append(_Call(func, args, kwargs, result))
        return result

    def _meta_of(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or leaf.is_meta:
            return leaf
        if id(leaf) not in self._on_meta:  # the tensor is kept: its id is no other's
            self._on_meta[id(leaf)] = leaf, leaf.to("meta")
        return self._on_meta[id(leaf)][1]

    def loss_of_inputs(self, path: Path) -> tuple[dict[str, Tensor], Callable[..., Any]]:
        """Return what model and loss read, and a function of the model and these that computes the loss."""
        for hook in self._hooks:
            hook.remove()
        (arguments, output), loss = self.calls_of_model[0], self.losses[0]
        leaves, nest = leaves_and_form(arguments)
        old = tensors_among(leaves_and_form(output)[0])
        calls = _between(self._calls, old, loss)
        if calls is None:
            raise InputError(f"{path}: its loss is not computed from its model's output: {_BUILD}")
        made = {id(tensor) for call in calls for tensor in tensors_among(call.result)}
        own = {id(tensor) for tensor in old} | made
        names = {id(leaf): key.rpartition(".")[2] for key, leaf in leaves.items() if isinstance(leaf, Tensor)}
        for call in calls:
            for tensor in tensors_among((call.args, call.keywords)):
                if id(tensor) not in own:
                    names.setdefault(id(tensor), f"of_loss{len(names)}")
        names = {key: name if not name.isdigit() else f"input{name}" for key, name in names.items()}
        origin = {id(on_meta): tensor for tensor, on_meta in self._on_meta.values()}
        every = {id(tensor): tensor for call in calls for tensor in tensors_among((call.args, call.keywords))}
        every |= {id(leaf): leaf for leaf in leaves.values() if isinstance(leaf, Tensor)}
        inputs = {name: origin.get(key, every[key]) for key, name in names.items()}

        def compute(model: nn.Module, given: dict[str, Any]) -> Any:
            there = {key: given[name] for key, name in names.items()}
            args, keywords = nest([there.get(id(leaf), leaf) for leaf in leaves.values()])
            output = tensors_among(leaves_and_form(model(*args, **keywords))[0])
            there.update(zip(map(id, old), output, strict=True))

            def current(leaf: Any) -> Any:
                return there.get(id(leaf), leaf)

            for call in calls:
                args, keywords = tree_map(current, (call.args, call.keywords))
                new = tensors_among(call.function(*args, **keywords))
                there.update(zip(map(id, tensors_among(call.result)), new, strict=True))
            return there[id(loss)]

        return inputs, compute


def _between(calls: Sequence[_Call], output: Sequence[Tensor], loss: Tensor) -> list[_Call] | None:
    """Return the calls that lead from the output to the loss, None if none do and the loss is not in it."""
    known = {id(tensor) for tensor in output}
    following = list[_Call]()
    for call in calls:
        if any(id(tensor) in known for tensor in tensors_among((call.args, call.keywords))):
            following.append(call)
            known |= {id(tensor) for tensor in tensors_among(call.result)}
    if id(loss) not in known:
        return None
    needed, found = {id(loss)}, list[_Call]()
    for call in reversed(following):
        if any(id(tensor) in needed for tensor in tensors_among(call.result)):
            found.append(call)
            needed |= {id(tensor) for tensor in tensors_among((call.args, call.keywords))}
    return found[::-1]


@contextmanager
def _prepared(seen: _Seen) -> Generator[None]:
    """Let the libraries do what this file's docstring says."""
    try:
        from accelerate import Accelerator
    except ModuleNotFoundError as error:
        raise InputError("a script with a loop of accelerate needs the package accelerate") from error
    own: Any = Accelerator.__init__

    def init(self: Any, *_arguments: Any, **keywords: Any) -> None:
        precision = str(keywords.get("mixed_precision"))
        seen.arguments.update({"bf16": precision == "bf16", "fp16": precision == "fp16"})
        plugin = keywords.get("gradient_accumulation_plugin")
        steps = keywords.get("gradient_accumulation_steps", getattr(plugin, "num_steps", 1))
        seen.arguments["gradient_accumulation_steps"] = steps
        seen.arguments["fsdp"] = "fsdp_plugin" if keywords.get("fsdp_plugin") is not None else None
        seen.arguments["deepspeed"] = getattr(keywords.get("deepspeed_plugin"), "deepspeed_config", None)
        kept = ("project_dir", "project_config", "step_scheduler_with_optimizer", "split_batches")
        own(self, cpu=True, mixed_precision="no", **{key: keywords[key] for key in kept if key in keywords})

    with without_weights(), ExitStack() as stack:

        def prepare(_self: Any, *objects: Any, **_keywords: Any) -> Any:
            if not seen.started:
                stack.enter_context(seen)
                seen.started = True
            for one in objects:
                if isinstance(one, torch.optim.Optimizer):
                    seen.arguments.setdefault("optim", type(one).__name__)
            made = tuple(seen.prepared(one) if isinstance(one, nn.Module) else one for one in objects)
            return made[0] if len(made) == 1 else made

        def backward(_self: Any, loss: Tensor, **_keywords: Any) -> None:
            seen.losses.append(loss)
            raise TrainingReached

        for name, new in (
            ("__init__", init),
            ("prepare", prepare),
            ("backward", backward),
            ("init_trackers", stay),
        ):
            stack.enter_context(patch.object(Accelerator, name, new))
        yield


def _builder(
    on_meta: nn.Module, example: dict[str, Tensor], compute: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a function that returns the loss of the script as a module, and its batch."""
    rows = next(iter(example.values())).shape[:1]

    def build(batch: int = rows[0] if rows else 1) -> Any:
        model = moved({"model": on_meta}, "cpu")["model"].train()
        inputs = {
            name: with_rows(_valued(tensor), batch if tensor.shape[:1] == rows and rows else None)
            for name, tensor in example.items()
        }
        return Around(model, compute, {}, compute), inputs

    return build


def _valued(tensor: Tensor) -> Tensor:
    """Return a tensor with values: zeros for one that the script has computed on meta."""
    return torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu") if tensor.is_meta else tensor.detach()
