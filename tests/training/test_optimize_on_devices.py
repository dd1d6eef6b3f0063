"""`memplan.optimize` on each device: losses and weights of an eager loop bit by bit, within the budget."""

import gc
from typing import Any

import memplan
import pytest
import torch
from lion_pytorch import Lion
from memplan.torch_support.unsupported import TraceError
from not_none import not_none
from on_devices import CUDA, TURNS, adam, assert_same, built, by_plan, eagerly, loss_of, state

MODELS = [
    *("perceptron", "tied", "in_place", "transformer", "unet", "channels_last", "experts", "norms"),
    *("gpt2", "bert", "llama", "t5", "vit", "resnet", "lstm", "fourier"),
]


@pytest.mark.parametrize("name", MODELS)
def test_models(name, device, monkeypatch):
    if name == "lstm":
        monkeypatch.setattr(torch.backends.cudnn, "enabled", False)
    iteration = built(name, device)
    expected = eagerly(iteration, adam(iteration.module.parameters()))
    iteration = built(name, device)
    found, _step = by_plan(iteration, adam(iteration.module.parameters()))
    assert_same(found, expected)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 1e-2),
    "momentum": lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, 1e-2, amsgrad=True),
    "foreach": lambda p: adam(p, foreach=True),
    "fused": lambda p: adam(p, fused=True),
    "lion": lambda p: Lion(p, 1e-3),
    "adagrad": lambda p: torch.optim.Adagrad(p, 1e-2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name, device):
    make = OPTIMIZERS[name]
    iteration = built("gpt2", device)
    expected = eagerly(iteration, make(iteration.module.parameters()))
    iteration = built("gpt2", device)
    found, _step = by_plan(iteration, make(iteration.module.parameters()), budget="90%")
    assert_same(found, expected)


def test_clipping_and_accumulation(device):
    iteration = built("gpt2", device)
    expected = eagerly(iteration, adam(iteration.module.parameters()), norm=0.05, accumulate=2)
    iteration = built("gpt2", device)
    options = {"max_grad_norm": 0.05, "accumulate": 2, "budget": "90%"}
    found, _step = by_plan(iteration, adam(iteration.module.parameters()), **options)
    assert_same(found, expected)


@pytest.mark.parametrize("name", ["gpt2", "bert", "vit", "llama", "unet"])
def test_autocast(name, device):
    iteration = built(name, device)
    expected = eagerly(iteration, adam(iteration.module.parameters()), torch.bfloat16)
    iteration = built(name, device)
    found, _step = by_plan(iteration, adam(iteration.module.parameters()), autocast=torch.bfloat16)
    assert_same(found, expected)


@pytest.mark.parametrize("name", ["gpt2", "llama", "vit"])
def test_bfloat16_weights(name, device):
    iteration = built(name, device)
    iteration.module.to(torch.bfloat16)
    given: Any = iteration.inputs
    inputs = {key: x.to(torch.bfloat16) if x.is_floating_point() else x for key, x in given.items()}
    iteration = iteration._replace(inputs=inputs)
    before = state(iteration.module)
    expected = eagerly(iteration, adam(iteration.module.parameters()))
    iteration.module.load_state_dict(before)
    iteration.module.zero_grad()
    found, _step = by_plan(iteration, adam(iteration.module.parameters()))
    assert_same(found, expected)


@pytest.mark.parametrize("name", ["gpt2", "perceptron", "unet"])
def test_offloading(name, device):
    """With a machine whose links are faster than its computations: much is moved."""
    iteration = built(name, device)
    expected = eagerly(iteration, adam(iteration.module.parameters()))
    iteration = built(name, device)
    options = {"machine": "rtx3060", "budget": "60%", "time_limit": 4}
    found, step = by_plan(iteration, adam(iteration.module.parameters()), **options)
    assert step.plan.figures.host_peak > 0
    if device == "cuda":  # the host's AdamW rounds otherwise than the card's
        for one, other in zip(found[0], expected[0], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    else:
        assert_same(found, expected)


@pytest.mark.parametrize("name", ["gpt2", "unet", "llama"])
def test_the_budget_holds(name, device):
    """CUDA's allocator counts what is requested, without what libraries keep."""
    iteration = built(name, device)
    optimizer = adam(iteration.module.parameters())
    _found, step = by_plan(iteration, optimizer, budget="60%")
    del optimizer
    gc.collect()
    report = step.report().plans[0]
    assert report.predicted_peak <= not_none(report.budget)
    if device == "cuda":
        assert 0.95 * report.predicted_peak <= not_none(report.peak) <= report.predicted_peak


def test_compiled_kernels(device):
    iteration = built("gpt2", device)
    expected = eagerly(iteration, adam(iteration.module.parameters()))
    iteration = built("gpt2", device)
    found, _step = by_plan(iteration, adam(iteration.module.parameters()), compile=True)
    for one, other in zip(found[0], expected[0], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("device", [CUDA], indirect=True)
def test_float16_with_a_scaler(device):
    iteration = built("gpt2", device)
    scaler, optimizer = torch.amp.GradScaler("cuda"), adam(iteration.module.parameters())
    losses = []
    for turn in range(TURNS):
        torch.manual_seed(turn)
        with torch.autocast("cuda", torch.float16):
            loss = loss_of(iteration)
        scaler.scale(loss).backward()
        losses.append(loss.detach())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    expected = losses, state(iteration.module)
    iteration = built("gpt2", device)
    options = {"autocast": torch.float16, "scaler": torch.amp.GradScaler("cuda")}
    found, _step = by_plan(iteration, adam(iteration.module.parameters()), **options)
    assert_same(found, expected)


@pytest.mark.parametrize(
    "options", [{"rollback_on_error": True}, {"ema": 0.9}, {"return_outputs": True}], ids=str
)
def test_options(options, device):
    iteration = built("gpt2", device)
    expected = eagerly(iteration, adam(iteration.module.parameters()))
    iteration = built("gpt2", device)
    found, _step = by_plan(iteration, adam(iteration.module.parameters()), budget="90%", **options)
    assert_same(found, expected)


def test_saved_and_loaded(device, tmp_path):
    iteration = built("gpt2", device)
    optimizer = adam(iteration.module.parameters())
    (_losses, expected), step = by_plan(iteration, optimizer)
    step.save(tmp_path / "checkpoint.pt")
    for parameter in iteration.module.parameters():
        parameter.data.zero_()
    step.load(tmp_path / "checkpoint.pt")
    step.restore_to_device()
    for name, tensor in state(iteration.module).items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize("device", [CUDA], indirect=True)
def test_recurrent_layers_of_cudnn_are_refused(device):
    iteration = built("lstm", device)
    with pytest.raises(TraceError, match=r"set torch\.backends\.cudnn\.enabled = False"):
        memplan.optimize(iteration.module, iteration.inputs, loss_fn=iteration.loss_fn, budget="100%")
