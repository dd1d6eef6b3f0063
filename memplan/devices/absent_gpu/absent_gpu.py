"""A GPU that is not here, as far as a trace is concerned.

with absent_gpu(Capability(8, 6)):
    iteration = fake_build(build)     # tensors without memory
    program = trace(iteration)        # of the operations that such a GPU runs, on "cuda:0"
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from ...torch_support.torch_fakes import FakeTensorMode
from .autocast import cuda_autocast
from .capability import Capability
from .convolution import cuda_convolutions
from .devices import cuda_devices
from .operators import cuda_operators
from .questions import Questions


@contextmanager
def absent_gpu(capability: Capability) -> Generator[Questions]:
    """Trace for a GPU of this capability meanwhile: device, autocast and operators are a GPU's.

    Gives what the trace asks of the capability.

    PyTorch keeps results of fake calls by the forms of their inputs: those of another GPU are forgotten.
    """
    FakeTensorMode.cache_clear()
    questions = Questions(capability)
    with (
        cuda_devices(questions),
        cuda_autocast(),
        cuda_operators(questions),
        cuda_convolutions(questions),
    ):
        try:
            yield questions
        finally:
            FakeTensorMode.cache_clear()
