"""Sparse matrices among the inputs: planned as their parts, bitwise as eager PyTorch's, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import memplan
import pytest
import torch
from memplan.graphs.errors import MemplanError
from memplan.graphs.machine import Links, Machine
from torch import Tensor, nn
from torch.nn import functional

NODES, WIDTH, CLASSES = 12, 8, 3
PRODUCTS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "sparse.mm": torch.sparse.mm,
    "spmm": torch.spmm,
    "@": lambda adjacency, x: adjacency @ x,
    "method": lambda adjacency, x: adjacency.mm(x),
    "column": lambda adjacency, x: torch.stack([adjacency @ column for column in x.unbind(1)], 1),
}
FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "coo": lambda dense: twice(dense.to_sparse()),
    "coalesced": lambda dense: dense.to_sparse().coalesce(),
    "csr": Tensor.to_sparse_csr,
}


def twice(matrix: Tensor) -> Tensor:
    """Return the matrix with each value in two halves, which are not added yet."""
    indices, values = matrix.coalesce().indices(), matrix.coalesce().values()
    return torch.sparse_coo_tensor(
        torch.cat([indices, indices], 1), torch.cat([values, values]) / 2, matrix.shape
    )


class Gcn(nn.Module):
    """Two layers, with dropout between them, as in PyTorch's example."""

    def __init__(self, product: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.product = product
        self.first, self.second = nn.Linear(WIDTH, 16), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor, adjacency: Any) -> Tensor:
        hidden = self.product(adjacency, self.first(x)).relu()
        assert (adjacency.shape, adjacency.size(0), adjacency.dim()) == ((NODES, NODES), NODES, 2)
        return self.product(adjacency, self.second(functional.dropout(hidden, 0.5)))


def adjacency(seed: int, form: str) -> Tensor:
    torch.manual_seed(seed)
    return FORMS[form]((torch.rand(NODES, NODES) > 0.7).float() * torch.rand(NODES, NODES))


X, Y = torch.randn(NODES, WIDTH), torch.randint(CLASSES, (NODES,))


def loss_of(output: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(output, targets)


def assert_bitwise(product: str, form: str, *others: str, **options: Any) -> Any:
    """Train on matrices of several patterns, and compare with eager PyTorch."""
    mine, other = Gcn(PRODUCTS[product]), Gcn(PRODUCTS[product])
    own, theirs = (torch.optim.AdamW(module.parameters(), 0.01) for module in (mine, other))
    chosen = {"solver": "store-all", "budget": "200%", "cache": False, **options}
    batches = [adjacency(seed, each) for seed, each in enumerate((form, *others))]
    step = memplan.optimize(
        mine, (X, batches[0]), targets=Y, loss_fn=loss_of, optimizer=own, verify=True, **chosen
    )
    for turn, batch in enumerate([*batches, batches[0]]):
        torch.manual_seed(turn)
        loss = step(X, batch, targets=Y)
        torch.manual_seed(turn)
        theirs.zero_grad()
        expected = loss_of(other(X, batch), Y)
        expected.backward()
        theirs.step()
        assert torch.equal(loss, expected)
    for name, weight in other.state_dict().items():
        assert torch.equal(mine.state_dict()[name], weight), name
    return step


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("product", PRODUCTS)
def test_products_are_those_of_eager_pytorch(product: str, form: str) -> None:
    if product == "column" and form == "coo":
        pytest.skip("PyTorch's product with a vector is of coalesced matrices")
    assert_bitwise(product, form)


def test_another_pattern_is_another_shape() -> None:
    step = assert_bitwise("sparse.mm", "coo", "coo", "coalesced")
    assert len(step.plans) == 3


def test_they_are_recomputed_and_offloaded_as_others() -> None:
    machine = Machine(links=Links(1e9, 1e9))
    step = assert_bitwise("sparse.mm", "csr", solver="l2l", budget="100%", machine=machine)
    assert {"1.rows", "1.columns", "1.values"} < step.plans[0].program.inputs.keys()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda matrix, x: matrix.to_dense() @ x, "to_dense of a sparse input: give a COO or CSR matrix"),
        (lambda matrix, x: torch.sparse.softmax(matrix, 1) @ x, "softmax of a sparse input: give"),
        (lambda matrix, x: matrix.coalesce() @ x, "coalesced in the iteration: coalesce it before"),
    ],
)
def test_what_else_is_done_with_them_is_refused(use: Callable[[Any, Tensor], Tensor], words: str) -> None:
    module, matrix = Gcn(use), adjacency(0, "coo")
    with pytest.raises(MemplanError, match=words):
        memplan.optimize(module, (X, matrix), targets=Y, loss_fn=loss_of, budget="100%", cache=False)


def test_their_gradient_is_refused() -> None:
    matrix = adjacency(0, "coalesced").requires_grad_()
    with pytest.raises(MemplanError, match="a sparse input requires a gradient"):
        memplan.optimize(
            Gcn(torch.sparse.mm), (X, matrix), targets=Y, loss_fn=loss_of, budget="100%", cache=False
        )
