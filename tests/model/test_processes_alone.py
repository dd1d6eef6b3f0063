"""A process whose group has no other: what it says when it has left, and when averages are due."""

from __future__ import annotations

from collections.abc import Iterator

import memplan
import pytest
import ranks
import torch
from memplan.model import processes
from memplan.model.processes import end_processes, inside
from torch import nn
from torch.nn.parallel import DistributedDataParallel


@pytest.fixture
def alone() -> Iterator[DistributedDataParallel]:
    """A module whose only rank is this process."""
    with ranks.alone():
        yield DistributedDataParallel(nn.Linear(6, 2))


def test_a_rank_that_has_left_says_why_and_runs_nothing_more(
    alone: DistributedDataParallel, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, found = inside(alone)
    assert module is alone.module
    assert found is not None
    assert inside(module) == (module, None)
    monkeypatch.setattr(processes, "_made", [found])
    gradient = torch.tensor([1.0, 2.0])
    end_processes(None)  # the program ends as it is meant to
    found.average_all([gradient])
    assert gradient.tolist() == [1.0, 2.0]
    assert not found.under_way
    end_processes(ValueError("no\nmemory"))
    assert found.lost == "this rank has failed: no memory; start all ranks anew, from a checkpoint"
    found.leave(ValueError("a later one"))
    for run in (lambda: found.average_all([gradient]), lambda: found.together([]).__enter__()):
        with pytest.raises(memplan.MemplanError, match="this rank has failed: no memory"):
            run()


def test_buffers_are_the_first_ranks_in_an_iteration_that_all_run(alone: DistributedDataParallel) -> None:
    found = inside(alone)[1]
    assert found is not None
    buffer, gradient = torch.ones(2), torch.tensor([3.0, 5.0])
    flat = torch.zeros(2)
    with found.together([buffer]):
        found.average_into(flat, [flat], [gradient])
    assert flat.tolist() == [3.0, 5.0]
    found.average_into(flat, [flat], [2 * gradient])  # alone, as in a comparison
    assert flat.tolist() == [6.0, 10.0]
    with pytest.raises(ValueError, match="repeated"), found.together([]):
        raise ValueError("repeated")
    assert not found.lost  # the iteration may run once more
    with found.together([]):
        pass


def test_an_update_is_not_within_no_sync(alone: DistributedDataParallel) -> None:
    found = inside(alone)[1]
    assert found is not None
    found.check_syncs()
    with alone.no_sync():
        assert not found.syncs
        with pytest.raises(memplan.MemplanError, match="call it outside of no_sync"):
            found.check_syncs()
    assert found.syncs
