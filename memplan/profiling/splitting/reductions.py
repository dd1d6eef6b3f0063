"""Rules of reductions, and of norms over some dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...program.program import Call
from .rows import Along
from .rules import (
    SUM,
    WHOLE,
    Part,
    Pattern,
    Rule,
    Site,
    after,
    aligned,
    named,
    one_of,
    share_of_mean,
    without_gaps,
)


def reduced(site: Site, at: int, along: Along, *, term: bool = False, mean: bool = False) -> Pattern | None:
    """Split a reduction of its first argument over the dimensions `dim`, all by default.

    term: a result over rows is the sum of the pieces' results.
    mean: it is their mean, by numbers of elements.
    """
    (read,) = site.reads
    shape, over = site.shape(read), site.named("dim")
    listed = [over] if isinstance(over, int) else over or range(len(shape))
    gone = {dimension % max(1, len(shape)) for dimension in listed}
    kept = bool(site.named("keepdim", False))
    left = [d for d in range(len(shape)) if kept or d not in gone]
    sizes = tuple(1 if d in gone else shape[d] for d in left)
    if any(site.shape(value) != sizes for value in site.made):
        return None
    if site.makes(at):
        rows = left[along.start : along.stop]
        into = along._replace(start=rows[0], stop=rows[-1] + 1)
        # A dimension that went between two of the rows parts them.
        one_run = rows == list(into.dimensions) and gone.isdisjoint(rows)
        return Pattern({read: into}, site.all_outputs(along)) if one_run else None
    rows = {*along.dimensions}
    if rows.isdisjoint(gone):
        out = along if kept else along.shifted(-sum(d < along.start for d in gone))
        return Pattern({read: along}, site.all_outputs(out))
    if not rows <= gone or not (term or mean):
        return None
    whole = along.rows(shape)

    def piece(rows: int) -> Call:
        return site.called(share_of_mean, site.call.target, rows / whole)

    return Pattern({read: along}, site.all_outputs(SUM), piece=piece if mean else None)


def _normalised(site: Site) -> Sequence[int]:
    """Return the last dimensions, as many as `normalized_shape` has."""
    rank = len(site.shape(site.reads[0]))
    return range(rank - len(site.named("normalized_shape")), rank)


def group_norm(site: Site, at: int, along: Along, *, size: int, rule: Rule) -> Pattern | None:
    """Split `native_group_norm(…, N, C, HxW, group, eps)` or its backward along N. size: position of N."""
    found = rule(site, at, along) if along == Along(0, 1) else None
    return found and found._replace(piece=site.counted(size))


def batch_norm(site: Site, at: int, along: Along, *, backward: bool = False) -> Pattern | None:
    """Split a batch norm along channels, and along samples if its statistics are given."""
    first = site.read(0)
    assert first is not None
    pictures = {value for place in range(1 + backward) if (value := site.read(place)) is not None}
    pictures |= {v for v in site.call.outputs[:1] if v is not None}
    channels = site.shape(first)[1:2]
    vectors = {v for v in (*site.reads, *site.made) if v not in pictures}
    if any(site.shape(value) not in (channels, (0,)) for value in vectors):
        return None

    def part(value: int) -> Part:
        if value in pictures:
            return Along(1, 2)
        return Along(0, 1) if site.shape(value) == channels else WHOLE

    own: list[Part] = [WHOLE if value is None else part(value) for value in site.call.outputs]
    ways: list[tuple[dict[int, Part], list[Part]]] = [({value: part(value) for value in site.reads}, own)]
    # With given statistics samples do not depend on each other.
    if not site.named("train" if backward else "training"):
        sums: list[Part] = [Along(0, 1), *[SUM if backward else WHOLE] * (len(own) - 1)]
        ways.append(({value: Along(0, 1) for value in site.reads if value in pictures}, sums))
    found = one_of(site, at, along, ways)
    # Statistics of what has gaps are summed in another order.
    return found and without_gaps(site, found)


_LAYER_NORM = aligned(_normalised, (0,), packed=True)
_LAYER_NORM_BACKWARD = aligned(_normalised, (0, 1, 3, 4), sums=(1, 2), packed=True)
_RMS_NORM_BACKWARD = aligned(_normalised, (0, 1, 3), sums=(1,), packed=True)
_GROUP_NORM = partial(group_norm, size=3, rule=aligned(after(1), (0,)))
_GROUP_NORM_BACKWARD = partial(group_norm, size=5, rule=aligned(after(1), (0, 1, 2, 3), sums=(1, 2)))

REDUCTIONS: dict[str, Rule] = {
    **dict.fromkeys(("sum", "nansum", "count_nonzero"), partial(reduced, term=True)),
    "mean": partial(reduced, mean=True),
    **dict.fromkeys(("amax", "amin", "max", "min", "aminmax", "argmax", "argmin", "median"), reduced),
    **dict.fromkeys(("all", "any", "prod", "logsumexp", "linalg_vector_norm", "kthvalue"), reduced),
    **dict.fromkeys(("var", "std", "var_mean", "std_mean"), reduced),
    **dict.fromkeys(("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin"), aligned(named())),
    **dict.fromkeys(("sort", "topk", "glu", "glu_backward"), aligned(named())),
    **dict.fromkeys(("softmax", "log_softmax", "safe_softmax"), aligned(named(), packed=True)),
    **dict.fromkeys(("softmax_backward_data", "log_softmax_backward_data"), aligned(named(), packed=True)),
    **dict.fromkeys(("native_layer_norm", "fused_rms_norm"), _LAYER_NORM),
    "native_layer_norm_backward": _LAYER_NORM_BACKWARD,
    "fused_rms_norm_backward": _RMS_NORM_BACKWARD,
    "native_group_norm": _GROUP_NORM,
    "native_group_norm_backward": _GROUP_NORM_BACKWARD,
    **dict.fromkeys(
        ("native_batch_norm", "native_batch_norm_legit_functional", "native_batch_norm_legit_no_training"),
        batch_norm,
    ),
    "native_batch_norm_backward": partial(batch_norm, backward=True),
}
