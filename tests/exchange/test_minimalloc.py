"""MiniMalloc's tables: buffers overlap in the graph as they do in the file, and addresses can be found."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from memplan.exchange.formats import Options, read
from memplan.graphs.errors import InputError
from memplan.instances.catalogue import corpora
from memplan.planner.addresses.addresses import lay_out, rows_of
from memplan.planner.baseline import baseline, baseline_schedule
from memplan.planner.bounds import has_one_schedule

HEAD = "id,lower,upper,size\n"


def write(text: str, folder: Path) -> Path:
    path = folder / "a.csv"
    path.write_text(text)
    return path


@pytest.mark.parametrize("seed", range(12))
def test_buffers_overlap_as_in_the_table(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    rows: list[tuple[int, int, int, int]] = []
    for name in range(random.randint(1, 12)):
        lower = random.randint(0, 9)
        rows.append((name, lower, lower + random.randint(1, 6), random.randint(0, 50)))
    text = HEAD + "".join(f"{','.join(map(str, row))}\n" for row in rows)
    graph = read("minimalloc", write(text, tmp_path), Options())
    peak = max(sum(size for _n, low, high, size in rows if low <= moment < high) for moment in range(20))
    assert baseline(graph).peak == peak
    assert has_one_schedule(graph)
    copies = rows_of(graph, baseline_schedule(graph), budget=10**6)
    lives = sorted((size, upper - lower) for _name, lower, upper, size in rows if size)
    assert sorted(copies.size.tolist()) == [size for size, _life in lives]
    pairs = sum(
        one[1] < other[2] and other[1] < one[2]
        for place, one in enumerate(rows)
        for other in rows[:place]
        if one[3] and other[3]
    )
    begin, end = copies.start.tolist(), copies.end.tolist()
    found = sum(begin[k] < end[i] and begin[i] < end[k] for k in range(len(begin)) for i in range(k))
    assert found == pairs


def test_other_names_of_columns(tmp_path: Path) -> None:
    """`end` is the last moment; an offset says nothing of the problem."""
    graph = read(
        "minimalloc", write("size,buffer_id,begin,end,offset\n5,x,0,1,7\n6,y,2,3,9\n", tmp_path), Options()
    )
    assert baseline(graph).peak == 6
    assert baseline(graph).time == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no table"),
        ("id,lower,size\nx,0,1\n", "its head is id,lower,size"),
        (HEAD + "x,0,1\n", "buffer 1 has 3 cells, of 4 columns"),
        (HEAD + "x,3,3,1\n", "buffer x: it ends at 3, before it begins at 3"),
        (HEAD + "x,0,1,-4\n", "buffer x: size must be a whole number"),
        ("id,lower,upper,size,alignment\nx,0,1,4,32\n", "alignment 32 is not supported: leave it out"),
        (HEAD + "x,0,1,4\nx,0,1,4\n", "two tensors have the name 'x'"),
    ],
)
def test_what_is_not_understood_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        read("minimalloc", write(text, tmp_path), Options())


def test_an_instance_fits_its_capacity() -> None:
    graph = corpora()["minimalloc"].instances["minimalloc-j"].graph()
    assert lay_out(rows_of(graph, baseline_schedule(graph)), 2**20).size <= 2**20
