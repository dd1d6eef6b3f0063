"""The caching allocator's rules, step by step as `CUDACachingAllocator.cpp` has them."""

import random
from itertools import pairwise

import numpy as np
import pytest
from memplan.graphs.generators import chain
from memplan.planner.addresses.caching_allocator import (
    MIB,
    CachingAllocator,
    ExpandableSegments,
    NoRoomError,
    reserved_peak,
    segment_size,
)
from memplan.planner.addresses.lifetimes import Lifetimes, lifetimes
from memplan.planner.baseline import baseline_schedule

KIB = 2**10


@pytest.fixture
def allocator():
    return CachingAllocator(64 * MIB)


@pytest.mark.parametrize(
    ("size", "segment"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 512, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 512, 12 * MIB),
    ],
)
def test_segments(allocator, size, segment):
    assert segment_size(size) == segment
    allocator.malloc(size)
    assert allocator.reserved == segment


def test_sizes_are_rounded_up_to_blocks_of_512(allocator):
    sizes = [allocator.malloc(size).size for size in (1, 512, 513, 1000)]
    assert sizes == [512, 512, 1024, 1024]
    assert (allocator.allocated, allocator.reserved) == (3072, 2 * MIB)


def test_small_blocks_are_cut_to_512_bytes_large_ones_to_1_mib(allocator):
    """A large block keeps a remainder of up to 1 MiB, and it counts."""
    allocator.malloc(MIB - 512)
    assert (allocator.allocated, allocator.malloc(MIB).start) == (MIB - 512, MIB - 512)
    large = CachingAllocator(64 * MIB)
    assert large.malloc(19 * MIB).size == 20 * MIB  # a segment of its own: 20 MiB, 1 MiB left, kept
    assert large.malloc(19 * MIB - 512).size == 19 * MIB - 512  # more than 1 MiB left, cut off
    other = CachingAllocator(64 * MIB)
    assert other.malloc(9 * MIB).size == 9 * MIB  # 11 of 20 MiB are left, and cut off
    assert other.malloc(10 * MIB).size == 11 * MIB  # 1 MiB would be left, and stays
    assert (other.allocated, other.reserved) == (20 * MIB, 20 * MIB)


def test_the_best_fit_is_taken_then_the_lowest_address(allocator):
    blocks = [allocator.malloc(size * KIB) for size in (8, 4, 16, 4, 8, 4)]
    for index in (4, 2, 0):
        allocator.free(blocks[index])
    assert allocator.malloc(7 * KIB).start == blocks[0].start
    assert allocator.malloc(8 * KIB).start == blocks[4].start
    assert allocator.malloc(5 * KIB).start == blocks[2].start


def test_free_neighbours_are_united(allocator):
    one, two, three, last = (allocator.malloc(4 * KIB) for _ in range(4))
    allocator.free(one)
    allocator.free(three)
    assert allocator.malloc(8 * KIB).start == 16 * KIB
    allocator.free(two)
    assert allocator.malloc(12 * KIB).start == 0
    allocator.free(last)


def test_memory_stays_with_its_stream(allocator):
    first = allocator.malloc(4 * KIB, stream=0)
    allocator.free(first)
    assert allocator.malloc(4 * KIB, stream=1).start == 2 * MIB
    assert allocator.malloc(4 * KIB, stream=0).start == 0
    assert allocator.reserved == 4 * MIB


def test_fragmentation_and_the_return_of_free_segments():
    """12 MiB are free in two segments; 12 MiB in one piece come only once a whole segment has gone back."""
    allocator = CachingAllocator(44 * MIB)
    kept, left = allocator.malloc(12 * MIB), allocator.malloc(12 * MIB)
    halves = [allocator.malloc(9 * MIB), allocator.malloc(11 * MIB)]
    assert (allocator.allocated, allocator.reserved) == (44 * MIB, 44 * MIB)
    allocator.free(halves[0])
    with pytest.raises(NoRoomError):
        allocator.malloc(10 * MIB)
    allocator.free(left)
    assert allocator.malloc(4 * MIB).size == 4 * MIB  # from the 9, the best fit
    assert allocator.reserved == 44 * MIB
    assert allocator.malloc(11 * MIB).size == 12 * MIB
    allocator.free(kept)
    assert allocator.malloc(1).size == 512  # no small segment was there: that of `kept` goes back
    assert allocator.reserved == 34 * MIB
    assert (allocator.reserved_peak, allocator.allocated_peak) == (44 * MIB, 44 * MIB)


def test_blocks_never_overlap_and_all_comes_back():
    """At random, against a map of who has which bytes."""
    rng = random.Random(0)
    allocator, taken = CachingAllocator(128 * MIB), []
    for _step in range(3000):
        if taken and rng.random() < 0.5:
            allocator.free(taken.pop(rng.randrange(len(taken))))
        else:
            size = rng.choice((700, 5 * KIB, 300 * KIB, 2 * MIB, 11 * MIB))
            try:
                taken.append(allocator.malloc(rng.randrange(1, size), rng.randrange(2)))
            except NoRoomError:
                continue
        spans = sorted((block.start, block.start + block.size) for block in taken)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
        assert allocator.allocated == sum(block.size for block in taken) <= allocator.reserved <= 128 * MIB
    for block in taken:
        allocator.free(block)
    allocator.release_cached()
    assert (allocator.allocated, allocator.reserved) == (0, 0)


def test_expandable_segments_grow_at_their_end():
    allocator = ExpandableSegments()
    first, second = allocator.malloc(12 * MIB), allocator.malloc(12 * MIB)
    assert (second.start, allocator.reserved) == (12 * MIB, 40 * MIB)  # 8 MiB were left: one page more
    allocator.free(first)
    assert (allocator.malloc(14 * MIB).start, allocator.reserved) == (24 * MIB, 40 * MIB)
    assert (allocator.malloc(512).start, allocator.reserved) == (0, 42 * MIB)  # small blocks have their own
    assert allocator.malloc(12 * MIB - 512).size == 12 * MIB - 512  # 512 bytes are left, and cut off
    assert allocator.malloc(25 * MIB).start == 38 * MIB  # 2 MiB were free at the end
    assert allocator.reserved == 82 * MIB


def test_blocks_of_expandable_segments_never_overlap():
    """At random; what is reserved reaches from the first block to the last."""
    rng = random.Random(0)
    allocator, taken = ExpandableSegments(), []
    for _step in range(2000):
        if taken and rng.random() < 0.5:
            allocator.free(taken.pop(rng.randrange(len(taken))))
        else:
            size = rng.choice((700, 5 * KIB, 300 * KIB, 2 * MIB, 11 * MIB))
            taken.append(allocator.malloc(rng.randrange(1, size), rng.randrange(2)))
        for pool in {(block.stream, block.small) for block in taken}:
            own = [block for block in taken if (block.stream, block.small) == pool]
            spans = sorted((block.start, block.start + block.size) for block in own)
            assert all(end <= start for (_, end), (start, _) in pairwise(spans))
        assert allocator.allocated == sum(block.size for block in taken) <= allocator.reserved
    for block in taken:
        allocator.free(block)
    assert all(len(blocks) == 1 for blocks in allocator._free.values())
    assert sum(block.size for ((_size, _start, block),) in allocator._free.values()) == allocator.reserved


# ── what it takes for a schedule ──


def rows(*lives, steps):
    """lives: (MiB, start, end)."""
    size, start, end = np.array(lives, np.int64).T
    return Lifetimes(np.arange(len(lives)), size * MIB, start, end, steps)


def test_small_tensors_share_a_segment_of_20_mib():
    assert reserved_peak(rows((3, 0, 2), (4, 1, 3), steps=4)) == 20 * MIB


def test_a_hole_between_two_that_live_is_not_used_by_a_larger_one():
    """12 MiB leave theirs, 14 MiB don't fit in there: 26 are taken, 14 live at most."""
    found = rows((12, 0, 1), (14, 1, 2), steps=3)
    assert found.live().max() == 14 * MIB
    assert reserved_peak(found) == 26 * MIB
    assert reserved_peak(found, expandable=True) == 20 * MIB


def test_what_is_always_there_is_taken_once():
    assert reserved_peak(rows((40, 0, 4), steps=4)) == 40 * MIB


def test_no_less_than_what_lives():
    graph = chain(12, seed=3)
    found = lifetimes(graph, baseline_schedule(graph))
    large = found._replace(size=found.size * MIB)
    assert reserved_peak(large) >= large.live().max()
