"""What users give to `memplan.optimize` and to its step: taken as meant, or refused in one line."""

import memplan
import pytest
import torch
from torch import nn


def optimize(module, inputs, **options):
    chosen = {"budget": "100%", "loss_fn": torch.sum, "solver": "store-all", "verify": False}
    return memplan.optimize(module, inputs, **{**chosen, **options})


@pytest.fixture(scope="module")
def step():
    return optimize(nn.Linear(3, 2), (torch.ones(4, 3),))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("inputs", [torch.ones(4, 3), [torch.ones(4, 3)], {"input": torch.ones(4, 3)}])
def test_one_tensor_a_list_and_names_are_inputs(inputs):
    made = optimize(nn.Linear(3, 2), inputs)
    assert isinstance(made, memplan.Step)
    x = torch.ones(4, 3)
    assert torch.isfinite(made(input=x) if isinstance(inputs, dict) else made(x))


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            {"budget": 0.8},
            "budget=0.8: write '80%' for a share of the baseline's peak, or bytes, like '0.8GB'",
        ),
        ({"budget": 0.6}, "budget=0.6: write '60%' for a share"),
        ({"budget": "80"}, "budget='80': this is 80 bytes: write '80%' for a share"),
        (
            {"budget": 12},
            "budget=12: this is 12 bytes: write '12%' for a share of the baseline's peak, or a unit, like",
        ),
        ({"budget": 12.0}, "budget=12.0: this is 12 bytes: write '12%'"),
        ({"budget": "1e2"}, "budget='1e2': this is 100 bytes: write '100%'"),
        ({"budget": 1.5}, "write 1.5% for a share of the baseline's peak, or a unit, like 1.5GB"),
        ({"time_limit": "1w"}, "time_limit='1w': give the solver's seconds, above 0, or a time like '5m'"),
        ({"time_limit": "0s"}, "time_limit='0s': give the solver's seconds, above 0, or a time like '5m'"),
        ({"budget": 0}, "must be above 0"),
        ({"budget": "much"}, "'much' is not a number of bytes"),
        ({"update": "before"}, "update='before': give 'in-backward' or 'after'"),
        (
            {"optimizer": torch.optim.AdamW},
            "optimizer=a class AdamW: give one of torch.optim, or a list of some",
        ),
        ({"optimizer": "adamw"}, "optimizer='adamw': give one of torch.optim"),
        ({"optimizer": torch.optim.SGD([torch.ones(1)], 0.1)}, "no parameter of the module"),
        ({"solver": "rotr"}, "unknown solver 'rotr': did you mean rotor"),
        ({"solver": None}, "solver=None: give a name, like 'auto'"),
        ({"time_limit": "5"}, "time_limit='5': give the solver's seconds, above 0"),
        ({"time_limit": float("nan")}, "time_limit=nan: give the solver's seconds, above 0"),
        ({"machine": 3}, "machine=3: give a Machine, a machine file or a name"),
        ({"loss_fn": "mse"}, "loss_fn='mse': give a function, like torch.nn.functional.mse_loss"),
        ({"verify": "no"}, "verify='no': give True or False"),
        ({"rollback_on_error": 1}, "rollback_on_error=1: give True or False"),
        ({"return_outputs": 3}, "return_outputs=3: give True, or names like 'logits'"),
        ({"return_outputs": None}, "return_outputs=None: give True, or names like 'logits'"),
        (
            {"pad_values": {"0": 0}, "pad_to_lengths": object},
            "give the lengths that batches are padded to",
        ),
        ({"inputs": 3}, "inputs is a int: give a tensor, a tuple of positional or a dict"),
        ({"module": torch.sum}, "the module is a builtin_function_or_method, not a torch.nn.Module"),
    ],
)
def test_what_is_not_meant_is_refused(options, line):
    given = {"module": nn.Linear(3, 2), "inputs": torch.ones(4, 3), **options}
    with pytest.raises(memplan.MemplanError, match=line) as refused:
        optimize(**given)
    assert "\n" not in str(refused.value)


def test_inputs_of_a_step_that_are_no_tensors(step):
    x = torch.ones(4, 3)
    with pytest.raises(memplan.MismatchError, match="input 0 is a list or another nest"):
        step([[x]])
    with pytest.raises(memplan.MismatchError, match="input 0 is of type ndarray; the plan is for a tensor"):
        step(x.numpy())
    with pytest.raises(memplan.MismatchError, match=r"Linear\.forward.*missing a required argument: 'input'"):
        step()


def test_errors_are_there_by_name():
    names = [name for name in memplan.__all__ if name.endswith("Error")]
    assert len(names) > 6
    for name in names:
        assert issubclass(getattr(memplan, name), memplan.MemplanError)


def test_an_optimizer_whose_updates_are_planned_has_no_step_of_its_own():
    module = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    made = optimize(module, torch.ones(4, 3), optimizer=optimizer)
    made(torch.ones(4, 3))
    nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    with pytest.raises(
        memplan.MemplanError, match=r"optimizer.step\(\) has no gradients: the planned step has"
    ):
        optimizer.step()
    module(torch.ones(2, 3)).sum().backward()
    optimizer.step()  # an iteration of another form, run plainly
    del made
    optimizer.zero_grad()
    optimizer.step()
