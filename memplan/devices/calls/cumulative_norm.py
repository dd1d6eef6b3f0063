"""BatchNorm with `momentum=None`: running statistics that are the mean over all batches.

The module converts its count of batches to a number for the kernel, and a trace would hold that of its first
batch. Here one call normalises, and a second, of an operator that reads the count as a tensor, updates the
statistics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ...torch_support.torch_modules import check_input_of_norm


@torch.library.custom_op("memplan::cumulative_statistics", mutates_args=())
def cumulative_statistics(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    count: Tensor,
    epsilon: float,
) -> tuple[Tensor, Tensor]:
    """Return the new running mean and variance.

    count: batches, this one included.

    By the kernel that normalises, whose output is dropped: `batch_norm_update_stats` rounds differently.
    """
    new = mean.clone(), variance.clone()
    functional.batch_norm(x, *new, weight, bias, True, 1.0 / float(count), epsilon)
    return new


@cumulative_statistics.register_fake
def _(
    _x: Tensor, _weight: Any, _bias: Any, mean: Tensor, variance: Tensor, *_others: Any
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(mean), torch.empty_like(variance)


STATISTICS: Any = torch.ops.memplan.cumulative_statistics.default


def cumulative(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a forward of BatchNorm that replaces torch's if the statistics are cumulative averages.

    forward: torch's.
    """

    def run(self: Any, x: Tensor) -> Tensor:
        count, mean, variance = self.num_batches_tracked, self.running_mean, self.running_var
        if (
            self.momentum is not None
            or not self.training
            or count is None
            or mean is None
            or variance is None
        ):
            return forward(self, x)
        check_input_of_norm(self, x)
        count.add_(1)
        # On copies of the statistics, which momentum 0 leaves alone: without any, kernels round otherwise.
        copies = mean.clone(), variance.clone()
        made = functional.batch_norm(x, *copies, self.weight, self.bias, True, 0.0, self.eps)
        with torch.no_grad():
            new_mean, new_variance = STATISTICS(x, self.weight, self.bias, mean, variance, count, self.eps)
            mean.copy_(new_mean)
            variance.copy_(new_variance)
        return made

    return run
