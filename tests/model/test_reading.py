"""A step is called with its inputs, or with one batch of their form."""

from __future__ import annotations

from collections import UserDict, namedtuple
from typing import Any

import memplan
import pytest
import torch
from memplan.model.iteration import Called, Iteration, Labelled
from memplan.model.reading import Reading
from torch import nn

X, Y, Z = torch.ones(1), torch.ones(2), torch.ones(3)
Pair = namedtuple("Pair", "first second")

NAMED = {"a": X, "b": Y}


class Anything(nn.Module):
    """Takes whatever it is given."""

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        return arguments, keywords


def read(plan: Any, *arguments: Any, **keywords: Any) -> Any:
    return Reading(Iteration(Anything(), plan, torch.sum)).read(arguments, keywords)


@pytest.mark.parametrize("batch", [NAMED, UserDict(NAMED)])
def test_a_dict_is_the_batch_of_a_plan_of_names(batch: Any) -> None:
    assert read(NAMED, batch) == NAMED == read(NAMED, **batch)
    assert read(Labelled(NAMED, Z), batch, targets=Z) == Labelled(NAMED, Z)


@pytest.mark.parametrize("batch", [(X, Y), [X, Y], Pair(X, Y)])
def test_a_tuple_or_list_is_the_batch_of_a_plan_of_positions(batch: Any) -> None:
    assert read((X, Y), batch) == (X, Y) == read((X, Y), *batch)
    assert read(Labelled((X, Y), Z), batch, targets=Z) == Labelled((X, Y), Z)


def test_one_tensor_is_itself_in_a_list_or_not() -> None:
    assert read((X,), X) == (X,) == read((X,), [X])
    assert read(Labelled((X,), Z), (X,), targets=Z) == Labelled((X,), Z)


def test_an_only_input_that_is_a_nest_is_no_batch() -> None:
    plan = ((X, [Y, Z]),)
    assert read(plan, (X, [Y, Z])) == plan == read(plan, ((X, [Y, Z]),)) == read(plan, [(X, [Y, Z])])
    one = ([X],)
    assert read(one, [X]) == one == read(one, ([X],))
    assert read((NAMED,), NAMED) == (NAMED,) == read((NAMED,), (NAMED,))


@pytest.mark.parametrize("plan", [NAMED, (X, Y), Called((X,), {"b": Y})])
def test_a_call_of_another_form_than_the_plans_is_read_as_the_module_takes_it(plan: Any) -> None:
    assert read(plan, X, Y) == (X, Y) == read(plan, (X, Y))
    assert read(plan, a=X, b=Y) == NAMED == read(plan, NAMED)
    assert read(plan, X, b=Y) == Called((X,), {"b": Y})
    assert read(plan, X, b=Y, targets=Z) == Labelled(Called((X,), {"b": Y}), Z)


def test_labels_without_a_name_are_refused() -> None:
    with pytest.raises(memplan.MismatchError, match="the last of the batch has no place: give targets"):
        read(Labelled((X,), Z), (X, Z))


@pytest.mark.scripts
@pytest.mark.filterwarnings("ignore:the gradients of the step before")
def test_a_loaders_batches_go_into_a_step_as_they_are() -> None:
    x = torch.randn(4, 3)
    options: Any = {"budget": "100%", "loss_fn": torch.sum, "solver": "store-all", "verify": False}
    named = memplan.optimize(nn.Linear(3, 2), UserDict(input=x), **options)
    placed = memplan.optimize(nn.Linear(3, 2), [x], **options)
    assert torch.equal(named({"input": x}), named(input=x))
    assert torch.equal(placed([x]), placed(x))
    assert torch.isfinite(placed([torch.randn(2, 3)]))
    assert len(placed.plans) == 2
