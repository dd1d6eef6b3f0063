"""Rules of convolutions, and of what works on the last dimensions of each picture."""

from __future__ import annotations

from collections.abc import Sequence

from ...program.program import Call
from .rows import Along
from .rules import SUM, WHOLE, Part, Pattern, Rule, Site, after, aligned, last, named, one_of

_FIRST, _SECOND = Along(0, 1), Along(1, 2)


def convolution(site: Site, at: int, along: Along) -> Pattern | None:
    """Split `convolution(input, weight, bias, …)` along samples or channels.

    With a bias it does not split along the channels of its input: each piece would add it.
    """
    given, weight, bias = site.read(0), site.read(1), site.read(2)
    # One tensor in two roles would need rows along two dimensions.
    if given is None or weight is None or bias == weight or given in (weight, bias):
        return None
    into, out = _channels(site)
    ways: list[tuple[dict[int, Part], list[Part]]] = [({given: _FIRST}, [_FIRST])]
    groups = site.argument(8)
    if not along.is_plain:
        return one_of(site, at, along, ways)  # samples only: groups of channels are counted one by one
    if groups == 1:
        with_bias: dict[int, Part] = {} if bias is None else {bias: _FIRST}
        ways.append(({weight: out, **with_bias}, [_SECOND]))
        if bias is None:
            ways.append(({given: _SECOND, weight: into}, [SUM]))
    elif _by_channel(site, given, weight, groups):
        every: dict[int, Part] = {given: _SECOND, weight: _FIRST}
        ways.append(({**every, **({} if bias is None else {bias: _FIRST})}, [_SECOND]))
    found = one_of(site, at, along, ways)
    if found is None or groups == 1 or found.outputs[0] != _SECOND:
        return found
    # Depthwise: a piece has as many groups as channels.
    return found._replace(piece=site.counted(8))


def convolution_backward(site: Site, at: int, along: Along) -> Pattern | None:
    """Split `convolution_backward(gradient, input, weight, sizes of bias, …)` along samples or channels."""
    gradient, given, weight = (site.read(place) for place in range(3))
    if gradient is None or given is None or weight is None or len({gradient, given, weight}) < 3:
        return None
    into, out = _channels(site)
    groups, sizes = site.argument(9), site.argument(3)
    ways: list[tuple[dict[int, Part], list[Part]]] = [
        # Samples: gradients of weight and bias add up.
        ({gradient: _FIRST, given: _FIRST}, [_FIRST, SUM, SUM]),
    ]
    if not along.is_plain:
        return one_of(site, at, along, ways)
    if groups == 1:
        ways.append(({gradient: _SECOND, weight: out}, [SUM, out, _FIRST]))
        # The bias's gradient has nothing of the input's channels: each piece makes all of it.
        ways.append(({given: _SECOND, weight: into}, [_SECOND, into, WHOLE]))
    elif _by_channel(site, given, weight, groups):
        ways.append(({gradient: _SECOND, given: _SECOND, weight: _FIRST}, [_SECOND, _FIRST, _FIRST]))
    found = one_of(site, at, along, ways)
    if found is None or found.outputs[2] != _FIRST:
        return found

    def piece(rows: int) -> Call:
        return site.with_arguments({3: sizes and [rows], 9: 1 if groups == 1 else rows})

    return found._replace(piece=piece)


def _channels(site: Site) -> tuple[Along, Along]:
    """Return where channels of the input and of the result are in the weight."""
    return (_FIRST, _SECOND) if site.named("transposed") else (_SECOND, _FIRST)


def _by_channel(site: Site, given: int, weight: int, groups: int) -> bool:
    """Tell whether each channel has its own group, of one channel of the result."""
    return site.shape(given)[1] == site.shape(weight)[0] == groups and site.shape(weight)[1] == 1


def _pads(name: str = "padding") -> Rule:
    """Make the rule of what pads the last dimensions: an argument has two numbers for each."""
    return aligned(lambda site: last(len(site.named(name)) // 2)(site), packed=True)


def _many(names: Sequence[str], dimensions: Sequence[int], rule: dict[int, Rule]) -> dict[str, Rule]:
    return {name.format(count): rule[count] for name in names for count in dimensions}


_LAST = {count: aligned(last(count), packed=True) for count in (1, 2, 3)}
_RESIZED = {count: aligned(last(count), resized=2, packed=True) for count in (1, 2, 3)}
_POOLS = (
    "avg_pool{}d",
    "avg_pool{}d_backward",
    "max_pool{}d_with_indices",
    "max_pool{}d_with_indices_backward",
)
_ADAPTIVE = ("adaptive_avg_pool{}d", "adaptive_avg_pool{}d_backward")
_ADAPTIVE_MAX = ("adaptive_max_pool{}d", "adaptive_max_pool{}d_backward")
_PADS = (
    "reflection_pad{}d",
    "reflection_pad{}d_backward",
    "replication_pad{}d",
    "replication_pad{}d_backward",
)

IMAGES: dict[str, Rule] = {
    "convolution": convolution,
    "convolution_backward": convolution_backward,
    **_many((*_POOLS, *_ADAPTIVE, *_ADAPTIVE_MAX), (2, 3), _LAST),
    **_many(_PADS, (1, 2, 3), dict.fromkeys((1, 2, 3), _pads())),
    **_many(("upsample_nearest{}d", "upsample_nearest_exact{}d"), (1, 2, 3), _LAST),
    **_many(("upsample_nearest{}d_backward", "upsample_nearest_exact{}d_backward"), (1, 2, 3), _RESIZED),
    **dict.fromkeys(("upsample_bilinear2d", "upsample_bicubic2d"), _LAST[2]),
    **dict.fromkeys(("upsample_bilinear2d_backward", "upsample_bicubic2d_backward"), _RESIZED[2]),
    **dict.fromkeys(("upsample_bilinear2d_aa", "upsample_bicubic2d_aa"), _LAST[2]),
    **dict.fromkeys(("upsample_bilinear2d_aa_backward", "upsample_bicubic2d_aa_backward"), _RESIZED[2]),
    "upsample_linear1d": _LAST[1],
    "upsample_linear1d_backward": _RESIZED[1],
    "upsample_trilinear3d": _LAST[3],
    "upsample_trilinear3d_backward": _RESIZED[3],
    **dict.fromkeys(("pixel_shuffle", "pixel_unshuffle"), _LAST[3]),
    **dict.fromkeys(("im2col", "col2im"), aligned(after(1))),
    "grid_sampler_2d": aligned(after(1), (0, 1)),
    "grid_sampler_2d_backward": aligned(after(1), (0, 1, 2)),
    **dict.fromkeys(("fft_r2c", "fft_c2c", "fft_c2r"), aligned(named())),
}
