"""Clusters of a model of many equal layers are alike, and its backward operations stand with theirs."""

from __future__ import annotations

import numpy as np
import pytest
from memplan.graphs.clusters.clusters import Cluster
from memplan.graphs.partition.partition import partition
from transformer_layers import transformer


@pytest.mark.parametrize("masked", [False, True])
def test_equal_layers_are_identical_clusters(masked: bool) -> None:
    """Whatever their number: a few distinct clusters, and nearly all operations in one that has its like."""
    for layers in (24, 48, 96):
        found = partition(transformer(layers, masked=masked), top=30, lower=12)
        kinds: dict[str, list[Cluster]] = {}
        for cluster in found.root.walk():
            kinds.setdefault(cluster.identity, []).append(cluster)
        assert len(kinds) <= 10
        repeated = {o for kind in kinds.values() if len(kind) > 2 for c in kind for o in c.forward.tolist()}
        assert len(repeated) >= 0.9 * len(found.forward)
        assert max(len(c.forward) for kind in kinds.values() if len(kind) > 2 for c in kind) >= 12


def test_backward_operations_stand_with_what_they_serve() -> None:
    found = partition(transformer(12, masked=True), top=30, lower=12)
    names = list(found.graph.operations.name)
    for leaf in (Cluster(found, index) for index in range(len(found.first))):
        if leaf.children:
            continue
        served = {names[o].removeprefix("B.") for o in leaf.backward.tolist()} - {"loss"}
        assert served <= {names[o] for o in leaf.forward.tolist()}


def test_measured_times_may_differ_a_little() -> None:
    noisy = transformer(24, masked=False, noise=0.1)
    exact, near = (partition(noisy, lower=12, tolerance=t).root.children for t in (0.0, 0.2))
    assert len({c.identity for c in exact}) == len(exact)
    assert len({c.identity for c in near}) < len(near) / 2
    kind = next(c for c in near if len(near[0].partition.identities.identical(c.index)) > 1)
    identical = [Cluster(kind.partition, i) for i in kind.partition.identities.identical(kind.index).tolist()]
    times = [noisy.operations.time[c.canonical] for c in identical]
    assert kind.times() == pytest.approx(np.mean(times, axis=0))
    assert kind.times() == pytest.approx(identical[-1].times())
