"""Clusters against brute force: convexity by reachability, dominators by removal, identity by mapping."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from math import inf
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from memplan.graphs.adjacency import Adjacency
from memplan.graphs.clusters.clusters import Cluster, Partition
from memplan.graphs.clusters.interface import Spans
from memplan.graphs.draft import Draft
from memplan.graphs.errors import InputError
from memplan.graphs.generators import chain, layered, unet
from memplan.graphs.graph import Graph, Kind, Phase
from memplan.graphs.partition.partition import partition
from memplan.graphs.structure.dominators import dominators
from memplan.graphs.structure.valid_order import is_valid_order
from small_graphs import small_graph
from training_graphs import training
from transformer_layers import transformer


def graphs() -> st.SearchStrategy[Graph]:
    """Random ones, and the training of random models, with changes in place and random numbers."""
    seeds = st.integers(0, 10**6)
    updates = st.sampled_from(["none", "end", "early"])
    return st.one_of(
        seeds.map(lambda seed: small_graph(Random(seed))),
        st.builds(
            lambda n, seed, width: layered(n, seed=seed, width=width),
            st.integers(1, 70),
            seeds,
            st.integers(1, 9),
        ),
        st.builds(
            lambda n, seed, update: training(n, seed, skip=0.3, update=update),
            st.integers(1, 9),
            seeds,
            updates,
        ),
        st.builds(lambda depth, seed: unet(depth, seed=seed), st.integers(1, 9), seeds),
        st.builds(lambda n, seed: chain(n, seed=seed), st.integers(1, 30), seeds),
    )


def limits() -> st.SearchStrategy[dict[str, int]]:
    return st.fixed_dictionaries({"top": st.integers(1, 12), "lower": st.integers(2, 9)})


def clusters(found: Partition) -> Iterator[Cluster]:
    return (Cluster(found, index) for index in range(len(found.first)))


def needs(graph: Graph) -> list[set[int]]:
    """Per operation those that make what it reads or changes; then changes in place and random numbers."""
    rows = [
        {p for x in (*graph.read_lists[o], *graph.mutate_lists[o]) for p in graph.producers[x].tolist()} - {o}
        for o in range(len(graph.operations))
    ]
    for x in range(len(graph.tensors)):
        changes = graph.mutators[x].tolist()
        for use in {*graph.consumers[x].tolist(), *changes}:
            for change in changes:
                if use != change:
                    rows[max(use, change)].add(min(use, change))
    drawn = np.flatnonzero(graph.operations.random).tolist()
    for before, after in pairwise(drawn):
        rows[after].add(before)
    return rows


def reach(rows: list[set[int]]) -> list[set[int]]:
    """Per operation all that must run before it."""
    before: list[set[int]] = []
    for row in rows:
        before.append(row.union(*(before[o] for o in row)))
    return before


@given(graphs(), limits())
def test_every_operation_has_one_place(graph: Graph, limit: dict[str, int]) -> None:
    found = partition(graph, **limit)
    root = found.root
    everything = [
        *root.forward.tolist(),
        *found.middle.tolist(),
        *root.backward.tolist(),
        *found.after.tolist(),
    ]
    assert sorted(everything) == list(range(len(graph.operations)))
    leaves = [cluster for cluster in clusters(found) if not cluster.children and cluster.index != root.index]
    assert sorted(o for leaf in leaves for o in leaf.forward.tolist()) == root.forward.tolist()
    assert sorted(o for leaf in leaves for o in leaf.backward.tolist()) == root.backward.tolist()
    for cluster in clusters(found):
        for part in ("forward", "backward"):
            inside = [o for child in cluster.children for o in getattr(child, part).tolist()]
            assert sorted(inside) == getattr(cluster, part).tolist() or not cluster.children
    assert is_valid_order(graph, found.order())


@given(graphs(), limits())
def test_sizes_are_within_their_limits(graph: Graph, limit: dict[str, int]) -> None:
    found = partition(graph, **limit)
    assert len(found.root.children) <= limit["top"]
    inner = [c for c in clusters(found) if c.children and c.index != found.root.index]
    assert all(2 <= len(cluster.children) <= limit["lower"] for cluster in inner)
    assert all(
        len(leaf.forward) == 1
        for leaf in clusters(found)
        if not leaf.children and leaf.partition.forward.size
    )


@given(graphs(), limits())
def test_clusters_are_convex(graph: Graph, limit: dict[str, int]) -> None:
    """Definition 3.3.1, on the forward part."""
    before = reach(needs(graph))
    for cluster in clusters(partition(graph, **limit)):
        inside = set(cluster.forward.tolist())
        later = {o for o in range(len(before)) if before[o] & inside}
        ahead: set[int] = set().union(*(before[o] for o in inside))
        assert later & ahead <= inside


@given(graphs(), limits())
def test_children_run_forward_in_order_and_backward_in_reverse(graph: Graph, limit: dict[str, int]) -> None:
    """Property 1, at every level."""
    rows = needs(graph)
    for cluster in clusters(partition(graph, **limit)):
        place = {o: k for k, child in enumerate(cluster.children) for o in child.forward.tolist()}
        assert all(place[p] <= place[o] for o in place for p in rows[o] if p in place)
        place = {o: k for k, child in enumerate(cluster.children) for o in child.backward.tolist()}
        assert all(place[p] >= place[o] for o in place for p in rows[o] if p in place)


def facts(graph: Graph, cluster: Cluster) -> list[object]:
    """All that makes a cluster what it is but names and times, by the places in its canonical order."""
    number = {x: k for k, x in enumerate(cluster.tensors())}
    inside = set(cluster.canonical.tolist())
    child = {o: k for k, c in enumerate(cluster.children) for o in c.canonical.tolist()}
    operations: list[object] = []
    for o in cluster.canonical.tolist():
        view = graph.operation(o)
        edges = [tuple(number[x] for x in row) for row in (view.reads, view.mutates, view.writes)]
        modes = [(m.workspace, m.on_host, *(number[x] for x in m.writes)) for m in view.modes]
        operations.append(
            (view.phase, view.workspace, view.recompute, view.random, edges, modes, child.get(o))
        )
    tensors = [
        (
            int(graph.tensors.bytes[x]),
            int(graph.tensors.kind[x]),
            x in graph.results,
            bool(set(graph.producers[x].tolist()) - inside),
            bool({*graph.consumers[x].tolist(), *graph.mutators[x].tolist()} - inside),
        )
        for x in number
    ]
    return [len(cluster.forward), operations, tensors]


@pytest.mark.scripts
@given(graphs(), limits(), st.sampled_from([0.0, 0.2, inf]))
def test_identical_clusters_are_isomorphic(graph: Graph, limit: dict[str, int], tolerance: float) -> None:
    """And clusters that are, and whose times agree, are identical."""
    found = partition(graph, **limit, tolerance=tolerance)
    time = graph.operations.time
    seen: dict[str, Cluster] = {}
    for cluster in clusters(found):
        first = seen.setdefault(cluster.identity, cluster)
        assert facts(graph, first) == facts(graph, cluster)
        mine, its = time[cluster.canonical], time[first.canonical]
        apart = float(np.abs(mine - its).sum())
        assert apart == 0 or apart <= tolerance * max(mine.sum(), its.sum())
    if tolerance == inf:
        firsts = [repr(facts(graph, cluster)) for cluster in seen.values()]
        assert len(set(firsts)) == len(firsts)


@given(st.integers(1, 40), st.floats(0.02, 0.5), st.integers(0, 10**6))
def test_dominators(count: int, density: float, seed: int) -> None:
    """a dominates x where no path from a source to x avoids a; of those the closest to x."""
    random = Random(seed)
    rows = [
        sorted(random.sample(range(x), min(x, sum(random.random() < density for _ in range(x)))))
        for x in range(count)
    ]
    found = dominators(Adjacency.of(rows)).tolist()
    for x in range(count):
        dominating = [a for a in range(x) if not _reachable(rows, x, without=a)]
        assert found[x] == max(dominating, default=-1)


def _reachable(rows: list[list[int]], x: int, without: int) -> bool:
    reached = [False] * len(rows)
    for node, row in enumerate(rows):
        reached[node] = node != without and (not row or any(reached[p] for p in row))
    return reached[x]


@given(graphs(), limits())
def test_names_and_their_order_do_not_matter(graph: Graph, limit: dict[str, int]) -> None:
    found = partition(graph, **limit)
    names = [f"o{i}" for i in range(len(graph.operations))]
    recomputed = partition(replace(graph, operations=replace(graph.operations, name=names)), **limit)
    assert found.order() == recomputed.order()
    assert found.children.lists() == recomputed.children.lists()
    assert [c.identity for c in clusters(found)] == [c.identity for c in clusters(recomputed)]


@given(st.integers(3, 40), st.integers(0, 10**6))
def test_the_first_merge_has_the_least_score(count: int, seed: int) -> None:
    """(3.1), among all pairs of neighbours; clusters of up to two operations. (Operations without values join
    first.)"""
    graph = layered(count, seed=seed, width=4)
    assume(all(graph.read_lists[o] or len(graph.consumers[o]) for o in range(count)))
    found = partition(graph, top=count - 1, lower=2)
    merged = [
        cluster
        for cluster in clusters(found)
        if len(cluster.children) == 2 and cluster.index != found.root.index
    ]
    assert merged
    spans = Spans.of(found)
    least = min(_score(graph, {o, o + 1}) for o in range(count - 1))
    assert min(sum(spans.interface(cluster)) for cluster in merged) <= least
    assert all(sum(spans.interface(c)) == _score(graph, set(c.forward.tolist())) for c in merged)


@given(graphs(), limits())
def test_interfaces(graph: Graph, limit: dict[str, int]) -> None:
    found = partition(graph, **limit)
    spans, ahead = Spans.of(found), {*found.forward.tolist(), *found.middle.tolist()}
    size = graph.tensors.bytes
    for cluster in clusters(found):
        inside = set(cluster.forward.tolist())
        used = {x for o in inside for x in (*graph.read_lists[o], *graph.mutate_lists[o])}
        reads = {x for x in used if (set(graph.producers[x].tolist()) & ahead) - inside}
        makes = {
            x
            for o in inside
            for x in graph.operations.writes[o].tolist()
            if ({*graph.consumers[x].tolist(), *graph.mutators[x].tolist()} & ahead) - inside
            or x in graph.results
        } - reads
        assert spans.interface(cluster) == (size[list(reads)].sum(), size[list(makes)].sum())


def _score(graph: Graph, inside: set[int]) -> int:
    read = {x for o in inside for x in graph.read_lists[o]}
    made = {x for o in inside for x in graph.operations.writes[o].tolist()}
    wanted = {x for x in made if set(graph.consumers[x].tolist()) - inside}
    return int(graph.tensors.bytes[[*(read - made), *wanted]].sum())


def test_where_nothing_dominates_clusters_are_neighbours() -> None:
    """Everybody reads two of the first operations: no dominators, yet the limits hold."""
    draft = Draft("fan")
    first = [draft.tensor(f"t{i}", 10) for i in range(2)]
    for i, x in enumerate(first):
        draft.operation(f"n{i}", time=1, writes=[x])
    for i in range(200):
        draft.operation(f"m{i}", time=1, reads=first, writes=[draft.tensor(f"u{i}", 10)])
    found = partition(draft.graph(), top=5, lower=4)
    assert len(found.root.children) <= 5


def test_hubs() -> None:
    """One sum of a thousand contributions, read by a thousand; one operation that reads them all. Convex all
    the same, and the operations stay in a valid order."""
    draft = Draft("hubs")
    total = draft.tensor("sum", 5)
    for i in range(1000):
        draft.operation(f"in{i}", time=1, writes=[total])
    made = [draft.tensor(f"t{i}", 3) for i in range(1000)]
    for i, x in enumerate(made):
        draft.operation(f"out{i}", time=1, reads=[total], writes=[x])
    draft.operation("all", time=1, reads=made, writes=[draft.tensor("y", 1)])
    graph = draft.graph()
    found = partition(graph)
    assert is_valid_order(graph, found.order())
    assert len(found.root.children) <= 30


def test_only_a_loss() -> None:
    draft = Draft("loss")
    x, loss = draft.tensor("x", 1, Kind.INPUT), draft.tensor("loss", 1)
    draft.operation("loss", time=1, reads=[x], writes=[loss], phase=Phase.LOSS)
    found = partition(draft.graph([loss]))
    assert (found.middle.tolist(), found.root.children, found.order()) == ([0], (), [0])


def test_no_operations() -> None:
    found = partition(Draft("empty").graph())
    assert (found.order(), found.root.children, len(found.root.identity)) == ([], (), 34)


@pytest.mark.scripts
@settings(max_examples=1)
@given(st.just(20_000))
def test_many_operations(count: int) -> None:
    for graph in (layered(count), chain(count // 2), transformer(count // 24, masked=True)):
        found = partition(graph)
        assert len(found.root.children) <= 30
        assert is_valid_order(graph, found.order())


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"top": 0}, "the top level must have room for one node at least, not 0"),
        ({"lower": 1}, "a cluster must have room for two nodes at least, not 1"),
        ({"alpha": -1.0}, "alpha must lie between 0 and 8, not -1.0"),
        ({"alpha": float("nan")}, "alpha must lie between 0 and 8, not nan"),
        ({"tolerance": -0.1}, "the tolerance must be 0 or more, not -0.1"),
        ({"tolerance": float("nan")}, "the tolerance must be 0 or more, not nan"),
    ],
)
def test_what_is_refused(wrong: dict[str, float], words: str) -> None:
    with pytest.raises(InputError, match=words):
        partition(chain(2), **wrong)  # pyright: ignore[reportArgumentType]
