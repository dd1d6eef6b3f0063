"""Rules of fused attention: it splits along samples, and along heads where all tensors have as many.

Never along queries: its backward would sum the gradients of keys over pieces, and what is causal would count
from the first row of a piece.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...program.program import Ref
from .rows import Along
from .rules import WHOLE, Part, Pattern, Rule, Site, broadcast


def attention(given: Sequence[int], results: int, bias: str = "", *, dense: bool = False) -> Rule:
    """Make the rule of an operator over `[samples, heads, …]`.

    given: positions of the arguments with rows.
    results: number of the results with rows, the first ones. What the others hold is of random numbers, of
        which a call that splits draws none.
    bias: name of the argument that is added to the scores, or masks them.
    dense: its kernels read sums of exponentials without regard to strides, so a piece is a run in memory.
    """

    def rule(site: Site, at: int, along: Along) -> Pattern | None:
        have = {value for place in given if (value := site.read(place)) is not None}
        made = [value for value in site.call.outputs[:results] if value is not None]
        if along.stop > 2 or at not in (*have, *made):
            return None
        if len({site.shape(value)[along.start : along.stop] for value in (*have, *made)}) > 1:
            return None
        if dense and any(size > 1 for size in site.shape(at)[: along.start]):
            return None
        inputs: dict[int, Part] = {value: along if value in have else WHOLE for value in site.reads}
        if isinstance(added := site.named(bias), Ref):
            shape = (*site.shape(at)[:2], 1, 1)
            part = broadcast((*site.shape(added.value)[:-2], 1, 1), shape, along)
            if part is None or added.value in have:
                return None
            inputs[added.value] = part
        outputs = tuple(along if place < results else WHOLE for place in range(len(site.call.outputs)))
        return Pattern(inputs, outputs)

    return rule


_CPU = "scaled_dot_product_flash_attention_for_cpu"
_FLASH = "scaled_dot_product_flash_attention"
_EFFICIENT = "scaled_dot_product_efficient_attention"
_CUDNN = "scaled_dot_product_cudnn_attention"

ATTENTION: dict[str, Rule] = {
    _CPU: attention((0, 1, 2), 2, "attn_mask"),
    f"{_CPU}_backward": attention((0, 1, 2, 3, 4, 5), 3, "attn_mask"),
    _FLASH: attention((0, 1, 2), 2, dense=True),
    f"{_FLASH}_backward": attention((0, 1, 2, 3, 4, 5), 3, dense=True),
    _EFFICIENT: attention((0, 1, 2), 2, "attn_bias", dense=True),
    # The fourth result is the gradient of the bias: of its shape, which then has the rows too.
    f"{_EFFICIENT}_backward": attention((0, 1, 2, 3, 5, 6), 4, "attn_bias", dense=True),
    _CUDNN: attention((0, 1, 2), 2, "attn_bias", dense=True),
    f"{_CUDNN}_backward": attention((0, 1, 2, 3, 4, 5), 3, "attn_bias", dense=True),
}
