"""Ranks of which there is one, in this process: what it agrees on with itself, and what it says once lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from memplan.devices.sharded.meshes import check_dimensions, rank_groups
from memplan.devices.sharded.ranks import OnAllRanksError, Ranks
from memplan.devices.sharded.single import SINGLE
from memplan.graphs.errors import InputError, MemplanError
from memplan.torch_support.torch_collectives import name_of_group
from torch import distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh

CPU = torch.device("cpu")
ANEW = "start all ranks anew, from a checkpoint"


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def alone(group: None) -> Iterator[Ranks]:
    ranks = Ranks(True, CPU)
    yield ranks
    ranks.end()


def test_one_rank_has_all_shares(alone: Ranks) -> None:
    assert (alone.size, alone.rank, alone.shards, alone.shard) == (1, 0, 1, 0)
    assert (alone.replicas, alone.on_node, alone.members) == (1, 1, [0])
    assert len(alone.placements) == alone.mesh.ndim == 1


def test_it_agrees_with_itself(alone: Ranks) -> None:
    assert alone.gathered({"a": 1}) == SINGLE.gathered({"a": 1}) == [{"a": 1}]
    assert alone.from_first("mine") == SINGLE.from_first("mine") == "mine"
    assert alone.numbers(3, -1, 2**40) == [[3, -1, 2**40]]
    assert alone.numbers(7) == [[7]]
    assert alone.together(lambda: "made") == SINGLE.together(lambda: "made") == "made"


def test_collectives_of_one_rank_copy(alone: Ranks) -> None:
    shares = [torch.tensor([1.0, 2.0]), torch.tensor([3.0])]
    full = [torch.zeros(2), torch.zeros(1)]
    alone.gather([*zip(shares, full, strict=True)])
    assert [each.tolist() for each in full] == [[1.0, 2.0], [3.0]]
    averaged = [torch.zeros(2), torch.zeros(1)]
    alone.scatter([*zip(full, averaged, strict=True)])
    assert [each.tolist() for each in averaged] == [[1.0, 2.0], [3.0]]
    numbers = torch.tensor([5.0, 7.0])
    alone.add_up(numbers)
    assert numbers.tolist() == [5.0, 7.0]
    all_ = torch.zeros(4, dtype=torch.uint8)
    alone.to_first(torch.arange(4, dtype=torch.uint8), all_)
    assert all_.tolist() == [0, 1, 2, 3]


def test_groups_of_the_module_have_labels(alone: Ranks) -> None:
    (name,) = alone.users_groups
    label = alone.label(name)
    assert label == alone.label(name) == "0"
    assert alone.members_of(label) == [0]
    alone.open([label])
    other = dist.new_group([0])
    assert other is not None
    assert alone.label(name_of_group(other)) == label  # the same ranks
    assert alone.communicator(label).members == [0]


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (MemplanError("no plan"), ""),
        (OnAllRanksError(), ""),
        (ValueError("a bug"), f"this rank has failed: a bug; {ANEW}"),
    ],
)
def test_an_error_of_this_rank_alone_ends_all(alone: Ranks, error: Exception, lost: str) -> None:
    """One of memplan's may be met by another call; one that all know of ends none."""
    with pytest.raises(type(error)), alone.beating():
        raise error
    assert alone.lost == lost


def test_what_all_know_of_ends_none(alone: Ranks) -> None:
    def fail() -> None:
        raise ValueError("here")

    with pytest.raises(ValueError, match="here"), alone.beating():
        alone.together(fail)
    assert alone.lost == ""
    with pytest.raises(ValueError, match="here"), alone.beating():
        fail()
    assert alone.lost.startswith("this rank has failed: here")


def test_no_collective_runs_after_one_that_has_failed(alone: Ranks) -> None:
    with pytest.raises(ValueError, match="midway"), alone.in_order():
        raise ValueError("midway")
    assert alone.lost == f"this rank has failed: midway; {ANEW}"
    alone.leave(ValueError("a later one"))
    alone.note(ValueError("nobody asks"))
    assert alone.lost == f"this rank has failed: midway; {ANEW}"
    for call in (lambda: alone.gathered(1), lambda: alone.numbers(1), lambda: alone.communicator("0")):
        with pytest.raises(MemplanError, match="this rank has failed: midway"):
            call()


def test_a_program_that_ends_says_so(alone: Ranks) -> None:
    alone.end()
    assert alone.lost == "the program has ended"
    alone.end(ValueError("later"))
    assert alone.lost == "the program has ended"
    other = Ranks(True, CPU)
    other.leave(None)
    assert other.lost == f"this rank has failed; {ANEW}"


def test_meshes_that_are_none_of_running_ranks_are_refused(group: None) -> None:
    mesh = DeviceMesh("cpu", [0])
    assert rank_groups(mesh, CPU).all == rank_groups(True, CPU).row == [0]
    assert rank_groups(mesh, CPU).in_first_row
    with pytest.raises(InputError, match="has a mesh of cpu devices, and the model is on meta"):
        rank_groups(mesh, torch.device("meta"))
    check_dimensions(mesh)
    check_dimensions(True)
    both = DeviceMesh("cpu", [[0]], mesh_dim_names=("replicate", "shard"))
    check_dimensions(both)
    for names in (("dp", "tp"), ("replicate", "tp"), None):
        with pytest.raises(InputError, match="a mesh of 2 dimensions"):
            check_dimensions(DeviceMesh("cpu", [[0]], mesh_dim_names=names))


def test_without_a_group_there_are_no_ranks() -> None:
    with pytest.raises(InputError, match="there is no process group"):
        rank_groups(True, CPU)
