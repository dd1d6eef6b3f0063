"""Shares of spread tensors by arithmetic, without other processes: rows, bytes, checksums, refusals."""

from __future__ import annotations

from math import prod
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from memplan.devices.sharded import shards as sharded
from memplan.devices.sharded.shards import Shards, check_module, checksum, checksums, local_of
from memplan.graphs.errors import InputError, MismatchError
from memplan.program.program import Value
from torch import nn

CPU = torch.device("cpu")


def shards(count: int, own: int) -> Shards:
    return Shards(cast("Any", SimpleNamespace(shards=count, shard=own, device=CPU)))


def form(*shape: int, dtype: torch.dtype = torch.float32) -> Value:
    strides = torch.empty(shape, device="meta").stride()
    return Value(storage=0, shape=shape, strides=strides, offset=0, dtype=dtype, device=CPU)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("length", [1, 2, 4, 5, 6, 7, 11])
def test_ranks_have_all_rows_once_and_send_as_many_each(count: int, length: int) -> None:
    rows = shards(count, 0).rows(length)
    assert (rows - 1) * count < length <= rows * count
    own = [shards(count, rank).own_rows(length) for rank in range(count)]
    assert sum(own) == length
    first = [rank * rows for rank in range(count)]
    assert own == [len(range(length)[begin : begin + rows]) for begin in first]


@pytest.mark.parametrize("shape", [(5,), (4, 3), (7, 2, 3), (1, 8)])
def test_padded_shares_are_of_one_size(shape: tuple[int, ...]) -> None:
    for rank in range(3):
        mine = shards(3, rank)
        share = mine.share(form(*shape, dtype=torch.float64))
        assert share.padded.numel() == mine.rows(shape[0]) * prod(shape[1:])
        assert tuple(share.local.shape) == (mine.own_rows(shape[0]), *shape[1:])
        assert share.gathered == share.padded.dtype == torch.float64
        if share.local.numel():  # its rows are the first of the padded memory
            share.padded.fill_(0.0)
            share.local.fill_(1.0)
            assert share.padded.tolist() == sorted(share.padded.tolist(), reverse=True)
            assert share.padded.sum() == share.local.numel()
        assert 3 * share.padded.nbytes == mine.padded_bytes(form(*shape, dtype=torch.float64))
        assert 2 * 3 * share.padded.numel() == mine.padded_bytes(form(*shape), torch.bfloat16)


def test_a_checksum_weighs_bytes_by_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Piece by piece as a whole; it wraps at 2 ** 64 as integers do."""
    tensor = torch.randint(0, 256, (23,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    wanted = sum(place * byte for place, byte in enumerate(tensor.tolist(), start=1))
    for checked in (2**22, 23, 7, 1):
        monkeypatch.setattr(sharded, "_CHECKED", checked)
        assert checksum(tensor) == wanted
    assert checksum(tensor.flip(0)) != wanted
    module = nn.Linear(2, 3)
    (name, (shape, dtype, number)), _bias = checksums(module)
    assert (name, shape, dtype, number) == ("weight", (3, 2), torch.float32, checksum(module.weight.detach()))


def test_parameters_that_have_no_rows_to_share_are_refused() -> None:
    module = nn.Linear(4, 4)
    check_module(module, 2)
    module.weight = nn.Parameter(torch.ones(4, 4).t()[:, 1:])
    with pytest.raises(InputError, match=r"weight has strides \[1, 4\], and is spread by rows"):
        check_module(module, 2)
    for odd in (torch.tensor(1.0), torch.ones(0, 3)):
        module.weight = nn.Parameter(odd)
        with pytest.raises(InputError, match="of which 2 ranks have no rows"):
            check_module(module, 2)
    both = torch.ones(8)
    module.weight, module.bias = nn.Parameter(both[:4]), nn.Parameter(both[4:])
    with pytest.raises(InputError, match="bias and weight lie in one memory"):
        check_module(module, 2)
    module.bias = module.weight
    check_module(module, 2)  # one parameter under two names


def test_an_ordinary_tensor_is_no_share() -> None:
    with pytest.raises(MismatchError, match="was replaced by an ordinary one"):
        local_of(torch.ones(2))


def test_full_weights_are_handed_over_by_the_holder_before() -> None:
    class Plan:
        def __init__(self, name: str) -> None:
            self.name = name

        def hand_over(self) -> dict[str, Any]:
            return {self.name: "full"}

    mine, first, second = shards(2, 0), Plan("first"), Plan("second")
    assert not mine.are_spread
    assert mine.take_over(first) == mine.take_over(first) == {}
    assert mine.take_over(second) == {"first": "full"}
    del second  # a plan that is gone has left nothing
    assert mine.take_over(first) == {}
    mine.let_go()
    assert mine.are_spread
