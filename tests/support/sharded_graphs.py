"""Graphs of sharded training: equal layers, language models."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import inf

from memplan.graphs.generators import chain
from memplan.graphs.graph import Graph
from memplan.graphs.machine import Links, Machine, Peers
from memplan.graphs.transformations.sharding import sharded
from memplan.graphs.transformations.updates import ADAMW, with_updates
from memplan.instances.models import model_named
from memplan.instances.transformer import Rates, Training, transformer

RATES = (2.0**19, 2.0**21, 2.0**24)


@cache
def layers(rate: float = inf, latency: float = 0.0) -> Graph:
    """Eight layers in one chain, on eight ranks."""
    graph = with_updates(chain(8, seed=3), optimizer=ADAMW, when="in-backward", device_rate=2.0**24)
    graph = sharded(graph, Peers(rate, latency, ranks=8))
    return replace(graph, machine=Machine(links=Links(peers=Peers(rate, latency, ranks=8))))


@cache
def language_model(name: str, layers: int | None = None) -> Graph:
    """A language model on eight ranks over PCIe, with AdamW; with other than its own number of layers."""
    model = model_named(name)
    model = model if layers is None else replace(model, layers=layers)
    rates = Rates(flops=150e12, update_device=90e9, update_host=1e9)
    graph, peers = transformer(model, Training(4, 512), rates), Peers(20e9, 30e-6, ranks=8)
    return replace(sharded(graph, peers), machine=Machine(links=Links(peers=peers)))
