"""Convolutions, pools and their kind in pieces, against the whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from memplan.profiling.splitting.images import IMAGES
from operator_cases import Cases, Drawn
from torch.nn import functional

aten: Any = torch.ops.aten

CASES = Cases()


@CASES.covering("convolution", "convolution_backward")
def convolutions(drawn: Drawn) -> None:
    places = drawn.one_of((4,), (4, 3), (3, 3, 2))
    kernel = [drawn.size(1, 2)] * len(places)
    samples, channels, out = drawn.size(), drawn.size(1, 4), drawn.size(1, 4)
    groups = drawn.one_of(1, 1, channels)
    out = out * groups if groups > 1 and drawn.one_of(True, False) else channels if groups > 1 else out
    transposed = drawn.one_of(False, True)
    weight = (channels, out // groups) if transposed else (out, channels // groups)
    bias = drawn.one_of(None, drawn.tensor(out))
    name = f"conv{'_transpose' if transposed else ''}{len(places)}d"
    how = {"stride": drawn.size(1, 2), "padding": drawn.size(0, kernel[0] - 1), "groups": groups}
    one = drawn.tensor(samples, channels, *places, grad=drawn.one_of(True, True, False))
    drawn.back(getattr(functional, name)(one, drawn.tensor(*weight, *kernel), bias, **how))


def _names(*names: str, dimensions: Sequence[int] = (2, 3)) -> tuple[str, ...]:
    return tuple(name.format(count) for name in names for count in dimensions)


@CASES.covering(
    *_names(
        "avg_pool{}d", "avg_pool{}d_backward", "max_pool{}d_with_indices", "max_pool{}d_with_indices_backward"
    )
)
@CASES.covering(*_names("_adaptive_avg_pool{}d", "_adaptive_avg_pool{}d_backward"))
@CASES.covering(*_names("adaptive_max_pool{}d", "adaptive_max_pool{}d_backward"))
@CASES.covering("reflection_pad3d", "reflection_pad3d_backward")
@CASES.covering(*_names("reflection_pad{}d", "reflection_pad{}d_backward", dimensions=(1, 2, 3)))
@CASES.covering(*_names("replication_pad{}d", "replication_pad{}d_backward", dimensions=(1, 2, 3)))
def pools(drawn: Drawn) -> None:
    samples = drawn.one_of((), (drawn.size(),))
    for count in (1, 2, 3):
        one = torch.randn(
            *samples, drawn.size(1, 3), *(drawn.size(3, 4) for _ in range(count)), requires_grad=True
        )
        for mode in ("reflect", "replicate"):
            drawn.back(functional.pad(one, [drawn.size(0, 2) for _ in range(2 * count)], mode))
        for kind in ("avg", "max"):
            function = getattr(functional, f"{kind}_pool{count}d")
            drawn.back(function(one, 2, drawn.size(1, 2), padding=drawn.size(0, 1)))
            drawn.back(getattr(functional, f"adaptive_{kind}_pool{count}d")(one, drawn.size(2, 3)))


@CASES.covering(*_names("upsample_nearest{}d", "upsample_nearest{}d_backward", dimensions=(1, 2, 3)))
@CASES.covering(
    *_names("_upsample_nearest_exact{}d", "_upsample_nearest_exact{}d_backward", dimensions=(1, 2, 3))
)
@CASES.covering(
    "upsample_bilinear2d", "upsample_bicubic2d", "upsample_bilinear2d_backward", "upsample_bicubic2d_backward"
)
@CASES.covering("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")
@CASES.covering("_upsample_bilinear2d_aa_backward", "_upsample_bicubic2d_aa_backward")
@CASES.covering(
    "upsample_linear1d", "upsample_linear1d_backward", "upsample_trilinear3d", "upsample_trilinear3d_backward"
)
def upsamples(drawn: Drawn) -> None:
    for count, modes in ((1, ("linear",)), (2, ("bilinear", "bicubic")), (3, ("trilinear",))):
        for mode in ("nearest", "nearest-exact", *modes):
            one = drawn.tensor(drawn.size(), drawn.size(), *(drawn.size(2, 3) for _ in range(count)))
            drawn.back(functional.interpolate(one, scale_factor=2, mode=mode))
            if mode in ("bilinear", "bicubic"):
                drawn.back(functional.interpolate(one, size=(3, 2), mode=mode, antialias=True))


@CASES.covering(
    "pixel_shuffle", "pixel_unshuffle", "im2col", "col2im", "grid_sampler_2d", "grid_sampler_2d_backward"
)
@CASES.covering("_fft_r2c", "_fft_c2c", "_fft_c2r")
def pictures(drawn: Drawn) -> None:
    one = drawn.tensor(drawn.size(), 4, 4, 4)
    drawn.back(functional.pixel_shuffle(one, 2), functional.pixel_unshuffle(one, 2))
    drawn.back(
        functional.fold(functional.unfold(one, drawn.size(1, 2)), (4, 4), 1)
        if drawn.one_of(False)
        else functional.unfold(one, 2)
    )
    functional.fold(drawn.tensor(one.shape[0], 8, 9, grad=False), (4, 4), 2)
    drawn.back(functional.grid_sample(one, drawn.tensor(one.shape[0], 2, 3, 2), align_corners=False))
    dimension = drawn.dimension(one)
    there = torch.fft.rfft(one.detach(), dim=dimension)
    torch.fft.irfft(there, 4 if one.shape[dimension] == 4 else one.shape[dimension], dim=dimension)
    torch.fft.fft(there, dim=drawn.dimension(there))


test_pieces_make_what_the_whole_makes, test_they_do_at_many_shapes = CASES.tests()


def test_every_rule_has_a_case() -> None:
    assert {*IMAGES} <= CASES.covered
