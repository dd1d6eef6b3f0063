"""Fused attention in pieces, against the whole."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from memplan.profiling.splitting.attention import ATTENTION
from operator_cases import Cases, Drawn
from torch.nn import functional

aten: Any = torch.ops.aten

CASES = Cases()

_library = torch.library.Library("aten", "IMPL")


_CPU = "_scaled_dot_product_flash_attention_for_cpu"


@CASES.covering(_CPU, f"{_CPU}_backward")
def attention(drawn: Drawn) -> None:
    samples, heads, length, width = drawn.size(1, 3), drawn.size(1, 3), drawn.size(2, 5), 4
    query, key, value = (drawn.tensor(samples, heads, length, width) for _ in range(3))
    query, key, value = (one.contiguous() if one.stride(-1) != 1 else one for one in (query, key, value))
    mask = drawn.one_of(
        None,
        *(
            torch.randn(*some, length, length)
            for some in ((), (samples, heads), (1, heads), (samples, 1), (1, 1))
        ),
    )
    function = functional.scaled_dot_product_attention
    drawn.back(function(query, key, value, mask, is_causal=mask is None and drawn.one_of(True, False)))


_FLASH, _EFFICIENT, _CUDNN = (
    f"_scaled_dot_product_{one}_attention" for one in ("flash", "efficient", "cudnn")
)


@CASES.covering(_FLASH, _EFFICIENT, _CUDNN)
@CASES.covering(*(f"{name}_backward" for name in (_FLASH, _EFFICIENT, _CUDNN)))
def attention_of_gpus(drawn: Drawn) -> None:
    """By the CPU's kernel, in the forms of those of a GPU."""
    samples, heads, length = drawn.size(1, 3), drawn.size(1, 3), drawn.size(2, 5)
    query, key, value, gradient = (torch.randn(samples, heads, length, 4) for _ in range(4))
    given = query, key, value
    bias = drawn.one_of(
        None, torch.randn(samples, heads, length, length), torch.randn(1, heads, length, length)
    )
    out, sums, _, _, most, _, seed, offset, _ = getattr(aten, _FLASH)(*given)
    later = out, sums, None, None, most, most, 0.0, False, seed, offset
    getattr(aten, f"{_FLASH}_backward")(gradient, *given, *later)
    out, sums, seed, offset = getattr(aten, _EFFICIENT)(*given, bias, True)
    later = out, sums, seed, offset, 0.0, [True, True, True, False]
    getattr(aten, f"{_EFFICIENT}_backward")(gradient, *given, bias, *later)
    out, sums, _, _, most, _, seed, offset, _ = getattr(aten, _CUDNN)(*given, bias, True)
    later = out, sums, seed, offset, bias, None, None, most, most, 0.0, False
    getattr(aten, f"{_CUDNN}_backward")(gradient, *given, *later)


def _gpu_flash(*given: Any, **_keywords: Any) -> Any:
    out, sums = getattr(aten, _CPU)(*given[:3])
    return out, sums, None, None, 4, 4, torch.zeros(2), torch.zeros(()), torch.zeros(0)


def _gpu_cudnn(*given: Any, **_keywords: Any) -> Any:
    out, sums = getattr(aten, _CPU)(*given[:3], attn_mask=given[3])
    return out, sums, None, None, 4, 4, torch.zeros(()), torch.zeros(()), torch.zeros(0)


def _gpu_efficient(*given: Any, **_keywords: Any) -> Any:
    out, sums, *_others = _gpu_cudnn(*given)
    return out, sums, torch.zeros(()), torch.zeros(())


def _gpu_backward(*given: Any, places: tuple[int, int, int | None], results: int) -> Any:
    out, sums, bias = places
    mask = None if bias is None else given[bias]
    made = getattr(aten, f"{_CPU}_backward")(*given[:4], given[out], given[sums], 0.0, False, attn_mask=mask)
    return (*made, None) if results == 4 else made


_library.impl(_FLASH, _gpu_flash, "CPU")
_library.impl(_EFFICIENT, _gpu_efficient, "CPU")
_library.impl(_CUDNN, _gpu_cudnn, "CPU")
for _name, _places, _results in (
    (_FLASH, (4, 5, None), 3),
    (_EFFICIENT, (5, 6, 4), 4),
    (_CUDNN, (4, 5, 8), 3),
):
    _library.impl(f"{_name}_backward", partial(_gpu_backward, places=_places, results=_results), "CPU")


test_pieces_make_what_the_whole_makes, test_they_do_at_many_shapes = CASES.tests()


def test_every_rule_has_a_case() -> None:
    assert {*ATTENTION} <= CASES.covered
