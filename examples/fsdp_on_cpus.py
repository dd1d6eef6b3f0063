"""accelerate, and so the Trainer, with FSDP2 on CPUs, to try it without a GPU: it shards on GPUs alone."""

from __future__ import annotations

import os
from typing import Any


def shard_on_cpus() -> None:
    """Let accelerate shard on CPUs, as it does on GPUs. Call it before the Accelerator or Trainer is made."""
    from accelerate.state import AcceleratorState, PartialState
    from accelerate.utils import DistributedType

    os.environ["ACCELERATE_USE_CPU"] = "true"
    begin: Any = AcceleratorState.__init__

    def begin_sharded(self: Any, *given: Any, fsdp_plugin: Any = None, **options: Any) -> None:
        begin(self, *given, fsdp_plugin=fsdp_plugin, **options)
        if fsdp_plugin is not None:
            self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, fsdp_plugin
            PartialState._shared_state["distributed_type"] = DistributedType.FSDP  # else it is lost later

    AcceleratorState.__init__ = begin_sharded
