"""A module planned as part of a larger graph: eager PyTorch's training, bit by bit, within the budget."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import memplan
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.devices.measuring.live_bytes import live_peak
from memplan.graphs.machine import Links, Machine
from memplan.planner.schedule.schedule import Verb
from torch import Tensor, nn
from torch.nn import functional


class Generator(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            *(nn.ConvTranspose2d(8, 32, 4), nn.BatchNorm2d(32), nn.ReLU(inplace=True)),
            *(nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.BatchNorm2d(16), nn.ReLU(inplace=True)),
            *(nn.ConvTranspose2d(16, 3, 4, 2, 1), nn.Tanh()),
        )


class Discriminator(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            *(nn.Conv2d(3, 16, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True)),
            *(
                nn.Conv2d(16, 32, 4, 2, 1),
                nn.BatchNorm2d(32),
                nn.LeakyReLU(0.2, inplace=True),
                nn.Dropout(0.3),
            ),
            nn.Conv2d(32, 1, 4),
        )


class Row(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class Wide(nn.Module):
    """Weights are much of what there is."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.Linear(32, 96), nn.BatchNorm1d(96), nn.GELU(), nn.Dropout(0.2), nn.Linear(96, 32)
            )
            for _ in range(4)
        )
        self.head = nn.Linear(32, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for layer in self.layers:
            x = x + layer(x)
        return x, self.head(x)


class Deep(nn.Module):
    """Wide activations over narrow weights: most of the memory is recomputable, across the handover."""

    def __init__(self, width: int = 16, depth: int = 6) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.Tanh(), nn.Dropout(0.1))
            for _ in range(depth)
        )
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> dict[str, Any]:
        for block in self.blocks:
            x = x + block(x)
        logits = self.head(x)
        return {"hidden": x, "logits": logits, "classes": logits.argmax(1), "kind": "deep"}


def planned(module: nn.Module, *inputs: Any, **options: Any) -> Any:
    example = inputs if inputs else options.pop("inputs")
    return memplan.optimize_module(
        module, example, **({"budget": "100%", "cache": False, "solver": "rotor", "verify": False} | options)
    )


def state(*modules: nn.Module) -> list[Tensor]:
    return [tensor.clone() for module in modules for tensor in module.state_dict().values()]


def assert_equal(one: list[Tensor], other: list[Tensor]) -> None:
    assert len(one) == len(other)
    for first, second in zip(one, other, strict=True):
        assert torch.equal(first, second)


def both(loop: Callable[[bool], list[Tensor]]) -> None:
    """Run a loop with eager PyTorch and with plans, from one random state: both return the same."""
    torch.manual_seed(5)
    eager = loop(False)
    torch.manual_seed(5)
    assert_equal(loop(True), eager)


def test_a_gan_trains_as_eager_does():
    def loop(with_plans: bool) -> list[Tensor]:
        g, d = Generator().train(), Discriminator().train()
        real = [torch.randn(6, 3, 16, 16) for _ in range(3)]
        generator = planned(g, torch.randn(6, 8, 1, 1, generator=torch.Generator())) if with_plans else g
        discriminator = planned(d, real[0].clone().requires_grad_()) if with_plans else d
        of_d, of_g = (torch.optim.Adam(x.parameters(), lr=0.01) for x in (d, g))
        losses: list[Tensor] = []
        ones, zeros = torch.ones(6, 1, 1, 1), torch.zeros(6, 1, 1, 1)
        for x in real:
            d.zero_grad()
            loss = functional.binary_cross_entropy_with_logits(discriminator(x), ones)
            loss.backward()
            fake = generator(torch.randn(6, 8, 1, 1))
            of_fake = functional.binary_cross_entropy_with_logits(discriminator(fake.detach()), zeros)
            of_fake.backward()
            of_d.step()
            g.zero_grad()
            third = functional.binary_cross_entropy_with_logits(discriminator(fake), ones)
            third.backward()
            of_g.step()
            losses += [loss.detach(), of_fake.detach(), third.detach()]
        return [*losses, *state(g, d), torch.rand(3)]

    both(loop)


def test_outputs_are_the_modules_with_its_own_losses():
    def loop(with_plans: bool) -> list[Tensor]:
        module = Deep().train()
        x = torch.randn(64, 16)
        call = planned(module, x) if with_plans else module
        outputs = call(x)
        assert outputs.keys() == {"hidden", "logits", "classes", "kind"}
        assert outputs["kind"] == "deep"
        assert not outputs["classes"].requires_grad
        loss = (
            functional.cross_entropy(outputs["logits"], torch.arange(64) % 4)
            + outputs["hidden"].square().mean()
        )
        loss.backward()
        gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
        return [loss.detach(), outputs["classes"], *gradients, *state(module)]

    both(loop)


def test_an_output_that_no_loss_uses_gives_no_gradients():
    def loop(with_plans: bool) -> list[Tensor]:
        module = Deep().train()
        x = torch.randn(64, 16)
        call = planned(module, x) if with_plans else module
        call(x)["hidden"].square().mean().backward()
        assert module.head.weight.grad is None
        assert module.head.bias.grad is None
        return [p.grad for p in module.blocks.parameters() if p.grad is not None]

    both(loop)


@pytest.mark.parametrize("used", [0, 1])
def test_a_weight_of_several_outputs_has_a_gradient_of_each(used: int):
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.layer(x), self.layer(x.sin())

    def loop(with_plans: bool) -> list[Tensor]:
        module, x = Twice().train(), torch.randn(64, 8)
        call = planned(module, x) if with_plans else module
        call(x)[used].square().mean().backward()
        return [p.grad for p in module.parameters() if p.grad is not None]

    both(loop)


def test_named_outputs_alone_are_returned():
    module = Deep().train()
    x = torch.randn(64, 16)
    outputs = planned(module, x, return_outputs=("logits",))(x)
    assert outputs["hidden"] is None
    assert outputs["classes"] is None
    assert outputs["kind"] == "deep"
    assert outputs["logits"].requires_grad


@pytest.mark.scripts
def test_adversarial_training_trains_as_eager_does():
    def loop(with_plans: bool) -> list[Tensor]:
        module = Deep().train()
        batches = [(torch.randn(32, 16), torch.randint(4, (32,))) for _ in range(2)]
        call = (
            planned(module, batches[0][0].clone().requires_grad_(), return_outputs=("logits",))
            if with_plans
            else module
        )
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        left: list[Tensor] = []
        for x, y in batches:
            attacked = x.clone()
            for _step in range(2):  # projected gradient descent, by autograd.grad
                attacked.requires_grad_()
                (gradient,) = torch.autograd.grad(
                    functional.cross_entropy(call(attacked)["logits"], y), attacked
                )
                attacked = (attacked.detach() + 0.05 * gradient.sign()).clamp(x - 0.1, x + 0.1)
                left.append(gradient)
            optimizer.zero_grad()
            functional.cross_entropy(call(attacked)["logits"], y).backward()
            optimizer.step()
        return [*left, *state(module)]

    both(loop)


def test_style_transfer_trains_the_image_alone():
    def loop(with_plans: bool) -> list[Tensor]:
        net = nn.ModuleList(nn.Conv2d(3 if n == 0 else 8, 8, 3, padding=1) for n in range(4)).requires_grad_(
            False
        )

        class Features(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.net = net

            def forward(self, x: Tensor) -> list[Tensor]:
                found: list[Tensor] = []
                for layer in self.net:
                    x = functional.relu(layer(x), inplace=True)
                    found.append(x)
                return found

        features = Features().eval()
        style, image = torch.randn(1, 3, 16, 16), torch.randn(1, 3, 16, 16).requires_grad_()
        with torch.no_grad():
            wanted = [gram(each) for each in features(style)]
        call = (
            planned(features, torch.randn(1, 3, 16, 16, generator=torch.Generator()).requires_grad_())
            if with_plans
            else features
        )
        optimizer = torch.optim.Adam([image], lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            found = call(image)
            losses = [functional.mse_loss(gram(a), b) for a, b in zip(found, wanted, strict=True)]
            torch.stack(losses).sum().backward()
            optimizer.step()
        return [image.detach()]

    both(loop)


def gram(features: Tensor) -> Tensor:
    flat = features.flatten(2)
    return flat @ flat.transpose(1, 2)


def test_two_towers_learn_from_the_pairs_of_a_batch():
    def loop(with_plans: bool) -> list[Tensor]:
        towers = [Deep(depth=2).train() for _ in range(2)]
        xs = [torch.randn(16, 16) for _ in towers]
        calls = [
            planned(t, x, return_outputs=("hidden",)) if with_plans else t
            for t, x in zip(towers, xs, strict=True)
        ]
        one, other = (
            functional.normalize(call(x)["hidden"], dim=1) for call, x in zip(calls, xs, strict=True)
        )
        loss = functional.cross_entropy(one @ other.T / 0.1, torch.arange(16))
        loss.backward()
        return [loss.detach(), *(p.grad for t in towers for p in t.blocks.parameters() if p.grad is not None)]

    both(loop)


@pytest.mark.scripts
def test_stages_of_a_pipeline_are_planned_each_within_its_budget():
    def loop(with_plans: bool) -> list[Tensor]:
        first, second = Deep(depth=3).train(), Deep(depth=3).train()
        x, y = torch.randn(32, 16), torch.randint(4, (32,))
        stages: list[Any] = [first, second]
        if with_plans:
            middle = torch.randn(32, 16, generator=torch.Generator()).requires_grad_()
            stages = [
                planned(first, x, return_outputs=("hidden",)),
                planned(second, middle, return_outputs=("logits",)),
            ]
        loss = functional.cross_entropy(stages[1](stages[0](x)["hidden"])["logits"], y)
        loss.backward()
        return [
            loss.detach(),
            *(p.grad for m in (first, second) for p in m.parameters() if p.grad is not None),
        ]

    both(loop)


@pytest.mark.parametrize("calls", [2, pytest.param(3, marks=pytest.mark.scripts)])
def test_losses_of_several_calls_are_added(calls: int):
    def loop(with_plans: bool) -> list[Tensor]:
        d = Discriminator().train()
        x = [torch.randn(6, 3, 16, 16) for _ in range(calls)]
        call = planned(d, x[0], calls=calls) if with_plans else d
        left: list[Tensor] = []
        for _ in range(2):
            d.zero_grad()
            loss = torch.stack([call(each).square().mean() for each in x]).sum()
            loss.backward()
            left += [loss.detach(), *(p.grad.clone() for p in d.parameters() if p.grad is not None)]
        return [*left, *state(d)]

    both(loop)


def test_as_many_calls_wait_as_the_budget_is_for():
    module = Deep(depth=2).train()
    x = torch.randn(16, 16)
    call = planned(module, x)
    waiting = call(x)
    with pytest.raises(memplan.MismatchError, match=r"wait for backward\(\): 1.*calls=2"):
        call(x)
    del waiting  # dropped: its activations are freed
    call(x)["logits"].sum().backward()
    call(x)


def test_recomputation_crosses_the_handover_within_the_budget():
    module = Deep(width=32, depth=8).train()
    x = torch.randn(512, 32, requires_grad=True)
    y = torch.randint(4, (512,))
    call = planned(module, x, budget="60%", return_outputs=("logits",), verify=True)
    figures = call.plan.figures
    runs = call.plan.schedule.targets[call.plan.schedule.verbs == 0].tolist()
    assert len(runs) > len({*runs})  # recomputed

    def iteration() -> None:
        x.grad = None
        module.zero_grad()
        logits = call(x)["logits"]
        functional.cross_entropy(logits, y).backward()

    iteration()
    x.grad = None
    module.zero_grad()
    peak = live_peak(iteration).peak_bytes
    resident = call.plan.graph.resident_bytes
    loss = 3 * 512 * 4 * 4  # log_softmax, and what its backward makes: the caller's
    assert resident + peak <= call.plan.budget + loss
    assert figures.peak <= call.plan.budget


@pytest.mark.parametrize(
    ("solver", "moves_weights"),
    [("pofo", False), pytest.param("joint", True, marks=pytest.mark.scripts)],
)
def test_offloading_crosses_the_handover(solver: str, moves_weights: bool):
    """Activations and weights are on the host between the halves; a call is dropped, weights are read."""

    def loop(with_plans: bool) -> list[Tensor]:
        module = Wide().train()
        x, y = torch.randn(64, 32, requires_grad=True), torch.randint(3, (64,))
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        call: Any = module
        if with_plans:
            machine = Machine(links=Links(1e9, 1e9))
            call = planned(module, x, budget="60%", machine=machine, solver=solver, time_limit=3)
            schedule = call.plan.schedule
            assert (schedule.verbs == Verb.OFFLOAD).any()
            assert bool(schedule.initial.groups) == moves_weights
        left: list[Tensor] = []
        for turn in range(3):
            optimizer.zero_grad()
            x.grad = None
            hidden, logits = call(x)
            if turn == 1:
                if with_plans and moves_weights:
                    with pytest.raises(memplan.MemplanError, match=r"call backward\(\) before its weights"):
                        sum(float(parameter.detach().norm()) for parameter in module.parameters())
                del hidden, logits
                hidden, logits = call(x)
            loss = functional.cross_entropy(logits, y) + hidden.square().mean()
            loss.backward()
            optimizer.step()
            assert x.grad is not None
            left += [
                loss.detach(),
                x.grad,
                *(p.grad.clone() for p in module.parameters() if p.grad is not None),
            ]
        return [*left, *state(module), torch.rand(2)]

    both(loop)


def test_calls_that_share_a_budget_hold_it_together():
    module = Deep(width=32, depth=8).train()
    xs = [torch.randn(512, 32) for _ in range(2)]
    call = planned(module, xs[0], calls=2, budget="70%", return_outputs=("logits",))

    def iteration() -> None:
        module.zero_grad()
        torch.stack([call(x)["logits"].square().mean() for x in xs]).sum().backward()

    iteration()
    module.zero_grad()
    graph = call.plan.graph
    peak = graph.resident_bytes + xs[1].nbytes + live_peak(iteration).peak_bytes
    together = graph.resident_bytes + 2 * (call.plan.budget - graph.resident_bytes)
    beside = sum(p.nbytes for p in module.parameters()) + 4 * 512 * 4 * 4  # .grad of the first; the losses'
    assert peak <= together + beside + xs[1].nbytes


def test_a_dropped_call_frees_its_activations():
    module = Deep(width=32, depth=4).train()
    x = torch.randn(256, 32)
    call = planned(module, x, return_outputs=("logits",))
    call(x)["logits"].sum().backward()
    module.zero_grad()

    def forward() -> None:
        call(x)

    gc.disable()
    try:
        assert live_peak(forward).left_bytes == 0
    finally:
        gc.enable()


def test_without_gradients_forward_alone_runs_in_the_modules_mode():
    def loop(with_plans: bool) -> list[Tensor]:
        module = Deep(depth=2).train()
        x = torch.randn(16, 16)
        call = planned(module, x) if with_plans else module
        left: list[Tensor] = []
        with torch.no_grad():
            outputs = call(x)
            assert not outputs["logits"].requires_grad
            left += [outputs["logits"], outputs["hidden"], *state(module)]
        module.eval()
        with torch.no_grad():
            left += [call(x)["logits"], *state(module)]
        call(x)["logits"].sum().backward()  # a plan for eval mode
        left += [p.grad for p in module.parameters() if p.grad is not None]
        module.requires_grad_(False)
        left.append(call(x)["logits"])
        return left

    both(loop)


def test_a_frozen_module_passes_gradients_on():
    """As Lightning's toggle_optimizer freezes a discriminator in the generator's step."""

    def loop(with_plans: bool) -> list[Tensor]:
        module = Deep(depth=2).train()
        x = torch.randn(16, 16, requires_grad=True)
        call = planned(module, x) if with_plans else module
        left: list[Tensor] = []
        for trained in (True, False, True):
            module.requires_grad_(trained)
            module.zero_grad()
            x.grad = None
            call(x)["logits"].square().sum().backward()
            assert x.grad is not None
            left += [x.grad, *(p.grad for p in module.parameters() if p.grad is not None)]
        return left

    both(loop)


def test_backward_runs_once():
    module = Deep(depth=2).train()
    x = torch.randn(16, 16)
    call = planned(module, x)
    outputs = call(x)
    outputs["logits"].sum().backward(retain_graph=True)
    with pytest.raises(memplan.MismatchError, match=r"runs once.*add the losses"):
        outputs["hidden"].sum().backward()


def test_second_derivatives_are_refused():
    """WGAN-GP's penalty on the norm of the gradient."""
    module = Deep(depth=2).train()
    x = torch.randn(16, 16, requires_grad=True)
    call = planned(module, x)
    with pytest.raises(memplan.MemplanError, match=r"no second derivative.*call the module itself"):
        torch.autograd.grad(call(x)["logits"].sum(), x, create_graph=True)


def test_a_weight_changed_between_the_halves_is_refused():
    module = Deep(depth=2).train()
    x = torch.randn(16, 16)
    call = planned(module, x)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    call(x)["logits"].square().mean().backward()  # the gradients of the mean have no memory of their own
    outputs = call(x)
    optimizer.step()
    with pytest.raises(memplan.MismatchError, match=r"weight was changed in place.*before optimizer.step"):
        outputs["logits"].sum().backward()


def test_an_output_that_backward_reads_may_not_change():
    module = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid())
    x = torch.randn(3, 4)
    call = planned(module, x)
    output = call(x)
    output.mul_(2)  # eager: one of the variables needed for gradient computation has been modified …
    with pytest.raises(memplan.MismatchError, match="output was changed in place"):
        output.sum().backward()
    output = planned(nn.Linear(4, 4), x, solver="store-all")(x)
    output.relu_().sum().backward()  # which backward does not read


class Sum(nn.Module):
    """Gradients that are the output's own gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight


def test_gradients_are_in_memory_of_their_own():
    module, x = Sum(), torch.randn(3, 4, requires_grad=True)
    cotangent = torch.randn(3, 4)
    expected = cotangent.clone()
    planned(module, x, solver="store-all")(x).backward(cotangent)
    assert x.grad is not None
    assert module.weight.grad is not None
    module.weight.grad.zero_()
    assert torch.equal(x.grad, expected)
    assert torch.equal(cotangent, expected)


def test_a_plan_on_disk_is_found(tmp_path: Path):
    def loop(with_plans: bool) -> list[Tensor]:
        module = Deep(depth=2).train()
        x = torch.randn(16, 16, requires_grad=True)
        call = planned(module, x, cache=tmp_path) if with_plans else module
        call(x)["logits"].square().sum().backward()
        assert x.grad is not None
        return [x.grad, *(p.grad for p in module.parameters() if p.grad is not None)]

    both(loop)
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("graph.json")}
    assert kept
    both(loop)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("graph.json")} == kept


LAYERS = {
    "linear": lambda: nn.Linear(6, 6),
    "norm": lambda: nn.BatchNorm1d(6),
    "layer norm": lambda: nn.LayerNorm(6),
    "dropout": lambda: nn.Dropout(0.3),
    "tanh": nn.Tanh,
    "relu in place": lambda: nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True)),
    "own weight": Row,
}


@given(
    layers=st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=5),
    handed=st.lists(st.booleans(), min_size=5, max_size=5),
    wanted=st.booleans(),
    used=st.integers(0, 2),
)
@settings(max_examples=12, deadline=None, derandomize=True)
def test_random_modules_have_eagers_gradients(layers: list[str], handed: list[bool], wanted: bool, used: int):
    class Some(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(6, 6), *(LAYERS[name]() for name in layers)])

        def forward(self, x: Tensor) -> list[Tensor]:
            found: list[Tensor] = []
            for layer, out in zip(self.layers, [*handed, True], strict=False):
                x = layer(x)
                if out:
                    found.append(x.sin() if used else x + 0)
            return [*found, x.exp()]

    def loop(with_plans: bool) -> list[Tensor]:
        module = Some().train()
        x = torch.randn(8, 6, requires_grad=wanted)
        call = planned(module, x, solver="store-all") if with_plans else module
        left: list[Tensor] = []
        for _ in range(2):
            outputs = call(x)
            torch.stack([each.square().mean() for each in outputs[used % len(outputs) :]]).sum().backward()
            left += [each.detach().clone() for each in outputs]
        gradients = (x.grad, *(p.grad for p in module.parameters()))
        assert (x.grad is not None) == wanted
        return [*left, *(g for g in gradients if g is not None), *state(module), torch.rand(2)]

    both(loop)


def test_what_is_not_for_modules_is_refused():
    module = Deep(depth=1)
    x = torch.randn(4, 16)
    with pytest.raises(memplan.InputError, match="no output of the module depends on"):
        planned(copy.deepcopy(module).requires_grad_(False), x)
    with pytest.raises(memplan.MismatchError, match=r"memplan\.optimize_module"):
        memplan.optimize(module.head, x.requires_grad_(), loss_fn=torch.sum, budget="100%", cache=False)
    with pytest.raises(memplan.InputError, match="machine= goes with calls=1"):
        planned(module, x, machine=Machine(links=Links(1e9, 1e9)), calls=2)
    call = planned(module, x)
    with pytest.raises(memplan.MismatchError, match="no loss: call predict"):
        call.evaluate(x)
    assert not call.predict(x)["logits"].requires_grad


@pytest.mark.scripts
def test_soft_prompts_train_before_a_frozen_language_model():
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 64, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2}

    def loop(with_plans: bool) -> list[Tensor]:
        config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, use_cache=False)
        model = transformers.GPT2LMHeadModel(config).train().requires_grad_(False)
        prompt = nn.Parameter(torch.randn(1, 4, 16))
        tokens = torch.randint(1, 64, (2, 12))

        def embedded() -> Tensor:
            return torch.cat([prompt.expand(2, -1, -1), model.transformer.wte(tokens)], dim=1)

        call: Any = model
        if with_plans:
            call = planned(model, inputs={"inputs_embeds": embedded()}, return_outputs=("logits",))
        optimizer = torch.optim.AdamW([prompt], lr=0.1)
        left: list[Tensor] = []
        for _ in range(3):
            optimizer.zero_grad()
            logits = call(inputs_embeds=embedded()).logits[:, 4:-1]
            loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            left += [loss.detach(), prompt.detach().clone()]
        return left

    both(loop)
