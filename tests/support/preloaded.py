"""What most ranks import, once for all ranks of a test: each is forked from a process that has it."""

from importlib import import_module
from typing import Any

for name in (
    "accelerate",
    "memplan.training.optimize",
    "memplan.training.ranks.sharded",
    "peft",
    "ranks",
    "sharded_models",
    "sharded_training",
    "torch._dynamo",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.profiler._cupti_monitor",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
    "transformers.models.vit.modeling_vit",
    "transformers.trainer",
):
    import_module(name)

# Numba's own functions are registered at the first compiled one, for more than a second.
cpu: Any = import_module("numba.core.registry").cpu_target
cpu.typing_context.refresh()
cpu.target_context.refresh()
