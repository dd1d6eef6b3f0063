"""Models larger than the device from the start: on meta, with weights in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import memplan
import pytest
import torch
from memplan.devices.device.cpu import Cpu
from memplan.devices.measuring.live_bytes import live_peak
from memplan.devices.storage.lazy_init import is_unmade
from memplan.graphs.errors import InputError
from memplan.graphs.machine import Links, Machine
from safetensors.torch import save_file
from torch import Tensor, nn

LAYERS, WIDTH = 8, 256


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, WIDTH)
        self.layers = nn.Sequential(
            *[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)]
        )
        self.last = nn.Linear(WIDTH, 8)
        self.last.weight = nn.Parameter(self.first.weight.detach().T.contiguous())
        self.register_buffer("scale", torch.tensor([2.0]))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layers(self.first(x) * self.scale)).square().mean()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embed(x)).square().mean()


def saved(module: nn.Module, folder: Path, files: int = 2) -> Path:
    """Its state, over so many files."""
    state = list(module.state_dict().items())
    for number in range(files):
        save_file(dict(state[number::files]), folder / f"model-{number}.safetensors")
    return folder


def on_meta(kind: type[nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return kind()


def options(module: nn.Module, **others: Any) -> dict[str, Any]:
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    return {"optimizer": optimizer, "solver": "l2l", "cache": False, **others}


def test_a_model_that_never_was_whole_on_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its weights and states go from the files to the host; the device never has more than the budget.

    Files that are mapped count as the CPU's memory, and stay where they are. What is measured has no copies
    to fill a cache with, which would be larger than this model.
    """
    monkeypatch.setattr(Cpu, "cache_bytes", lambda self: 1)
    torch.manual_seed(1)
    real = Layers()
    x = [torch.randn(4, 8) for _ in range(5)]
    folder = saved(real, tmp_path)
    mapped = sum(file.stat().st_size for file in folder.iterdir())
    everything = sum(p.nbytes for p in real.parameters()) * 3
    budget = everything // 3
    module = on_meta(Layers)
    parameters = list(module.parameters())
    links = Machine(links=Links(1e9, 1e9))
    made = live_peak(
        lambda: memplan.optimize(
            module, x[0], budget=budget, machine=links, weights=folder, **options(module)
        )
    )
    found = live_peak(lambda: [made.result(each) for each in x])
    assert mapped < made.peak_bytes <= mapped + budget
    assert budget / 2 < found.peak_bytes <= budget
    optimizer = torch.optim.AdamW(real.parameters(), lr=0.01, foreach=False)
    for each, loss in zip(x, found.result, strict=True):
        baseline = real(each)
        assert torch.equal(loss, baseline)
        baseline.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert all(own is then for own, then in zip(module.parameters(), parameters, strict=True))
    for (name, own), theirs in zip(module.named_parameters(), real.parameters(), strict=True):
        assert torch.equal(own, theirs), name
    assert torch.equal(module.get_buffer("scale"), real.get_buffer("scale"))


@pytest.mark.scripts
@pytest.mark.parametrize(
    "extra", [{"master_weights": True}, {"ema": 0.9}, {"master_weights": True, "ema": 0.9}], ids=str
)
def test_masters_and_averages_begin_as_the_weights_of_the_files(
    tmp_path: Path, extra: dict[str, Any]
) -> None:
    """A plan that moves them all trains as one of the model with its values does."""
    torch.manual_seed(1)
    real = Layers().to(torch.bfloat16 if "master_weights" in extra else torch.float32)
    x = [torch.randn(4, 8).to(real.first.weight.dtype) for _ in range(4)]
    folder, module = saved(real, tmp_path), on_meta(Layers).to(real.first.weight.dtype)
    size = sum(p.nbytes for p in real.parameters())
    moved = memplan.optimize(
        module,
        x[0],
        budget=3 * size,
        machine=Machine(links=Links(1e9, 1e9)),
        weights=folder,
        **options(module),
        **extra,
    )
    baseline = memplan.optimize(real, x[0], budget="100%", **options(real, solver="store-all"), **extra)
    assert moved.plan.schedule != baseline.plan.schedule
    for each in x:
        assert torch.equal(moved(each), baseline(each))
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), real.parameters(), strict=True))
    if "ema" in extra:
        own, theirs = moved.ema_state_dict(), baseline.ema_state_dict()
        assert all(torch.equal(own[name], theirs[name]) for name in theirs)


def test_without_room_to_move_weights_are_read_to_the_device(tmp_path: Path) -> None:
    """Tied weights too; a file of one type, a module of another."""
    torch.manual_seed(1)
    real = Tied().to(torch.bfloat16)
    save_file({"embed.weight": real.embed.weight.detach()}, tmp_path / "model.safetensors")
    module, x = on_meta(Tied), torch.randint(16, (5,))
    step = memplan.optimize(
        module,
        x,
        budget="100%",
        weights=tmp_path / "model.safetensors",
        **options(module, solver="store-all"),
    )
    assert torch.equal(step(x), real.float()(x))
    assert module.get_parameter("head.weight") is module.get_parameter("embed.weight")


@pytest.mark.scripts
def test_what_is_saved_before_the_first_iteration(tmp_path: Path) -> None:
    """The files' values, and those of a checkpoint that is loaded."""
    torch.manual_seed(1)
    real, other = Layers(), Layers()
    module, x = on_meta(Layers), torch.randn(4, 8)
    (tmp_path / "files").mkdir()
    folder = saved(real, tmp_path / "files")
    chosen = options(module)
    step = memplan.optimize(
        module, x, budget="90%", machine=Machine(links=Links(1e9, 1e9)), weights=folder, **chosen
    )
    step.save(tmp_path / "own")
    recomputed = Layers()
    memplan.optimize(recomputed, x, budget="100%", **options(recomputed, solver="store-all")).load(
        tmp_path / "own"
    )
    assert all(torch.equal(a, b) for a, b in zip(recomputed.parameters(), real.parameters(), strict=True))

    theirs = options(other, solver="store-all")
    memplan.optimize(other, x, budget="100%", **theirs).save(tmp_path / "other")
    step.load(tmp_path / "other")
    assert torch.equal(step(x), other(x))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda state: state.pop("first.bias"), "no file has first.bias, which is on meta"),
        (
            lambda state: state.update({"first.bias": torch.zeros(3)}),
            r"first.bias has the shape \[3\]; the module's is \[256\]",
        ),
    ],
    ids=["missing", "shape"],
)
def test_files_of_another_model_are_refused(tmp_path: Path, change: Any, line: str) -> None:
    state = dict(Layers().state_dict())
    change(state)
    save_file(state, tmp_path / "model.safetensors")
    module = on_meta(Layers)
    with pytest.raises(InputError, match=line):
        memplan.optimize(module, torch.randn(4, 8), budget="100%", weights=tmp_path, **options(module))
    assert module.get_parameter("first.weight").is_meta


def test_a_refused_budget_can_be_asked_for_again(tmp_path: Path) -> None:
    """Then the tensors are still to be made: from the files that are given now."""
    torch.manual_seed(1)
    real, module, x = Layers(), on_meta(Layers), torch.randn(4, 8)
    (tmp_path / "first").mkdir()
    (tmp_path / "other").mkdir()
    given = options(module, solver="store-all")
    with pytest.raises(memplan.InfeasibleError):
        memplan.optimize(module, x, budget=2000, weights=saved(Layers(), tmp_path / "first"), **given)
    step = memplan.optimize(module, x, budget="100%", weights=saved(real, tmp_path / "other"), **given)
    assert torch.equal(step(x), real(x))


def test_planning_leaves_weights_in_their_files(tmp_path: Path) -> None:
    """A model that is larger than memory is planned before any of its weights is read. Buffers are read."""
    module = on_meta(Layers)
    size = sum(weight.nbytes for weight in module.parameters())
    memplan.optimize(
        module,
        torch.randn(4, 8),
        budget=3 * size,
        machine=Machine(links=Links(1e9, 1e9)),
        weights=saved(Layers(), tmp_path),
        verify=False,
        **options(module),
    )
    assert all(is_unmade(weight) for weight in module.parameters())


def test_typos_in_weights_are_refused(tmp_path: Path) -> None:
    x, module = torch.randn(4, 8), on_meta(Layers)
    cases: list[tuple[nn.Module, Any, str]] = [
        (module, None, "first.weight is on meta, without values: give weights="),
        (module, tmp_path, "there is no file of safetensors in it"),
        (module, tmp_path / "none.safetensors", "no such file"),
        (module, 3, "weights=3: give a safetensors file or a folder of them"),
        (Layers(), tmp_path, "weights are for a module on meta; this one has its own"),
    ]
    for given, weights, line in cases:
        with pytest.raises(InputError, match=line):
            memplan.optimize(given, x, budget="100%", weights=weights, cache=False)


@pytest.mark.parametrize("how", ["cpu", "disk"])
@pytest.mark.parametrize("options", [{}, {"weights": "folder"}])
def test_accelerates_offloading_hooks_are_refused_with_the_line_that_undoes_them(
    how: str, options: dict[str, Any], tmp_path: Path
) -> None:
    accelerate = pytest.importorskip("accelerate")
    module, x = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)), torch.randn(2, 4)
    values = {name: each.clone() for name, each in module.state_dict().items()}
    device = torch.device("cpu")
    if how == "cpu":
        accelerate.cpu_offload(module, execution_device=device)
    else:
        accelerate.disk_offload(module, str(tmp_path), execution_device=device)
    given: dict[str, Any] = {"budget": "100%", "solver": "store-all", "cache": False, "states": 0}
    line = r"hooks offload 0 .*no gradients: call accelerate\.hooks\.remove_hook_from_module\(model, recurse"
    with pytest.raises(InputError, match=line):
        memplan.optimize(module, x, loss_fn=torch.sum, **given, **options)
    with pytest.raises(InputError, match=line):
        memplan.optimize_module(module, x, budget="100%")
    if not options:
        accelerate.hooks.remove_hook_from_module(module, recurse=True)
        assert all(map(torch.equal, values.values(), module.state_dict().values()))
        if how == "cpu":
            assert memplan.optimize(module, x, loss_fn=torch.sum, **given)(x).isfinite()


def test_a_hook_that_moves_a_module_in_forward_is_refused_with_the_line_that_undoes_it() -> None:
    accelerate = pytest.importorskip("accelerate")
    module, x = nn.Sequential(nn.Linear(4, 4)), torch.randn(2, 4)
    expected = module(x).sum()
    accelerate.cpu_offload_with_hook(module[0], torch.device("cpu"))
    given: dict[str, Any] = {"budget": "100%", "solver": "store-all", "cache": False, "states": 0}
    line = r"cpu_offload_with_hook moves 0 in forward.*remove_hook_from_module\(model, recurse=True\) first"
    with pytest.raises(InputError, match=line):
        memplan.optimize(module, x, loss_fn=torch.sum, **given)
    accelerate.hooks.remove_hook_from_module(module, recurse=True)
    assert torch.equal(memplan.optimize(module, x, loss_fn=torch.sum, **given)(x), expected)
