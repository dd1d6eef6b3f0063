"""Rules of matrix products, by the letters of `[m, k] @ [k, n]`."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from .rows import Along
from .rules import SUM, WHOLE, Part, Pattern, Rule, Site, broadcast, one_of


def product(site: Site, at: int, along: Along, *, first: int = 0) -> Pattern | None:
    """Split `left [m, k] @ right [k, n]`, with or without a batch dimension before. first: position of left.

    With a tensor that is added it does not split along k: each piece would add it.
    """
    left, right = site.read(first), site.read(first + 1)
    added = site.read(0) if first else None
    if left is None or right is None or left == right or added in (left, right):
        return None
    batch = len(site.shape(left)) - 2
    m, n = Along(batch, batch + 1), Along(batch + 1, batch + 2)
    # Where a dimension of the product is in left, right and the result.
    ways: list[tuple[Part, Part, Part]] = [(m, WHOLE, m), (WHOLE, n, n), (n, m, SUM)]
    if batch:
        ways.append((Along(0, 1), Along(0, 1), Along(0, 1)))
    found = one_of(site, at, along, [({left: way[0], right: way[1]}, way[2:]) for way in ways])
    if found is None or added is None:
        sums = found is not None and found.outputs[0] is SUM
        return found and found._replace(accumulate=add_product if sums else None)
    (out,) = found.outputs
    part = broadcast(site.shape(added), site.shape(site.made[0]), out) if isinstance(out, Along) else None
    return None if part is None else found._replace(inputs={**found.inputs, added: part})


def add_product(total: Tensor, left: Tensor, right: Tensor) -> Tensor:
    return total.addmm_(left, right) if total.dim() == 2 else total.baddbmm_(left, right)


def with_vector(site: Site, at: int, along: Along) -> Pattern | None:
    """Split `mv(left [m, k], vector [k])` and `dot(left [k], vector [k])`."""
    left, right = site.read(0), site.read(1)
    if left is None or right is None:
        return None
    rank = len(site.shape(left))
    k, m = Along(rank - 1, rank), Along(0, 1)
    ways: list[tuple[dict[int, Part], tuple[Part]]] = [({left: k, right: m}, (SUM,))]
    if rank == 2:
        ways.append(({left: m}, (m,)))
    return one_of(site, at, along, ways)


PRODUCTS: dict[str, Rule] = {
    **dict.fromkeys(("mm", "bmm"), product),
    **dict.fromkeys(("addmm", "baddbmm"), partial(product, first=1)),
    **dict.fromkeys(("mv", "dot"), with_vector),
}
