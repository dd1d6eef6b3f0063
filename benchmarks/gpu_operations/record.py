"""Record what PyTorch's CUDA build itself chooses, row by row: once for each new PyTorch, without a GPU.

    python -m venv cuda && cuda/bin/pip install torch==2.13.0 transformers==5.23.0 …   # the CUDA build
    PYTHONPATH=src:. cuda/bin/python -m benchmarks.gpu_operations.record [-o tests/gpu-operations.tsv]

Each capability is a process of its own, since PyTorch asks for it once. Without a driver PyTorch needs a
libcuda.so.1 to load: an empty one is made too.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from .rows import CAPABILITIES, Row, answered, iteration, questions, read_rows, write_rows

HERE = Path(__file__).parent
GOLDEN = HERE.parents[1] / "tests" / "gpu-operations.tsv"


_DRIVER = """extern "C" int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) {
  *flags = 0;
  *active = 0;
  return 0;
}
"""
"""Says that no device has a context."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, default=GOLDEN)
    parser.add_argument("--capability", help="this one alone, in this process (it is preloaded then)")
    options = parser.parse_args()
    if options.capability:
        write_rows(options.output, recorded(options.capability))
        return
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        preloaded = folder / "no_gpu.so"
        _compile(HERE / "no_gpu.cpp", preloaded)
        driver = folder / "driver.cpp"
        driver.write_text(_DRIVER)
        _compile(driver, folder / "libcuda.so.1")
        rows: list[Row] = []
        for capability in CAPABILITIES:
            part = folder / f"{capability}.tsv"
            environment = {
                **os.environ,
                "ABSENT_GPU": capability.replace(".", ""),
                "LD_PRELOAD": str(preloaded),
                "LD_LIBRARY_PATH": f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}",
            }
            command = [sys.executable, "-W", "ignore", "-m", __spec__.name, "--capability", capability, "-o"]
            subprocess.run([*command, str(part)], env=environment, check=True)
            rows.extend(read_rows(part))
            write_rows(options.output, rows)


def _compile(source: Path, library: Path) -> None:
    subprocess.run(["c++", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)


def recorded(capability: str) -> list[Row]:
    """Return the answers for one capability by the CUDA build's own choices."""
    import torch
    from memplan.profiling.profile.fake_build import fake_build
    from memplan.tracing.trace import trace
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():  # from here on guards of devices are fake
        pass
    ctypes.CDLL("").set_devices(8)
    replaced: Any = torch.cuda
    replaced.is_available, replaced.is_bf16_supported = (lambda: False), (lambda *_: True)
    replaced.amp.common.amp_definitely_not_available = lambda: False
    made: list[Row] = []
    for row in questions([capability]):
        made.append(answered(row, lambda row=row: trace(fake_build(lambda: _moved(iteration(row))))))
        print(*made[-1], sep="\t", flush=True)
    return made


def _moved(built: Any) -> Any:
    """Move an iteration to the GPU as fake tensors, built for real or not."""
    import torch
    from memplan.model.iteration import tensors_in, with_tensors
    from memplan.torch_support.torch_fakes import FakeTensor
    from memplan.tracing.layouts import TrueFakes

    given = [*built.module.parameters(), *tensors_in(built.inputs).values()]
    fake = next((tensor.fake_mode for tensor in given if isinstance(tensor, FakeTensor)), None) or TrueFakes(
        {}
    )

    def on_gpu(tensor: torch.Tensor) -> torch.Tensor:
        with fake:
            there = tensor if isinstance(tensor, FakeTensor) else fake.from_tensor(tensor)
            return there.to("cuda:0")

    there: dict[int, tuple[Any, Any]] = {}  # tied weights stay one; the first of a pair is kept for its id
    for module in built.module.modules():
        for group in (module._parameters, module._buffers):
            for name, tensor in group.items():
                if tensor is not None and id(tensor) not in there:
                    moved = on_gpu(tensor.detach())
                    is_weight = group is module._parameters
                    made = torch.nn.Parameter(moved, tensor.requires_grad) if is_weight else moved
                    there[id(tensor)] = tensor, made
                if tensor is not None:
                    group[name] = there[id(tensor)][1]
    tensors = {name: on_gpu(tensor) for name, tensor in tensors_in(built.inputs).items()}
    return built._replace(inputs=with_tensors(built.inputs, tensors))


if __name__ == "__main__":
    main()
