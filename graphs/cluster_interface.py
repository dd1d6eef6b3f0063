"""What passes between a cluster's forward part and the rest of the forward part: what (3.1) wants small."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .adjacency import Adjacency
from .cluster import Cluster


class Interface(NamedTuple):
    """Bytes read from forward operations outside; made for such, the loss, or as results. No batch, no
    persistent tensors: they are there anyway."""

    reads: int
    makes: int


def interface(cluster: Cluster) -> Interface:
    """Linear in the cluster's edges and those of the tensors it makes."""
    partition, inside = cluster.partition, cluster.forward
    graph = partition.graph
    ahead = partition.ahead
    used = np.union1d(_row(graph.operations.reads, inside), _row(graph.operations.mutates, inside))
    made = np.unique(_row(graph.operations.writes, inside))
    reads = [x for x in np.setdiff1d(used, made).tolist() if ahead[graph.producers[x]].any()]
    results = partition.results
    makes = [x for x in made.tolist() if results[x] or _others(graph.consumers[x], ahead, inside)]
    size = graph.tensors.bytes
    return Interface(int(size[reads].sum()), int(size[makes].sum()))


def _row(edges: Adjacency, operations: NDArray[np.int64]) -> NDArray[np.int32]:
    return np.concatenate([edges.columns[:0], *(edges[o] for o in operations.tolist())])


def _others(readers: NDArray[np.int32], ahead: NDArray[np.bool_], inside: NDArray[np.int64]) -> bool:
    forward = readers[ahead[readers]]
    return not np.isin(forward, inside, assume_unique=True).all()
