"""Compare traces by a few of the equal layers with whole traces, model by model: they must be the same.

python -m benchmarks.gpu_operations.equal_layers [--layers 8] [--model gpt2]
"""

from __future__ import annotations

import argparse
from time import process_time
from unittest.mock import patch

from memplan.devices.absent_gpu.capability import Capability
from memplan.profiling.profile.estimate import trace_for
from memplan.program.program import Program
from memplan.tracing import repeated
from memplan.updates.choice import OptimizerChoice

from . import models
from .rows import Row, iteration


def traced(model: str) -> tuple[Program, float]:
    """Trace a model's program, with the seconds of processor time that it takes."""
    row, start = Row("8.6", model, "autocast-bfloat16", 0.1), process_time()
    made = trace_for(Capability(8, 6), lambda: iteration(row), OptimizerChoice("adamw"))
    return made, process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--model")
    options = parser.parse_args()
    models.LAYERS = options.layers
    for model in models.MODELS if options.model is None else [options.model]:
        traced(model)  # verified, so that the next is of some layers alone
        with patch.object(repeated, "with_all_layers", wraps=repeated.with_all_layers) as repeating:
            short, seconds = traced(model)
        with patch.object(repeated, "equal_layers", return_value=[]):
            whole, whole_seconds = traced(model)
        same = short.fingerprint == whole.fingerprint and list(short.operations) == list(whole.operations)
        same &= short.storages == whole.storages and short.values == whole.values
        how = f"{repeating.call_count} lists repeated" if repeating.call_count else "whole"
        print(
            f"{model:20} {'same' if same else 'DIFFERS':8} {seconds:6.1f} s {whole_seconds:6.1f} s  {how}",
            flush=True,
        )


if __name__ == "__main__":
    main()
