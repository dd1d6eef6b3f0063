"""Sharded training of a module on meta, whose weights each rank reads from files: its own rows alone."""

from __future__ import annotations

import ctypes
import sys
from mmap import PAGESIZE, PROT_READ, PROT_WRITE
from pathlib import Path
from random import Random
from typing import Any

import memplan
import pytest
import torch
from memplan.devices.measuring.live_bytes import live_peak
from memplan.devices.sharded.shards import Shards
from memplan.graphs.machine import Link, Links, Machine
from memplan.training.checkpoints.saved_file import open_saved
from ranks import alone, ranks
from safetensors.torch import save_file
from sharded_models import batch, make
from sharded_training import Size, Trained, adamw, differences, mesh_of, planned_step
from torch import Tensor, nn

STEPS = 4
HOST = Machine(host_capacity=2**30, links=Links(Link(1e9, 1e-6), Link(1e9, 1e-6)))
WIDE, DEEP = 1024, 8
"""Shape of layers of 4 MiB, of which a file has so many."""


def on_meta(kind: str) -> nn.Module:
    with torch.device("meta"):
        module = make(kind)
    module.tie_weights()  # pyright: ignore
    if kind == "llama":  # a buffer that state_dict leaves out
        module.model.rotary_emb = type(module.model.rotary_emb)(module.config)  # pyright: ignore
    return module


def saved(module: nn.Module, folder: Path, how: str = "safetensors") -> Path:
    """Save a state over two files."""
    folder.mkdir()
    state = {name: each.contiguous() for name, each in module.state_dict().items()}
    state.pop("lm_head.weight", None) if tied(module) else None
    names = list(state)
    for number in range(2):
        part = {name: state[name] for name in names[number::2]}
        if how == "safetensors":
            save_file(part, folder / f"model-{number}.safetensors")
        else:
            torch.save(part, folder / f"pytorch_model-{number}.bin")
    return folder


def tied(module: nn.Module) -> bool:
    return bool(getattr(getattr(module, "config", None), "tie_word_embeddings", False))


def trains(
    rank: int, kind: str, size: Size, folder: str, options: dict[str, Any], budget: str = "80%"
) -> Any:
    """Train the real module, and one of files, by plans; return what differs."""
    batches, runs = [batch(kind, rank, number) for number in range(STEPS)], list[Trained]()
    low, machine = "master_weights" in options, None if budget == "80%" else HOST
    for weights in (None, folder):
        module = make(kind) if weights is None else on_meta(kind)
        module = module.to(torch.bfloat16) if low else module
        optimizer = adamw(module)
        step = planned_step(
            module,
            optimizer,
            batches[0],
            "80%" if weights is None else budget,
            shard=mesh_of(size),
            **({} if weights is None else {"weights": weights, "machine": machine}),
            **options,
        )
        assert not any(each.is_meta for each in (*module.parameters(), *module.buffers()))
        runs.append(Trained(module, optimizer, [step(**each).detach() for each in batches], []))
    ties = {name for name, _ in runs[1].module.named_parameters()}
    assert ties == {name for name, _ in runs[0].module.named_parameters()}
    return differences(*runs)


@pytest.mark.scripts
@pytest.mark.parametrize(
    ("kind", "size", "how", "options"),
    [
        ("gpt2", 2, "safetensors", {}),
        ("llama", 2, "torch", {"max_grad_norm": 0.5}),
        ("vit", 2, "safetensors", {"master_weights": True}),
        ("gpt2", (2, 2), "torch", {}),
    ],
)
def test_it_trains_as_the_real_module_bit_by_bit(
    tmp_path: Path, kind: str, size: Size, how: str, options: dict[str, Any]
) -> None:
    """GPT-2: a tied weight, 101 rows on 2 ranks. With master weights float32 files are cast to bfloat16."""
    folder = str(saved(make(kind), tmp_path / "weights", how))
    count = size if isinstance(size, int) else size[0] * size[1]
    assert ranks(trains, tmp_path, kind, size, folder, options, size=count) == [{}] * count


@pytest.mark.scripts
def test_of_files_shares_on_the_host_train_bit_by_bit(tmp_path: Path) -> None:
    folder = str(saved(make("vit"), tmp_path / "weights"))
    assert ranks(trains, tmp_path, "vit", 2, folder, {"master_weights": True}, "14%") == [{}, {}]


def wide() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(*(nn.Linear(WIDE, WIDE, bias=False) for _ in range(DEEP)), nn.BatchNorm1d(WIDE))


def protected(values: Tensor, rank: int) -> tuple[int, int]:
    """Return the pages of a mapped tensor that the other of two ranks has: the first, and their bytes."""
    rows = values.nbytes // 2
    begin = values.data_ptr() + (1 - rank) * rows
    first = -(-begin // PAGESIZE) * PAGESIZE
    return first, max(0, (begin + rows - first) // PAGESIZE * PAGESIZE)


def allow(first: int, size: int, access: int) -> None:
    assert (
        ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(first), ctypes.c_size_t(size), access) == 0
    )


def reads(rank: int, path: str) -> tuple[int, int]:
    """Plan and train a module of files, of which this rank must not read the other's rows: it would end at
    once. Return the bytes that were so, and the peak of live bytes."""
    with torch.device("meta"):
        module = wide()
    pages, spread = list[tuple[int, int]](), Shards.spread

    def guarded(self: Shards, module: Any, optimizer: Any, values: Any) -> Any:
        pages.extend(protected(each, rank) for each in values.values() if each.dim() == 2)
        for page in pages:
            allow(*page, 0)
        try:
            return spread(self, module, optimizer, values)
        finally:
            for page in pages:
                allow(*page, PROT_READ | PROT_WRITE)

    Shards.spread = guarded  # pyright: ignore[reportAttributeAccessIssue]
    x = torch.randn(4, WIDE)

    def run() -> None:
        step = memplan.optimize(
            module,
            x,
            loss_fn=torch.sum,
            budget="30MB",
            optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
            shard=True,
            weights=path,
            time_limit=1,
            cache=False,
        )
        step(x)

    peak = live_peak(run).peak_bytes
    return sum(size for _first, size in pages), peak


@pytest.mark.scripts
@pytest.mark.skipif(sys.platform == "win32", reason="pages are protected by mprotect")
def test_a_rank_reads_its_own_rows_alone(tmp_path: Path) -> None:
    """In tensors a rank has less than the model while it plans and trains, but for the file, which is mapped
    while shares are read."""
    state = {name: each.clone() for name, each in wide().state_dict().items()}
    save_file(state, path := tmp_path / "w.safetensors")
    whole = 4 * WIDE * WIDE * DEEP
    for guarded, peak in ranks(reads, tmp_path, str(path)):
        assert guarded > whole * 0.49
        assert peak - path.stat().st_size < whole


# ── refusals ────────────────────────────────────────────────────────────────────────────────────────


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 4)
        self.register_buffer("scale", torch.tensor([2.0]), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).tanh()).sum()


def small(*, filled: bool = True) -> Small:
    torch.manual_seed(3)
    with torch.device("meta"):
        module = Small()
    if filled:
        module.scale = torch.tensor([2.0])
    return module


def plan(module: nn.Module, weights: Any, **options: Any) -> Any:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    quick: dict[str, Any] = {"budget": "100%", "solver": "joint", "time_limit": 0.3, "cache": False}
    given = {**quick, "optimizer": optimizer, "shard": True, "weights": weights, **options}
    return memplan.optimize(module, torch.ones(4, 6), **given)


def state(**changes: Tensor | None) -> dict[str, Tensor]:
    torch.manual_seed(3)
    found = {**Small().state_dict(), **{name.replace("_", "."): each for name, each in changes.items()}}
    return {name: each for name, each in found.items() if each is not None}


def refused(rank: int, folder: str) -> list[str]:
    """Return the lines of refusals, by each rank's own files; after each the module is on meta as before."""
    lines, module = list[str](), small()
    for number, options in enumerate(({}, {}, {}, {"budget": "1%"}, {})):
        try:
            plan(module, f"{folder}/{number}/{rank}.safetensors", **options)
            lines.append("")
        except memplan.MemplanError as error:
            lines.append(str(error))
            assert all(each.is_meta for each in module.parameters())
    return lines


@pytest.mark.scripts
def test_other_files_are_refused_on_every_rank_and_others_can_be_given(tmp_path: Path) -> None:
    cases = [
        (state(), state(first_weight=None)),
        (state(last_bias=torch.zeros(3)), state()),
        (state(), state(first_bias=torch.zeros(8, dtype=torch.float64))),
        (state(), state()),
        (state(), state()),
    ]
    for number, files in enumerate(cases):
        (tmp_path / str(number)).mkdir()
        for rank, each in enumerate(files):
            save_file(each, tmp_path / f"{number}/{rank}.safetensors")
    first, second = ranks(refused, tmp_path, str(tmp_path))
    assert isinstance(first, list), first
    missing = f"{tmp_path}/0/1.safetensors: no file has first.weight, which is on meta"
    assert (first[0], second[0]) == (f"rank 1 of 2 has no plan: {missing}", missing)
    shape = f"{tmp_path}/1/0.safetensors: last.bias has the shape [3]; the module's is [4]"
    assert (first[1], second[1]) == (shape, f"rank 0 of 2 has no plan: {shape}")
    assert first[2].startswith("weights=: ranks 0 and 1 have different files at ")
    assert second[2].startswith("weights=: ranks 0 and 1 have different files at ")
    assert "budget" in first[3]
    assert second[3] == f"rank 0 of 2 has no plan: {first[3]}"
    assert first[4] == second[4] == ""


def other_replica(rank: int, folder: str) -> None:
    plan(small(), f"{folder}/{rank == 3}.safetensors", shard=mesh_of((2, 2)))


@pytest.mark.scripts
def test_replicas_with_other_values_are_refused(tmp_path: Path) -> None:
    """Each rank reads rows of its own: of ranks with equal shares the values are compared."""
    save_file(state(), tmp_path / "False.safetensors")
    save_file(state(last_weight=torch.ones(4, 8)), tmp_path / "True.safetensors")
    line = "weights=: ranks 1 and 3 have read other values of last.weight"
    assert ranks(other_replica, tmp_path, str(tmp_path), size=4) == [line] * 4


@pytest.fixture
def group() -> Any:
    with alone():
        yield


def test_what_does_not_go_with_files_is_refused(group: None, tmp_path: Path) -> None:
    save_file(state(), file := tmp_path / "w.safetensors")
    mixed = small()
    mixed.last = nn.Linear(8, 4)
    cases: list[tuple[nn.Module, Any, str]] = [
        (
            small(),
            None,
            r"the module is on meta, .*, or give weights=, files of which each rank reads its",
        ),
        (Small(), file, "weights are for a module on meta; this one has its own"),
        (
            mixed,
            file,
            "last.weight has values, and other parameters are on meta: make the whole",
        ),
        (
            small(filled=False),
            file,
            "no file has scale, which is on meta: it is a buffer that state_dict",
        ),
        (small(), tmp_path / "none.safetensors", "no such file"),
    ]
    for module, weights, line in cases:
        with pytest.raises(memplan.InputError, match=line) as error:
            plan(module, weights)
        assert "\n" not in str(error.value)


def test_files_of_torch_save_are_read_or_refused(group: None, tmp_path: Path) -> None:
    def at(name: str, content: Any, **options: Any) -> Path:
        torch.save(content, tmp_path / name, **options)
        return tmp_path / name

    assert plan(small(), at("pytorch_model.bin", state()))(torch.ones(4, 6)).isfinite()
    assert plan(small(), tmp_path)(torch.ones(4, 6)).isfinite()
    (tmp_path / "text.pt").write_text("weights")
    cases = [
        (at("old.pt", state(), _use_new_zipfile_serialization=False), "no file of torch.save as PyTorch 1.6"),
        (tmp_path / "text.pt", "no file of torch.save as PyTorch 1.6"),
        (
            at("nested.pt", {"model": state()}),
            "'model' in it is a dict, not a tensor: save the model's",
        ),
        (at("list.pt", [1, 2]), "it has a list: save the model's state_dict"),
        (at("module.pt", small()), "can't be read as a state_dict"),
    ]
    for path, line in cases:
        with pytest.raises(memplan.InputError, match=line) as error:
            plan(small(), path)
        assert "\n" not in str(error.value)


def test_damaged_files_of_torch_save_are_refused_in_one_line(tmp_path: Path) -> None:
    """Some damage makes zipfile raise where it is asked whether a file is an archive."""
    path, random, refused = tmp_path / "damaged.pt", Random(0), list[str]()
    torch.save(state(), path)
    content = path.read_bytes()
    for _ in range(600):
        damaged = bytearray(content)
        for _byte in range(random.choice((1, 3, 20))):
            damaged[random.randrange(len(damaged))] = random.randrange(256)
        path.write_bytes(damaged[: random.choice((len(damaged), random.randrange(len(damaged))))])
        try:
            open_saved(path)
        except memplan.InputError as error:
            refused.append(str(error))
    assert len(refused) > 300
    assert not any("\n" in line for line in refused)
