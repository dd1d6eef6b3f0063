"""Options of `memplan.optimize` and `memplan.optimize_trainer`, each with its check and its help text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from ..devices.sharded.meshes import Mesh
from ..graphs.folders.private import PrivateFolder
from ..graphs.machine import Machine
from ..graphs.transformations.updates import When
from ..model.clipping import Clipping
from ..planner.budget import Budget
from ..program.outputs import Wanted
from ..solvers.problem import Technique
from ..solvers.registry.run import chosen_settings
from ..updates.catalogue import titles
from . import converters
from .converters import Gradients, InPieces, States
from .option import OptionsBase, option
from .progress import Progress, progress_callback


class PlanningOptions(OptionsBase):
    """Options that say how iterations are planned."""

    budget: Budget = option(
        converter=converters.read_budget,
        text=(
            "Device memory of an iteration: bytes, '12GB', '60%' of the baseline's peak, or '60%a' of its "
            "activations."
        ),
    )
    states: States = option(
        converter=converters.read_states,
        text=(
            "What the loop has on the device outside of the plan, within the budget, if it has the "
            "optimizer: bytes ('2GB'), of copies of weights too, or an optimizer or its class, whose states "
            "and step are counted. None looks for the optimizers of the module's parameters; if there are "
            "none yet, AdamW is assumed."
        ),
        default=None,
    )
    machine: Machine | None = option(
        converter=converters.read_machine,
        text=(
            "Machine whose links and host memory plans may use for offloading: a Machine, a machine file, "
            "or a preset's name, like 'rtx3060'. 'auto' is this machine with its GPU, measured the first "
            "time and kept in the user's cache. Without one nothing is offloaded."
        ),
        default=None,
    )
    solver: str = option(
        converter=converters.read_solver,
        text="Name of the solver; `plan solvers` lists them.",
        default="auto",
    )
    time_limit: float | None = option(
        converter=converters.read_seconds,
        text="Seconds for the solver, per plan, or a time like '5m'.",
        default=None,
    )
    gap: float | str | None = option(
        converter=converters.read_gap,
        text=(
            "Relative optimality gap at which the solver stops: 0.01 or '1%'. 0 goes on to the time "
            "limit; None is the solver's own, 0.5 % for auto."
        ),
        default=None,
    )
    allow: tuple[Technique, ...] | None = option(
        converter=converters.read_allow,
        text=(
            "Techniques that plans may use, of 'recompute', 'offload' (to host memory), 'disk' and "
            "'host-updates' (optimizer updates computed on the host); the last two need 'offload'. "
            "'recompute:activations' and ':gradients', 'offload:activations', ':weights', ':gradients' and "
            "':states' allow these for some tensors alone. None allows all."
        ),
        default=None,
    )
    split: InPieces = option(
        converter=converters.read_pieces,
        text=(
            "Whether operations that need more memory than the budget has may run in pieces, one after the "
            "other: a language model's logits with its loss, the hidden layer of an MLP. Results then differ "
            "from eager PyTorch by rounding, as sums are added up in pieces: the error of each "
            "region against float64 is at most 4 times that of PyTorch's own. 'exact' takes only pieces that "
            "came out bit by bit as the whole when they were measured here, so results are eager PyTorch's."
        ),
        default=False,
    )
    max_plans: int = option(
        converter=converters.read_count,
        text=(
            "Number of plans that are kept, one for each shape of batches. The first batch of another shape "
            "is planned when it comes, within the same budget; the plan used least recently goes."
        ),
        default=8,
    )
    cache: PrivateFolder | None = option(
        converter=converters.read_cache,
        text=(
            "Folder of plans on disk: True for one in the user's cache, False for none. A process with "
            "the same iteration, budget, solver and computer finds its plan there."
        ),
        default=True,
    )
    verify: bool | None = option(
        converter=converters.read_three_way,
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
        converter=converters.read_switch,
        text=(
            "Whether a plan whose iterations take 10 % longer or shorter than predicted gets its "
            "transfers moved, and is solved anew in the background, by the measured times: the same bits, "
            "the same budget. Ranks that train together compare their times first. False only reports it."
        ),
        default=True,
    )
    pad_values: Mapping[Any, Any] | None = option(
        converter=converters.read_pad_values,
        text=(
            "Value per input that padding fills in along dimension 1, or (value, dimension), which model "
            "and loss must ignore: {'input_ids': 0, 'attention_mask': 0, 'labels': -100}. That they do is "
            "verified on the example batch. optimize_trainer takes them from the collator."
        ),
        default=None,
    )
    pad_to_lengths: int | Sequence[int] | None = option(
        converter=converters.read_lengths,
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
        # For its errors: a gap that the solver has no setting for is refused now, not at the first plan.
        chosen_settings(self.solver, self.settings)

    @property
    def settings(self) -> dict[str, str]:
        """Settings of the solver, as text."""
        return {} if self.gap is None else {"gap": str(self.gap)}


class TrainerOptions(PlanningOptions):
    """Options of `optimize_trainer`. Those that are not of planning need updates in the plan."""

    early_updates: bool = option(
        converter=converters.read_switch,
        text=(
            "Whether planned updates with max_grad_norm or a scaler run right after each gradient, as if "
            "nothing were clipped (speculation). What they overwrite is copied to host memory. If the "
            "norm exceeds max_grad_norm, or a gradient is not finite, all is put back and the iteration "
            "runs a second time, with the coefficient that is then known: the bits are those without it."
        ),
        default=False,
    )
    bucket_size: int | None = option(
        converter=converters.read_size,
        text=(
            "Most bytes of weights, like '4MB', in a bucket: small weights of one layer that planned updates "
            "update together. Weights, gradients and states of a bucket take one copy each to or from the "
            "host. None updates each weight alone."
        ),
        default=None,
    )

    @property
    def of_planned_updates(self) -> list[str]:
        """Names of the options given that need updates in the plan."""
        given = {"early_updates": self.early_updates, "bucket_size": self.bucket_size is not None}
        return [name for name, has in given.items() if has]


class Options(TrainerOptions):
    """All options of `optimize`."""

    loss_fn: Callable[..., Any] | None = option(
        converter=converters.read_function,
        text=(
            "Loss, if the output has no `.loss` and is not the loss itself: loss_fn(output), "
            "loss_fn(output, inputs) or, with targets, loss_fn(output, targets)."
        ),
        default=None,
    )
    shard: Mesh | None = option(
        converter=converters.read_mesh,
        text=(
            "Mesh over whose ranks weights, gradients and optimizer states are spread (ZeRO-3, FSDP), of two "
            "dimensions, replicate and shard, for HSDP, or True for all ranks of the default process group. "
            "All ranks call this at once, with equal modules, and optimizer=; parameters become DTensors. A "
            "module that fully_shard has wrapped has a mesh: leave shard= out."
        ),
        default=None,
    )
    train: bool = option(
        converter=converters.read_switch,
        text=(
            "Whether iterations train. False plans the forward pass alone, in the module's mode and without "
            "gradients: for inference, and for teachers, reference and reward models."
        ),
        default=True,
    )
    targets: Any = option(
        converter=converters.read_anything,
        text=(
            "Labels that the module does not take, a tensor or a pytree; each step is then called with "
            "its own, step(x, targets=y). A forward with an argument of this name gets them itself."
        ),
        default=None,
    )
    optimizer: Optimizer | None = option(
        converter=converters.read_optimizer,
        text=(
            f"Optimizer, if the step is to update the weights. Updates by {titles('and')} are part "
            "of the plan; others run after it, and their states are subtracted "
            "from the budget. Without an optimizer, `loss.backward()` adds the gradients to `.grad` as "
            "usual. A list of optimizers, each of other parameters, if all are planned."
        ),
        default=None,
    )
    update: When = option(
        converter=converters.read_update,
        text="Time of planned updates: each weight right after its gradient, or all after backward.",
        default="in-backward",
    )
    max_grad_norm: Clipping | None = option(
        converter=converters.read_clipping,
        text=(
            "Norm to which all gradients together are clipped, as `torch.nn.utils.clip_grad_norm_` does. "
            "Updates then wait for all gradients, unless early_updates is True. Needs optimizer=."
        ),
        default=None,
    )
    block_size: int | None = option(
        converter=converters.read_size,
        text=(
            "Most bytes of a weight, like '64MB', that planned updates update at once: larger ones by blocks "
            "of rows. Each block of a state is offloaded and prefetched by itself, so the states of an "
            "embedding need not be on the device together. None updates each weight at once."
        ),
        default=None,
    )
    master_weights: bool = option(
        converter=converters.read_switch,
        text=(
            "Whether planned updates keep a float32 master, and float32 states, of each weight in "
            "bfloat16 or float16; the weight is the rounded copy. It is `master` among the optimizer's "
            "states."
        ),
        default=False,
    )
    accumulate_dtype: torch.dtype | None = option(
        converter=converters.read_wide,
        text=(
            "torch.float32 to sum the gradients of weights in bfloat16 or float16 over the batches of an "
            "update in float32, and to clip them so; master weights take the sums, other weights the sums "
            "rounded to their dtype. None sums in the gradients' own dtype, as `.grad` does. Needs "
            "gradient_accumulation_steps above 1."
        ),
        default=None,
    )
    ema: float | None = option(
        converter=converters.read_decay,
        text=(
            "Decay of a moving average of each weight, which planned updates keep among the optimizer's "
            "states; see Step.ema_state_dict."
        ),
        default=None,
    )
    autocast: torch.dtype | None = option(
        converter=converters.read_dtype,
        text="Type for torch.autocast of forward and loss: torch.bfloat16, or torch.float16 with a scaler.",
        default=None,
    )
    scaler: torch.amp.GradScaler | None = option(
        converter=converters.read_scaler,
        text=(
            "GradScaler whose scale multiplies the loss for backward; the returned loss is not scaled. "
            "With an optimizer the step unscales gradients, skips updates that are not finite, and "
            "updates the scaler; without one the loop does. A disabled one counts as none."
        ),
        default=None,
    )
    gradient_accumulation_steps: int = option(
        converter=converters.read_count,
        text=(
            "Number of calls per optimizer update. Each call adds the gradients of loss / "
            "gradient_accumulation_steps. Without an optimizer: the divisor that your loop applies to the "
            "loss, needed only with a scaler."
        ),
        default=1,
    )
    weights: Path | None = option(
        converter=converters.read_path,
        text=(
            "File of safetensors or torch.save, or a folder of them, for a module on `meta`: each tensor is "
            "read into the memory in which the plan keeps it; with `shard=` each rank reads its own rows. "
            "Nothing is verified then."
        ),
        default=None,
    )
    rollback_on_error: bool = option(
        converter=converters.read_switch,
        text=(
            "Whether an iteration that fails after it has updated a weight (out of memory, a full disk) "
            "leaves weights and states as before it. They are copied to host memory first, and iterations "
            "do not overlap. If False, they are refused after such a failure until others are loaded."
        ),
        default=False,
    )
    compile: bool = option(
        converter=converters.read_switch,
        text=(
            "Whether PyTorch's Inductor compiles several operations into one kernel where that is "
            "measured to be faster. Results then differ from eager PyTorch by rounding: each kernel's "
            "error against float64 is at most 4 times that of PyTorch's own. Not available with "
            "DistributedDataParallel."
        ),
        default=False,
    )
    cuda_graph: bool = option(
        converter=converters.read_switch,
        text=(
            "Whether iterations on a GPU are captured as a CUDA graph and launched as one, which saves the "
            "time of Python and of launches. Only for plans without transfers, and updates that are in the "
            "plan: fused ones for optimizers that count steps. The graph's memory stays allocated between "
            "iterations; inputs and results have one copy more. Times that drift are not followed."
        ),
        default=False,
    )
    gradients: Gradients = option(
        converter=converters.read_gradients,
        text=(
            "Whether the loop keeps `.grad` while the step runs, as with accumulation or `zero_grad()` after "
            "the step's call, or has freed it, by `zero_grad()` before each call: 'freed' leaves its bytes "
            "to the plan. It has no meaning with optimizer=."
        ),
        default="kept",
    )
    return_outputs: Wanted = option(
        converter=converters.read_outputs,
        text=(
            "Tensors of the module's output that `step.output` has after an iteration: True for all, or "
            "names like 'logits' and 'hidden_states.0'. They are kept within the budget."
        ),
        default=False,
    )

    @property
    def enabled_scaler(self) -> torch.amp.GradScaler | None:
        """The scaler, None for one whose methods do nothing."""
        # Not `scaler` itself: a disabled GradScaler returns losses and gradients as they are.
        return self.scaler if self.scaler is not None and self.scaler.is_enabled() else None
