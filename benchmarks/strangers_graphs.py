"""Layers and models of PyTorch Geometric, as they are by default: by name, functions that return an
Iteration."""

from itertools import pairwise

import torch
import torch_geometric.nn as pyg
from memplan.model.iteration import Iteration
from strangers_torch import net, square
from torch import nn

NODES, EDGES, WIDTH = 20, 60, 8


def edges():
    """Some are self-loops."""
    found = torch.randint(NODES, (2, EDGES))
    found[:, 0] = 3
    return found


def graphs():
    """To which of four graphs each node belongs; none is empty."""
    return torch.cat([torch.arange(4), torch.randint(4, (NODES - 4,))]).sort().values


def layers(make, *others, width=WIDTH, positional=()):
    """Two layers of a kind on one graph. others: what each takes after the edges."""

    def run(parts, x, edge_index, *more):
        x = parts.one(x, edge_index, *more).relu()
        return parts.two(x, edge_index, *more)

    return lambda: net(
        run, torch.randn(NODES, width), edges(), *(other() for other in others), one=make(), two=make()
    )


def mlp(*widths):
    parts = [part for pair in pairwise(widths) for part in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*parts[:-1])


def propagated():
    def run(parts, x, edge_index):
        return parts.spread(parts.layer(x), edge_index)

    parts = {"layer": nn.Linear(WIDTH, 4), "spread": pyg.APPNP(3, 0.1)}
    return net(run, torch.randn(NODES, WIDTH), edges(), **parts)


def model(kind, **options):
    return lambda: net(
        lambda parts, x, edge_index: parts.model(x, edge_index),
        torch.randn(NODES, WIDTH),
        edges(),
        model=kind(WIDTH, 16, 2, 4, **options),
    )


def classified(readout):
    """A classifier of the graphs in a batch."""

    def run(parts, x, edge_index, batch):
        x = parts.one(x, edge_index).relu()
        return parts.out(readout(x, batch))

    return lambda: net(
        run, torch.randn(NODES, WIDTH), edges(), graphs(), one=pyg.GCNConv(WIDTH, 8), out=nn.Linear(8, 4)
    )


def pooled(pooling):
    def run(parts, x, edge_index, batch):
        x = parts.one(x, edge_index).relu()
        x, _edges, _weights, batch, *_others = parts.pool(x, edge_index, None, batch)
        return parts.out(pyg.global_mean_pool(x, batch))

    return lambda: net(
        run,
        torch.randn(NODES, WIDTH),
        edges(),
        graphs(),
        one=pyg.GCNConv(WIDTH, 8),
        pool=pooling(8),
        out=nn.Linear(8, 4),
    )


def auto_encoder():
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.mean, self.spread = (pyg.GCNConv(WIDTH, WIDTH) for _ in range(3))

        def forward(self, x, edge_index):
            x = self.one(x, edge_index).relu()
            return self.mean(x, edge_index), self.spread(x, edge_index)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.vgae = pyg.VGAE(Encoder())

        def forward(self, x, edge_index):
            z = self.vgae.encode(x, edge_index)
            return self.vgae.recon_loss(z, edge_index) + self.vgae.kl_loss() / NODES

    return Iteration(Model(), (torch.randn(NODES, WIDTH), edges()))


def hetero():
    def run(parts, papers, authors, writes):
        found = parts.layer(
            {"paper": papers, "author": authors},
            {("author", "writes", "paper"): writes, ("paper", "by", "author"): writes.flip(0)},
        )
        return found["paper"].square().mean() + found["author"].square().mean()

    layer = pyg.HeteroConv(
        {
            ("author", "writes", "paper"): pyg.SAGEConv((WIDTH, WIDTH), 8),
            ("paper", "by", "author"): pyg.GATConv((WIDTH, WIDTH), 8, add_self_loops=False),
        }
    )
    inputs = torch.randn(NODES, WIDTH), torch.randn(NODES, WIDTH), edges()
    return net(run, *inputs, layer=layer, loss=lambda loss: loss)


def schnet():
    """The edges are the pairs of atoms that are near each other."""

    class Near(nn.Module):
        pairs: torch.Tensor

        def __init__(self):
            super().__init__()
            self.register_buffer("pairs", torch.combinations(torch.arange(6)).T.contiguous())

        def forward(self, positions, batch):
            return self.pairs, (positions[self.pairs[0]] - positions[self.pairs[1]]).norm(dim=-1)

    module = pyg.SchNet(16, 16, 2, 8, interaction_graph=Near())
    return Iteration(module, (torch.randint(1, 9, (6,)), torch.randn(6, 3)), square)


def attributes():
    return torch.randn(EDGES, 4)


def kinds():
    return torch.randint(3, (EDGES,))


GRAPHS = {
    "GCN": layers(lambda: pyg.GCNConv(WIDTH, WIDTH)),
    "GAT": layers(lambda: pyg.GATConv(WIDTH, 4, heads=2)),
    "GATv2": layers(lambda: pyg.GATv2Conv(WIDTH, 4, heads=2)),
    "GraphSAGE": layers(lambda: pyg.SAGEConv(WIDTH, WIDTH)),
    "GIN": layers(lambda: pyg.GINConv(mlp(WIDTH, 16, WIDTH))),
    "GINE": layers(lambda: pyg.GINEConv(mlp(WIDTH, 16, WIDTH), edge_dim=4), attributes),
    "Chebyshev": layers(lambda: pyg.ChebConv(WIDTH, WIDTH, 3)),
    "TAG": layers(lambda: pyg.TAGConv(WIDTH, WIDTH)),
    "SGC": layers(lambda: pyg.SGConv(WIDTH, WIDTH, 2)),
    "APPNP": propagated,
    "ARMA": layers(lambda: pyg.ARMAConv(WIDTH, WIDTH)),
    "GraphConv": layers(lambda: pyg.GraphConv(WIDTH, WIDTH)),
    "TransformerConv": layers(lambda: pyg.TransformerConv(WIDTH, 4, heads=2)),
    "EdgeConv": layers(lambda: pyg.EdgeConv(mlp(2 * WIDTH, WIDTH))),
    "PNA": layers(
        lambda: pyg.PNAConv(
            WIDTH, WIDTH, ["mean", "max", "std"], ["identity", "amplification"], torch.ones(9)
        )
    ),
    "ResGated": layers(lambda: pyg.ResGatedGraphConv(WIDTH, WIDTH)),
    "GatedGraph": layers(lambda: pyg.GatedGraphConv(WIDTH, 2)),
    "RGCN": layers(lambda: pyg.RGCNConv(WIDTH, WIDTH, 3), kinds),
    "NNConv": layers(lambda: pyg.NNConv(WIDTH, WIDTH, mlp(4, WIDTH * WIDTH)), attributes),
    "GEN": layers(lambda: pyg.GENConv(WIDTH, WIDTH)),
    "GPS": layers(lambda: pyg.GPSConv(WIDTH, pyg.GCNConv(WIDTH, WIDTH), heads=2)),
    "GCN2 model": model(pyg.GCN, norm="batch_norm", dropout=0.2),
    "GAT model": model(pyg.GAT, jk="cat"),
    "mean pooling": classified(pyg.global_mean_pool),
    "Set2Set": classified(pyg.global_add_pool),
    "top-k pooling": pooled(pyg.TopKPooling),
    "SAG pooling": pooled(pyg.SAGPooling),
    "variational graph auto-encoder": auto_encoder,
    "heterogeneous": hetero,
    "SchNet": schnet,
}
