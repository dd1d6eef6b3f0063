"""Cases of operators to run in pieces: random shapes and layouts, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from in_pieces import Checked
from torch import Tensor

ROUNDED = frozenset(
    (
        *("mm", "bmm", "addmm", "baddbmm", "mv", "convolution", "convolution_backward"),
        *("nll_loss_forward", "nll_loss2d_forward"),
        *("native_batch_norm", "native_batch_norm_backward", "_native_batch_norm_legit_functional"),
        "_native_batch_norm_legit_no_training",
        *("_fused_rms_norm", "_fused_rms_norm_backward"),  # on a CPU they are sums of other operators
        *("sum", "mean", "nansum", "prod", "logsumexp", "linalg_vector_norm", "logcumsumexp"),
        *("var", "std", "var_mean", "std_mean"),
        *("mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward"),
        *("soft_margin_loss_backward", "binary_cross_entropy_backward"),
    )
)
"""Operators that may choose another kernel, or another order of sums, for fewer rows, and means."""

CURVES = ("gelu", "silu", "tanh", "sigmoid", "elu", "softplus", "mish", "celu", "selu", "exp", "pow")
CURVED = frozenset(name for curve in (*CURVES, "log_sigmoid") for name in (curve, f"{curve}_backward"))
CURVED |= {"log_sigmoid_forward", "hardswish", "hardsigmoid"}
"""Operators whose kernels compute the last elements of a run, fewer than a vector has, by another formula."""

ACTIVATIONS = (
    *("gelu", "silu", "tanh", "sigmoid", "relu", "elu", "leaky_relu", "hardtanh", "softplus", "mish"),
    *("logsigmoid", "hardswish", "hardsigmoid", "softshrink", "hardshrink", "relu6", "celu", "selu"),
)


class Drawn:
    """What a case is made of: shapes, tensors in any layout, and choices."""

    def __init__(self, data: st.DataObject, checked: Checked) -> None:
        self._data, self._checked = data, checked
        torch.manual_seed(data.draw(st.integers(0, 2**31)))

    def size(self, least: int = 1, most: int = 5) -> int:
        return self._data.draw(st.integers(least, most))

    def shape(self, least: int = 1, most: int = 3) -> list[int]:
        return self._data.draw(st.lists(st.integers(1, 4), min_size=least, max_size=most))

    def one_of(self, *choices: Any) -> Any:
        return self._data.draw(st.sampled_from(choices))

    def tensor(self, *shape: int, grad: bool = True) -> Tensor:
        """Return a tensor of normal numbers, with or without gaps, its dimensions in any order in memory."""
        order = self._data.draw(st.permutations(range(len(shape))))
        gap = self._data.draw(st.integers(0, 1))
        made = torch.randn([shape[d] + gap for d in order])
        back = [order.index(d) for d in range(len(shape))]
        made = made.permute(back)[tuple(slice(size) for size in shape)]
        return made.requires_grad_() if grad else made

    def positive(self, *shape: int, grad: bool = True) -> Tensor:
        made = torch.rand(shape) * 0.9 + 0.05
        return made.requires_grad_() if grad else made

    def indices(self, below: int, *shape: int) -> Tensor:
        return torch.randint(below, shape)

    def dimension(self, tensor: Tensor) -> int:
        return self.size(-tensor.dim(), tensor.dim() - 1)

    def call(self, target: Callable[..., Any], *arguments: Any) -> None:
        """Check a call that does not go through the mode by itself."""
        self._checked.check(target, arguments, {})

    def back(self, *made: Tensor) -> None:
        """Run the backward pass from random gradients."""
        needed = [one for one in made if one.requires_grad]
        torch.autograd.backward(needed, [torch.randn(one.shape) for one in needed])


Case = Callable[[Drawn], None]


class Cases:
    """Functions that call operators, each with the names of those that it must split."""

    def __init__(self) -> None:
        self._cases: dict[str, tuple[Case, set[str]]] = {}

    def covering(self, *operators: str) -> Callable[[Case], Case]:
        """Add a case, or operators to it."""

        def registered(function: Case) -> Case:
            self._cases.setdefault(function.__name__, (function, set()))[1].update(operators)
            return function

        return registered

    @property
    def names(self) -> list[str]:
        return [*self._cases]

    @property
    def covered(self) -> set[str]:
        """The operators of all cases, as the table of rules names them."""
        return {name.lstrip("_") for _function, covers in self._cases.values() for name in covers}

    def tests(self) -> tuple[Callable[[str], None], Callable[[str], None]]:
        """Return the tests of all cases: at a few shapes, and a heavy one at many."""

        @pytest.mark.parametrize("name", self.names)
        def few(name: str) -> None:
            self.check(name, 3)

        @pytest.mark.scripts
        @pytest.mark.parametrize("name", self.names)
        def many(name: str) -> None:
            self.check(name, 100)

        return few, many

    def check(self, name: str, examples: int) -> Checked:
        """Run a case with that many examples, each call of it also in pieces."""
        function, covers = self._cases[name]
        checked = Checked(ROUNDED | CURVED)

        @settings(max_examples=examples, phases=(Phase.generate,))
        @given(st.data())
        def each(data: st.DataObject) -> None:
            drawn = Drawn(data, checked)
            with checked:
                function(drawn)

        each()
        assert not covers - set(checked.split)
        return checked
