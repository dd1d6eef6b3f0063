"""Options of `memplan.optimize` and `memplan.optimize_trainer`, each with its check and its help text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from ..devices.measuring.kept_machine import AUTO, auto_machine
from ..devices.sharded.meshes import Mesh
from ..graphs.errors import InputError
from ..graphs.folders.cache import user_cache
from ..graphs.folders.private import PrivateFolder
from ..graphs.machine import Machine
from ..graphs.machines.presets import find_machine
from ..graphs.transformations.updates import When
from ..graphs.units import FEW_BYTES, bare_number, parse_bytes, parse_span
from ..model.clipping import Clipping, parse_norm
from ..planner.budget import Budget, parse_budget
from ..program.outputs import Wanted
from ..solvers.allowed import parse_allow
from ..solvers.problem import Technique
from ..solvers.registry.catalogue import check_solver
from ..solvers.registry.run import chosen_settings
from ..torch_support.unsupported import warn_user
from ..updates.catalogue import titles
from .option import OptionsBase, UnfitError, option
from .progress import Progress, progress_callback

MakesOptimizer = Callable[[list[nn.Parameter]], Optimizer]
"""Class of an optimizer, or another function that makes one of the parameters."""

States = int | Optimizer | MakesOptimizer | None
"""Answer to which memory the loop has outside of its plans: bytes, or the optimizer that makes the states."""

Gradients = Literal["kept", "freed"]

# ── converters ──────────────────────────────────────────────────────────────────────────────────────


def _budget(budget: int | str) -> Budget:
    if type(budget) is float and 0 < budget <= 1:
        raise UnfitError(
            f"write '{budget:.0%}' for a share of the baseline's peak, or bytes, like '{budget}GB'"
        )
    parsed = parse_budget(str(budget))
    number = bare_number(parsed.text)
    if number is not None and parsed.size is not None and parsed.size < FEW_BYTES:
        raise UnfitError(
            f"this is {parsed.size} bytes: write '{number:g}%' for a share of the baseline's peak, or a "
            f"unit, like '{number:g}GB'"
        )
    return parsed


def _states(states: int | str | Optimizer | MakesOptimizer | None) -> States:
    if states is None or isinstance(states, Optimizer) or callable(states):
        return states
    if isinstance(states, bool) or not isinstance(states, int | str):  # pyright: ignore
        raise UnfitError("give bytes, like '2GB', or an optimizer or its class, like torch.optim.SGD")
    try:
        return parse_bytes(states)
    except InputError as error:
        raise UnfitError(f"{error}: give bytes, like '2GB', or an optimizer or its class") from None


def _gradients(gradients: Gradients) -> Gradients:
    if gradients not in get_args(Gradients):
        raise UnfitError(f"give {' or '.join(map(repr, get_args(Gradients)))}")
    return gradients


def _function(function: Callable[..., Any] | None) -> Callable[..., Any] | None:
    if function is not None and not callable(function):
        raise UnfitError("give a function, like torch.nn.functional.mse_loss")
    return function


def _anything(value: Any) -> Any:
    return value


def _optimizer(optimizer: Optimizer | None) -> Optimizer | None:
    if optimizer is not None and not isinstance(optimizer, Optimizer):  # pyright: ignore
        raise UnfitError("give one of torch.optim, made of the module's parameters")
    return optimizer


def _when(update: When) -> When:
    if update not in get_args(When):
        raise UnfitError(f"give {' or '.join(map(repr, get_args(When)))}")
    return update


def _clipping(norm: float | None) -> Clipping | None:
    return None if norm is None else Clipping(parse_norm(norm))


def _switch(value: bool) -> bool:
    if not isinstance(value, bool):  # pyright: ignore
        raise UnfitError("give True or False")
    return value


def _three_way(value: bool | None) -> bool | None:
    return value if value is None else _switch(value)


def _decay(decay: float | None) -> float | None:
    if decay is not None and (type(decay) is not float or not 0 < decay < 1):
        raise UnfitError("give the share of the average that each update keeps, like 0.999")
    return decay


def parse_dtype(dtype: torch.dtype | None) -> torch.dtype | None:
    if dtype is not None and dtype not in (torch.bfloat16, torch.float16):
        raise UnfitError("give torch.bfloat16 or torch.float16: PyTorch casts to these")
    return dtype


def _scaler(scaler: torch.amp.GradScaler | None) -> torch.amp.GradScaler | None:
    if scaler is not None and not isinstance(scaler, torch.amp.GradScaler):  # pyright: ignore
        raise UnfitError("give a torch.amp.GradScaler")
    return scaler


def parse_count(count: int) -> int:
    if type(count) is not int or count < 1:
        raise UnfitError("give a whole number, 1 or more")
    return count


def _machine(machine: Machine | str | Path | None) -> Machine | None:
    if machine is None or isinstance(machine, Machine):
        return machine
    if machine != AUTO:
        return find_machine(machine)
    found = auto_machine()
    if found.is_new:
        warn_user(found.line)
    # The budget is the limit: what is free at the moment would make each process another plan.
    return replace(found.machine, device_capacity=None)


def _mesh(mesh: Mesh | None) -> Mesh | None:
    if mesh is None or mesh is False:
        return None
    if mesh is not True and not isinstance(mesh, DeviceMesh):  # pyright: ignore
        raise UnfitError(
            "give a torch.distributed.device_mesh.DeviceMesh, or True for all ranks of the default group"
        )
    return mesh


def _solver(solver: str) -> str:
    check_solver(solver)
    return solver


def _seconds(seconds: float | str | None) -> float | None:
    if isinstance(seconds, str):
        seconds = parse_span(seconds) or seconds
    if seconds is not None and (
        isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0  # pyright: ignore
    ):
        raise UnfitError("give the solver's seconds, above 0, or a time like '5m'")
    return seconds


def _gap(gap: float | str | None) -> float | str | None:
    return gap


def _allow(allow: str | Sequence[str] | None) -> tuple[Technique, ...] | None:
    try:
        return parse_allow(allow)
    except InputError as error:
        raise UnfitError(str(error)) from None
    except TypeError:
        raise UnfitError("give names, like ('recompute', 'offload')") from None


def _path(path: str | Path | None) -> Path | None:
    if path is not None and not isinstance(path, str | Path):  # pyright: ignore
        raise UnfitError("give a safetensors file or a folder of them")
    return None if path is None else Path(path)


def _cache(cache: bool | str | Path) -> PrivateFolder | None:
    if isinstance(cache, bool):
        return user_cache() / "plans" if cache else None
    if not isinstance(cache, str | Path):  # pyright: ignore
        raise UnfitError("give a folder for plans, True or False")
    if Path(cache).exists() and not Path(cache).is_dir():
        raise UnfitError("plans are kept in a folder, and this is a file")
    return PrivateFolder(Path(cache))


def parse_outputs(outputs: bool | str | Sequence[str]) -> Wanted:
    if isinstance(outputs, bool):
        return outputs
    names: tuple[Any, ...] = tuple(outputs) if isinstance(outputs, tuple | list) else (outputs,)
    if not names or not all(isinstance(name, str) for name in names):
        raise UnfitError("give True, or names like 'logits' and 'hidden_states.0'")
    return names


def _pad_values(pad_values: Mapping[Any, Any] | None) -> Mapping[str, Any] | None:
    return pad_values


def _lengths(lengths: int | Sequence[int] | None) -> int | Sequence[int] | None:
    return lengths


# ── options ─────────────────────────────────────────────────────────────────────────────────────────


class PlanningOptions(OptionsBase):
    """Options that say how iterations are planned; those of `optimize_trainer`."""

    budget: Budget = option(
        converter=_budget,
        text=(
            "Device memory of an iteration: bytes, '12GB', '60%' of the baseline's peak, or '60%a' of its "
            "activations."
        ),
    )
    states: States = option(
        converter=_states,
        text=(
            "What the loop has on the device outside of the plan, within the budget, if it has the "
            "optimizer: bytes ('2GB'), of copies of weights too, or an optimizer or its class, whose states "
            "and step are counted. None looks for the optimizers of the module's parameters; if there are "
            "none yet, AdamW is assumed."
        ),
        default=None,
    )
    machine: Machine | None = option(
        converter=_machine,
        text=(
            "Machine whose links and host memory plans may use for offloading: a Machine, a machine file, "
            "or a preset's name, like 'rtx3060'. 'auto' is this machine with its GPU, measured the first "
            "time and kept in the user's cache. Without one nothing is offloaded."
        ),
        default=None,
    )
    solver: str = option(
        converter=_solver, text="Name of the solver; `plan solvers` lists them.", default="auto"
    )
    time_limit: float | None = option(
        converter=_seconds, text="Seconds for the solver, per plan, or a time like '5m'.", default=None
    )
    gap: float | str | None = option(
        converter=_gap,
        text=(
            "Relative optimality gap at which the solver stops: 0.01 or '1%'. 0 goes on to the time "
            "limit; None is the solver's own, 0.5 % for auto."
        ),
        default=None,
    )
    allow: tuple[Technique, ...] | None = option(
        converter=_allow,
        text=(
            "Techniques that plans may use, of 'recompute', 'offload' (to host memory), 'disk' and "
            "'host-updates' (optimizer updates computed on the host); the last two need 'offload'. None "
            "allows all."
        ),
        default=None,
    )
    max_plans: int = option(
        converter=parse_count,
        text=(
            "Number of plans that are kept, one for each shape of batches. The first batch of another shape "
            "is planned when it comes, within the same budget; the plan used least recently goes."
        ),
        default=8,
    )
    cache: PrivateFolder | None = option(
        converter=_cache,
        text=(
            "Folder of plans on disk: True for one in the user's cache, False for none. A process with "
            "the same iteration, budget, solver and computer finds its plan there."
        ),
        default=True,
    )
    verify: bool | None = option(
        converter=_three_way,
        text=(
            "Whether to compare everything that iterations of the plan and of eager PyTorch compute, bit by "
            "bit. None: on the first two batches that train, which eager PyTorch runs too, and not if this "
            "plan was compared before with the same code, state and settings. True: before training, by two "
            "iterations of each (three if tensors are transferred), after which weights, buffers and random "
            "numbers are restored. Eager PyTorch's iterations may exceed the budget. If memory does not "
            "suffice, a warning says so."
        ),
        default=None,
    )
    replan_on_drift: bool = option(
        converter=_switch,
        text=(
            "Whether a plan whose iterations take 10 % longer or shorter than predicted gets its "
            "transfers moved, and is solved anew in the background, by the measured times: the same bits, "
            "the same budget. False only reports it. Not available with DistributedDataParallel."
        ),
        default=True,
    )
    pad_values: Mapping[Any, Any] | None = option(
        converter=_pad_values,
        text=(
            "Value per input that padding fills in along dimension 1, or (value, dimension), which model "
            "and loss must ignore: {'input_ids': 0, 'attention_mask': 0, 'labels': -100}. That they do is "
            "verified on the example batch. optimize_trainer takes them from the collator."
        ),
        default=None,
    )
    pad_to_lengths: int | Sequence[int] | None = option(
        converter=_lengths,
        text=(
            "Lengths to which batches are padded: each to the shortest that it fits in. Longer batches "
            "are planned as they are."
        ),
        default=None,
    )
    progress: Progress = option(
        converter=progress_callback,
        text=(
            "Callback for ProgressEvents of planning and training. True writes a line about both to standard "
            "error if that is a terminal. None reports planning that takes more than two seconds: by one "
            "line that changes on a terminal, elsewhere every ten seconds. False reports nothing."
        ),
        default=None,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        chosen_settings(self.solver, self.settings)

    @property
    def settings(self) -> dict[str, str]:
        """Settings of the solver, as text."""
        return {} if self.gap is None else {"gap": str(self.gap)}


class Options(PlanningOptions):
    """All options of `optimize`."""

    loss_fn: Callable[..., Any] | None = option(
        converter=_function,
        text=(
            "Loss, if the output has no `.loss` and is not the loss itself: loss_fn(output), "
            "loss_fn(output, inputs) or, with targets, loss_fn(output, targets)."
        ),
        default=None,
    )
    shard: Mesh | None = option(
        converter=_mesh,
        text=(
            "Mesh over whose ranks weights, gradients and optimizer states are spread (ZeRO-3, FSDP), of two "
            "dimensions, replicate and shard, for HSDP, or True for all ranks of the default process group. "
            "All ranks call this at once, with equal modules, and optimizer=; parameters become DTensors. A "
            "module that fully_shard has wrapped has a mesh: leave shard= out."
        ),
        default=None,
    )
    train: bool = option(
        converter=_switch,
        text=(
            "Whether iterations train. False plans the forward pass alone, in the module's mode and without "
            "gradients: for inference, and for teachers, reference and reward models."
        ),
        default=True,
    )
    targets: Any = option(
        converter=_anything,
        text=(
            "Labels that the module does not take, a tensor or a pytree; each step is then called with "
            "its own, step(x, targets=y). A forward with an argument of this name gets them itself."
        ),
        default=None,
    )
    optimizer: Optimizer | None = option(
        converter=_optimizer,
        text=(
            f"Optimizer, if the step is to update the weights. Updates by {titles('and')} are part "
            "of the plan; others run after it, and their states are subtracted "
            "from the budget. Without an optimizer, `loss.backward()` adds the gradients to `.grad` as "
            "usual."
        ),
        default=None,
    )
    update: When = option(
        converter=_when,
        text="Time of planned updates: each weight right after its gradient, or all after backward.",
        default="in-backward",
    )
    max_grad_norm: Clipping | None = option(
        converter=_clipping,
        text=(
            "Norm to which all gradients together are clipped, as `torch.nn.utils.clip_grad_norm_` does. "
            "Updates then wait for all gradients. Needs optimizer=."
        ),
        default=None,
    )
    master_weights: bool = option(
        converter=_switch,
        text=(
            "Whether planned updates keep a float32 master, and float32 states, of each weight in "
            "bfloat16 or float16; the weight is the rounded copy. It is `master` among the optimizer's "
            "states."
        ),
        default=False,
    )
    ema: float | None = option(
        converter=_decay,
        text=(
            "Decay of a moving average of each weight, which planned updates keep among the optimizer's "
            "states; see Step.ema_state_dict."
        ),
        default=None,
    )
    autocast: torch.dtype | None = option(
        converter=parse_dtype,
        text="Type for torch.autocast of forward and loss: torch.bfloat16, or torch.float16 with a scaler.",
        default=None,
    )
    scaler: torch.amp.GradScaler | None = option(
        converter=_scaler,
        text=(
            "GradScaler whose scale multiplies the loss for backward; the returned loss is not scaled. "
            "With an optimizer the step unscales gradients, skips updates that are not finite, and "
            "updates the scaler; without one the loop does. A disabled one counts as none."
        ),
        default=None,
    )
    gradient_accumulation_steps: int = option(
        converter=parse_count,
        text=(
            "Number of calls per optimizer update. Each call adds the gradients of loss / "
            "gradient_accumulation_steps. Without an optimizer: the divisor that your loop applies to the "
            "loss, needed only with a scaler."
        ),
        default=1,
    )
    weights: Path | None = option(
        converter=_path,
        text=(
            "File of safetensors or torch.save, or a folder of them, for a module on `meta`: each tensor is "
            "read into the memory in which the plan keeps it; with `shard=` each rank reads its own rows. "
            "Nothing is verified then."
        ),
        default=None,
    )
    rollback_on_error: bool = option(
        converter=_switch,
        text=(
            "Whether an iteration that fails after it has updated a weight (out of memory, a full disk) "
            "leaves weights and states as before it. They are copied to host memory first, and iterations "
            "do not overlap. If False, they are refused after such a failure until others are loaded."
        ),
        default=False,
    )
    compile: bool = option(
        converter=_switch,
        text=(
            "Whether PyTorch's Inductor compiles several operations into one kernel where that is "
            "measured to be faster. Results then differ from eager PyTorch by rounding: each kernel's "
            "error against float64 is at most 4 times that of PyTorch's own. Not available with "
            "DistributedDataParallel."
        ),
        default=False,
    )
    cuda_graph: bool = option(
        converter=_switch,
        text=(
            "Whether iterations on a GPU are captured as a CUDA graph and launched as one, which saves the "
            "time of Python and of launches. Only for plans without transfers, and updates that are in the "
            "plan: fused ones for optimizers that count steps. The graph's memory stays allocated between "
            "iterations; inputs and results have one copy more. Times that drift are not followed."
        ),
        default=False,
    )
    gradients: Gradients = option(
        converter=_gradients,
        text=(
            "Whether the loop keeps `.grad` while the step runs, as with accumulation or `zero_grad()` after "
            "the step's call, or has freed it, by `zero_grad()` before each call: 'freed' leaves its bytes "
            "to the plan. It has no meaning with optimizer=."
        ),
        default="kept",
    )
    return_outputs: Wanted = option(
        converter=parse_outputs,
        text=(
            "Tensors of the module's output that `step.output` has after an iteration: True for all, or "
            "names like 'logits' and 'hidden_states.0'. They are kept within the budget."
        ),
        default=False,
    )

    @property
    def enabled_scaler(self) -> torch.amp.GradScaler | None:
        """The scaler, None for one whose methods do nothing."""
        return self.scaler if self.scaler is not None and self.scaler.is_enabled() else None
