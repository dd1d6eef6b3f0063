"""The section `splits`: graphs are read as they were written, and each fault is one line with its place."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memplan.graphs.errors import InputError
from memplan.graphs.files.files import graph_digest, load_graph, load_graphs, save_graph
from memplan.graphs.files.splits import splits_from_document, splits_to_document
from memplan.graphs.files.write import graph_to_document
from memplan.graphs.graph import Graph
from split_graphs import split_graphs


def documents(graphs: list[Graph]) -> list[Any]:
    return [graph_to_document(graph) for graph in graphs]


@given(seed=st.integers(0, 10**6))
def test_splits_are_read_as_they_were_written(seed: int) -> None:
    whole, *splits = split_graphs(Random(seed))
    document = {**graph_to_document(whole), "splits": splits_to_document(whole, splits)}
    read = splits_from_document(json.loads(json.dumps(document)), "g.json")
    assert documents(read) == documents(splits)
    # What both have in common is a name: the operations of the layers.
    assert all(sum(isinstance(row, str) for row in entry["operations"]) == 4 for entry in document["splits"])


@pytest.mark.parametrize("suffix", [".json", ".yaml", ".json.gz"])
def test_a_file_with_splits_is_its_whole_graph_to_others(tmp_path: Path, suffix: str) -> None:
    whole, *splits = split_graphs(Random(0))
    path = tmp_path / f"g{suffix}"
    save_graph(whole, path, splits)
    assert graph_digest(load_graph(path)) == graph_digest(whole)
    assert [graph_digest(one) for one in load_graphs(path)] == [graph_digest(one) for one in (whole, *splits)]
    save_graph(whole, path)
    assert len(load_graphs(path)) == 1


FAULTS: dict[str, tuple[Any, str]] = {
    "no list": ({}, "splits must be a list"),
    "no mapping": ([1], r"splits\[0\]: an entry must be a mapping"),
    "a field too many": ([{"tensors": [], "operations": [], "x": 1}], r"splits\[0\]: unknown field 'x'"),
    "a field too few": ([{"tensors": []}], r"splits\[0\]: .*operations"),
    "an unknown name": ([{"tensors": ["x9"], "operations": []}], r"tensors\[0\]: the graph has no 'x9'"),
    "a tensor twice": ([{"tensors": ["x0", "x0"], "operations": []}], r"splits\[0\]: .*stands twice"),
    "a result that nothing makes": ([{"tensors": ["x0"], "operations": []}], r"splits\[0\]: field 'results'"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_line_with_its_place(tmp_path: Path, fault: str) -> None:
    splits, expected = FAULTS[fault]
    document = {**graph_to_document(split_graphs(Random(0))[0]), "splits": splits}
    path = tmp_path / "g.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match=expected) as refusal:
        load_graphs(path)
    assert str(refusal.value).startswith(f"{path}: ")
    assert "\n" not in str(refusal.value)
