"""Candidates of PyTorch Geometric: every convolution, model, aggregation and normalization, on random graphs
(another graph of as many edges each batch, self-loops among them as chance has it)."""

from functools import partial

import torch
from memplan.model.iteration import Iteration
from strangers_torch import Calls
from torch import nn

NODES, EDGES, WIDTH, KINDS = 20, 60, 8, 3


def edges():
    return torch.randint(NODES, (2, EDGES))


def graphs():
    """To which of four graphs each node belongs, in order, none empty."""
    return torch.cat([torch.arange(4), torch.randint(4, (NODES - 4,))]).sort().values


WIDTHS = {
    "in_channels": WIDTH,
    "out_channels": WIDTH,
    "hidden_channels": WIDTH,
    "channels": WIDTH,
    "in_dim": WIDTH,
    "num_layers": 2,
    "K": 2,
    "k": 4,
    "heads": 2,
    "num_heads": 2,
    "num_relations": KINDS,
    "edge_dim": 4,
    "num_timesteps": 2,
    "space_dimensions": 3,
    "propagate_dimensions": 8,
    "dim": 3,
    "kernel_size": 3,
    "act": "relu",
    "eps": 1e-5,
    "depth": 2,
    "num_nodes": NODES,
    "processing_steps": 2,
    "num_seeds": 4,
    "max_num_elements": NODES,
    "num_groups": 2,
    "groups": 2,
    "alpha": 0.1,
    "nn": None,
}
CHOSEN = ("num_layers", "edge_dim", "num_relations", "hidden_channels")
CALLS = {
    "edge_index": edges,
    "x": lambda: torch.randn(NODES, WIDTH),
    "x_0": lambda: torch.randn(NODES, WIDTH),
    "h": lambda: torch.randn(NODES, WIDTH),
    "edge_type": lambda: torch.randint(KINDS, (EDGES,)),
    "edge_attr": lambda: torch.randn(EDGES, 4),
    "pseudo": lambda: torch.rand(EDGES, 3),
    "pos": lambda: torch.randn(NODES, 3),
    "batch": graphs,
    "index": graphs,
    "z": lambda: torch.randint(1, 9, (NODES,)),
    "edge_weight": lambda: torch.rand(EDGES),
    "hyperedge_index": lambda: torch.randint(NODES, (2, EDGES)),
}


def made(kind):
    """By the names of its parameters."""
    import inspect

    options = {}
    for name, parameter in inspect.signature(kind.__init__).parameters.items():
        needed = parameter.default is inspect.Parameter.empty and parameter.kind not in (2, 4)
        if name == "self" or not (needed or name in CHOSEN):
            continue
        options[name] = nn.Linear(WIDTH, WIDTH) if name == "nn" else WIDTHS[name]
    return kind(**options)


def given(kind):
    """Inputs by the names of forward's parameters."""
    import inspect

    for name, parameter in inspect.signature(kind.forward).parameters.items():
        if name == "self" or parameter.kind in (2, 4):
            continue
        needed = parameter.default is inspect.Parameter.empty
        if needed or name in ("batch", "index", "edge_attr", "edge_type"):
            yield name, CALLS[name]()


def first(output):
    while isinstance(output, tuple | list):
        output = output[0]
    return output.float().square().mean()


def built(kind):
    """Between two linear layers, as a part of a network."""
    names, inputs = zip(*given(kind), strict=True)
    layer = made(kind)

    def run(parts, *inputs):
        values = dict(zip(names, inputs, strict=True))
        for name in ("x", "h"):
            if name in values:
                values[name] = parts.before(values[name])
        return parts.layer(**values)

    return Iteration(Calls(run, before=nn.Linear(WIDTH, WIDTH), layer=layer).train(), inputs, first)


def candidates(known):
    """known: names that other lists have."""
    import torch_geometric.nn as pyg

    for group in (pyg.conv, pyg.models, pyg.aggr, pyg.norm):
        for name in sorted(group.__all__):
            kind = getattr(group, name)
            if isinstance(kind, type) and name.lower() not in known:
                yield name, partial(built, kind)
