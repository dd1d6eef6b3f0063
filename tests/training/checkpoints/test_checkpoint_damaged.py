"""A checkpoint that is not as it was saved is refused in one line, and nothing has changed; one that ends a
process anywhere leaves the one before."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import memplan
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.graphs.errors import MemplanError
from memplan.training.checkpoints import checkpoint, digests, holding
from torch import Tensor, nn

MODEL, OPTIMIZER, REST = checkpoint.MODEL, checkpoint.OPTIMIZER, checkpoint.REST
FILES = [MODEL, OPTIMIZER, REST, digests.DIGESTS]
Files = dict[str, bytes]


class Run:
    """A small model with a tied weight and a buffer, trained so many times; a schedule as extra."""

    def __init__(self, turns: int, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3, bias=False))
        self.module[2].weight = self.module[0].weight
        self.optimizer = torch.optim.AdamW(self.module.parameters(), 0.01)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        for _turn in range(turns):
            self.module(torch.randn(4, 3)).square().sum().backward()
            self.optimizer.step()
            self.schedule.step()

    def save(self, folder: Path) -> None:
        checkpoint.save(folder, self.module, self.optimizer, {"schedule": self.schedule})

    def load(self, folder: Path) -> None:
        checkpoint.load(folder, self.module, self.optimizer, {"schedule": self.schedule})

    def state(self) -> bytes:
        """All of it, with the random numbers."""
        states = [self.optimizer.state[parameter] for parameter in self.module.parameters()]
        tensors = [*self.module.state_dict().values(), *(each for row in states for each in row.values())]
        rates = [group["lr"] for group in self.optimizer.param_groups]
        rest = [sorted(row) for row in states], rates, self.schedule.state_dict()
        file = io.BytesIO()
        for tensor in (*tensors, torch.get_rng_state()):
            file.write(tensor.numpy().tobytes())
        file.write(repr((rest, random.getstate(), np.random.get_state())).encode())
        return file.getvalue()


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def saved(run: Run, folder: Path) -> Files:
    run.save(folder)
    return {name: (folder / "00000001" / name).read_bytes() for name in FILES}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Files, Files, bytes]:
    """The files of two saves of one run, and the first's state."""
    first, second = Run(2), Run(3)
    torch.manual_seed(7)
    files = saved(first, tmp_path_factory.mktemp("first"))
    state = first.state()
    return files, saved(second, tmp_path_factory.mktemp("second")), state


def written(files: Files, folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "00000001").mkdir(parents=True)
    for name, data in files.items():
        (folder / "00000001" / name).write_bytes(data)
    return folder


def refused(run: Run, folder: Path) -> str:
    """The line, of a load that changes nothing; empty if it is not refused."""
    before = run.state()
    line = ""
    try:
        run.load(folder)
    except MemplanError as error:
        line = str(error)
    assert "\n" not in line
    assert not line or run.state() == before
    return line


# ── any damage ──────────────────────────────────────────────────────────────────────────────────────

places = st.floats(0, 1, exclude_max=True)


@st.composite
def damages(draw: st.DrawFn) -> Callable[[Files, Files], Files]:
    """What is done to the files of a save, with those of another."""
    kind = draw(st.sampled_from(["flip", "cut", "longer", "swap", "move", "other", "names", "gone"]))
    name, second = draw(st.sampled_from(FILES)), draw(st.sampled_from(FILES))
    at, to, size, bit = draw(places), draw(places), draw(st.integers(1, 64)), draw(st.integers(0, 7))

    def change(files: Files, other: Files) -> Files:
        data = bytearray(files[name])
        i, j = int(at * len(data)), int(to * len(data))
        match kind:
            case "flip":
                data[i] ^= 1 << bit
            case "cut":
                del data[i:]
            case "longer":
                data += bytes(size)
            case "swap":
                data[i], data[j] = data[j], data[i]
            case "move":
                part = data[i : i + size]
                del data[i : i + size]
                data[j:j] = part
            case "other":
                data = bytearray(other[name])
            case "names":
                return {**files, name: files[second], second: files[name]}
            case _:
                return {each: files[each] for each in FILES if each != name}
        return {**files, name: bytes(data)}

    return change


@pytest.mark.scripts
@settings(max_examples=300, deadline=None)
@given(damages())
def test_a_damaged_checkpoint_is_refused_or_loads_what_was_saved(
    two: tuple[Files, Files, bytes],
    tmp_path_factory: pytest.TempPathFactory,
    damage: Callable[[Files, Files], Files],
) -> None:
    first, second, state = two
    files = damage(first, second)
    run = Run(1, seed=5)
    line = refused(run, written(files, tmp_path_factory.getbasetemp() / "damaged"))
    if not line:
        assert run.state() == state
    elif files == first:
        raise AssertionError(line)


@pytest.mark.scripts
def test_each_byte_of_a_tensor_counts(two: tuple[Files, Files, bytes], tmp_path: Path) -> None:
    run = Run(1)
    for name in (MODEL, OPTIMIZER):
        for at in range(len(two[0][name])):
            data = bytearray(two[0][name])
            data[at] ^= 1
            assert refused(run, written({**two[0], name: bytes(data)}, tmp_path / "c"))


# ── what a file may be instead ──────────────────────────────────────────────────────────────────────


def fifo(path: Path) -> None:
    os.mkfifo(path)


def listening(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # names of sockets are short
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(here)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def dangling(path: Path) -> None:
    path.symlink_to(path.parent / "nothing")


def circle(path: Path) -> None:
    path.symlink_to(path)


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**40)


ODD: dict[Callable[[Path], None], str] = {
    fifo: "named pipe",
    listening: "socket",
    Path.mkdir: "a folder",
    endless: "a device",
    dangling: "a link to",
    circle: "cannot be read",
    sparse: "",
}


@pytest.mark.skipif(sys.platform != "linux", reason="files of POSIX, and a disk with holes")
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("make", ODD)
def test_no_file_at_all(
    make: Callable[[Path], None], name: str, two: tuple[Files, Files, bytes], tmp_path: Path
) -> None:
    path = written(two[0], tmp_path / "c") / "00000001" / name
    path.unlink()
    make(path)
    line = refused(Run(1), tmp_path / "c")
    assert name in line
    assert ODD[make] in line


def test_links_and_files_of_others_are_no_matter(two: tuple[Files, Files, bytes], tmp_path: Path) -> None:
    place = written(two[0], tmp_path / "c") / "00000001"
    (place / MODEL).rename(tmp_path / "elsewhere")
    (place / MODEL).symlink_to(tmp_path / "elsewhere")
    (place / "notes.txt").write_text("mine")
    (tmp_path / "c" / "٣٣٣٣٣٣٣٣٣").mkdir()
    run = Run(0)
    run.load(tmp_path / "c")
    assert run.state() == two[2]


# ── checkpoints without digests ─────────────────────────────────────────────────────────────────────


def older(files: Files) -> Files:
    """As versions before digests wrote them."""
    rest = torch.load(io.BytesIO(files[REST]), weights_only=True)
    del rest["format"]
    return {MODEL: files[MODEL], OPTIMIZER: files[OPTIMIZER], REST: packed(rest)}


def packed(rest: Any) -> bytes:
    file = io.BytesIO()
    torch.save(rest, file)
    return file.getvalue()


def test_an_older_checkpoint_loads_with_a_line(two: tuple[Files, Files, bytes], tmp_path: Path) -> None:
    run = Run(1)
    with pytest.warns(UserWarning, match="of an earlier memplan, without digests") as lines:
        run.load(written(older(two[0]), tmp_path / "c"))
    assert len(lines) == 1
    assert run.state() == two[2]
    run.save(tmp_path / "c")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Run(0).load(tmp_path / "c")


def header(name: str, change: Callable[[dict[str, Any]], None]) -> Callable[[Files], None]:
    def run(files: Files) -> None:
        data = files[name]
        length = int.from_bytes(data[:8], "little")
        rows = json.loads(data[8 : 8 + length])
        change(rows)
        text = json.dumps(rows).encode()
        files[name] = len(text).to_bytes(8, "little") + text + data[8 + length :]

    return run


def rest(change: Callable[[dict[str, Any]], Any]) -> Callable[[Files], None]:
    def run(files: Files) -> None:
        found = torch.load(io.BytesIO(files[REST]), weights_only=True)
        other = change(found)
        files[REST] = packed(found if other is None else other)

    return run


def first(rows: dict[str, Any]) -> str:
    return next(name for name in rows if name != "__metadata__")


def rename(new: str) -> Callable[[dict[str, Any]], None]:
    return lambda rows: rows.update({new: rows.pop(first(rows))})


def field(row: str, **fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda rows: rows[row].update(fields)


def raw(name: str, data: bytes) -> Callable[[Files], None]:
    return lambda files: files.update({name: data})


TAMPERED: dict[str, tuple[Callable[[Files], None], str]] = {
    "a tensor renamed": (header(MODEL, rename("zz")), "is not in the checkpoint"),
    "a state renamed": (header(OPTIMIZER, rename("zz")), "'zz' is of no parameter"),
    "a state of nobody": (header(OPTIMIZER, rename("99.exp_avg")), "'99.exp_avg' is of no parameter"),
    "a state's index": (header(OPTIMIZER, rename("٣.exp_avg")), "is of no parameter"),
    "a state gone": (header(OPTIMIZER, rename("1.exp_avg_sq2")), "is not saved"),
    "another type": (header(MODEL, field("0.weight", dtype="I32")), "of torch.int32"),
    "no type": (header(MODEL, field("0.weight", dtype=["F32"])), "can't be read as tensors"),
    "another shape": (header(MODEL, field("0.weight", shape=[9])), r"saved as \(9,\)"),
    "a state's shape": (header(OPTIMIZER, field("0.exp_avg", shape=[9])), "in the shape"),
    "a shape beyond": (
        header(MODEL, field("0.weight", shape=[2**70, 0], data_offsets=[0, 0])),
        "can't be read",
    ),
    "a shape of text": (header(MODEL, field("0.weight", shape="33")), "can't be read"),
    "negative": (header(MODEL, field("0.weight", shape=[-3, -3])), "not a shape"),
    "a place before": (header(MODEL, field("0.weight", data_offsets=[-8, 36])), "overlap"),
    "a place twice": (header(MODEL, field("0.weight", data_offsets=[36, 72])), "overlap"),
    "a row that is a list": (header(MODEL, lambda rows: rows.update(x=[1])), "can't be read"),
    "deep": (raw(MODEL, (200_000).to_bytes(8, "little") + b"[" * 200_000 + b"0"), "can't be read"),
    "a list": (rest(lambda _rest: [1, 2]), "a list is not what"),
    "nothing": (rest(lambda _rest: {}), "'tied' is not"),
    "tied to nobody": (rest(lambda rest: rest.update(tied={"2.weight": "nope"})), "tied to 'nope'"),
    "tied to a number": (rest(lambda rest: rest.update(tied={"2.weight": 3})), "'tied' is not"),
    "groups": (rest(lambda rest: rest["optimizer"].update(groups=3)), "not those of an optimizer"),
    "others": (rest(lambda rest: rest["optimizer"].update(others=None)), "not those of an optimizer"),
    "indices": (rest(lambda rest: rest["optimizer"]["others"].update(x={})), "states of parameter 'x'"),
    "random numbers": (rest(lambda rest: rest["random"].update(torch=torch.zeros(3))), "'random' is not"),
    "python's": (rest(lambda rest: rest["random"].update(python=(3, (1, 2), None))), "'random' is not"),
    "numpy's": (rest(lambda rest: rest["random"].update(numpy=(1, 2))), "'random' is not"),
    "extra gone": (rest(lambda rest: rest["extra"].clear()), "nothing was saved as extra 'schedule'"),
    "extra is no state": (rest(lambda rest: rest["extra"].update(schedule=3)), "does not take its state"),
    "a pickle that runs": (raw(REST, b"cos\nsystem\n(S'touch PWNED'\ntR."), "can't be read"),
    "a save with digests": (rest(lambda rest: rest.update(format=2)), "digests.json is gone"),
}


@pytest.mark.parametrize("name", TAMPERED)
@pytest.mark.filterwarnings("ignore:.*of an earlier memplan")
def test_an_older_checkpoint_that_was_tampered_with(
    name: str, two: tuple[Files, Files, bytes], tmp_path: Path
) -> None:
    tamper, line = TAMPERED[name]
    files = older(two[0])
    tamper(files)
    with pytest.raises(MemplanError, match=line):
        Run(1).load(written(files, tmp_path / "c"))
    assert refused(Run(1), tmp_path / "c")
    assert not Path("PWNED").exists()


def test_one_of_a_newer_version(two: tuple[Files, Files, bytes], tmp_path: Path) -> None:
    content = json.loads(two[0][digests.DIGESTS])
    del content["whole"]
    content["format"] = 3
    content["whole"] = digests._whole(content)  # pyright: ignore[reportPrivateUsage]
    folder = written({**two[0], digests.DIGESTS: json.dumps(content).encode()}, tmp_path / "c")
    assert "written by a newer memplan, in format 3; this one reads 2" in refused(Run(1), folder)


# ── a load that is broken off ───────────────────────────────────────────────────────────────────────


class Stopped(BaseException):
    pass


@pytest.fixture
def alarm() -> Iterator[None]:
    """A signal whose handler raises."""

    def stop(*_: object) -> None:
        raise Stopped

    before = signal.signal(signal.SIGUSR1, stop)
    yield
    signal.signal(signal.SIGUSR1, before)


def calls(target: Any, name: str, act: Callable[[], None], at: int, patch: pytest.MonkeyPatch) -> None:
    """Let the call of this number do something else, too."""
    left, own = [at], getattr(target, name)

    def run(*arguments: Any, **keywords: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            act()
        return own(*arguments, **keywords)

    patch.setattr(target, name, run)


def send() -> None:
    os.kill(os.getpid(), signal.SIGUSR1)


@pytest.mark.skipif(sys.platform == "win32", reason="sends a POSIX signal")
@pytest.mark.parametrize("at", [1, 4])
@pytest.mark.usefixtures("alarm")
def test_a_signal_while_values_are_replaced_waits_for_the_end(
    at: int, two: tuple[Files, Files, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(1)
    calls(holding, "replace_at_home", send, at, monkeypatch)
    with pytest.raises(Stopped):
        run.load(written(two[0], tmp_path / "c"))
    assert run.state() == two[2]


@pytest.mark.skipif(sys.platform == "win32", reason="sends a POSIX signal")
@pytest.mark.parametrize(
    "place", [(checkpoint, "verify_tensors"), (torch.optim.lr_scheduler.StepLR, "load_state_dict")]
)
@pytest.mark.usefixtures("alarm")
def test_a_signal_before_that_leaves_all_as_it_was(
    place: tuple[Any, str], two: tuple[Files, Files, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(1)
    before = run.state()
    calls(*place, send, 1, monkeypatch)
    with pytest.raises(Stopped):
        run.load(written(two[0], tmp_path / "c"))
    assert run.state() == before


@pytest.mark.skipif(sys.platform == "win32", reason="sends a POSIX signal")
@pytest.mark.usefixtures("alarm")
def test_signals_at_any_moment(two: tuple[Files, Files, bytes], tmp_path: Path) -> None:
    run, chance = Run(1), random.Random(3)
    folder = written(two[0], tmp_path / "c")
    spare = tmp_path / "spare"
    run.save(spare)
    seen: set[bytes] = set()
    before = run.state()

    def load() -> None:
        try:
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-4, 1e-2))
            run.load(folder)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Stopped:
            pass

    own = signal.signal(signal.SIGALRM, signal.getsignal(signal.SIGUSR1))
    try:
        for _turn in range(60):
            load()
            seen.add(run.state())
            run.load(spare)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, own)
    assert seen <= {before, two[2]}


def test_values_that_can_not_be_replaced_refuse_until_a_load_ends_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError("Input/output error")

    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    x = torch.randn(4, 8)
    step = memplan.optimize(
        module, x, loss_fn=Tensor.sum, budget="100%", optimizer=optimizer, cache=False, solver="store-all"
    )
    step.save(tmp_path)
    with monkeypatch.context() as patch:
        calls(holding, "replace_at_home", fail, 2, patch)
        with pytest.raises(MemplanError, match="has failed: OSError: Input/output error; module and optim"):
            step.load(tmp_path)
    for use in (lambda: step(x), lambda: step.evaluate(x), lambda: step.save(tmp_path)):
        with pytest.raises(MemplanError, match="load a checkpoint before you go on"):
            use()
    step.load(tmp_path)
    step(x)


# ── a save that is killed ───────────────────────────────────────────────────────────────────────────


@pytest.mark.scripts
@pytest.mark.skipif(not hasattr(os, "fork"), reason="ends processes of its own")
def test_a_save_killed_at_any_write_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    """Whichever call to the system it is killed at, writes of half of the bytes among them."""
    one, other = Run(1), Run(2)
    states = {0: one, 1: other}
    seen: set[int] = set()
    for number in range(1, 200):
        folder = tmp_path / f"{number}"
        one.save(folder)
        child = os.fork()
        if not child:
            _kill_at(number)
            other.save(folder)
            os._exit(0)
        _child, status = os.waitpid(child, 0)
        found = Run(0)
        found.load(folder)
        which = [key for key, run in states.items() if same(run, found)]
        assert len(which) == 1
        seen.add(which[0])
        shutil.rmtree(folder)
        if status == 0:
            break
    assert seen == {0, 1}
    assert number > 20


def same(one: Run, other: Run) -> bool:
    """Values alone: each save has its own random numbers."""
    pairs = zip(one.module.state_dict().values(), other.module.state_dict().values(), strict=True)
    return all(torch.equal(*pair) for pair in pairs)


def _kill_at(number: int) -> None:
    """End this process at its so many-th call to the system that changes something on the disk."""
    left = [number]

    def ending(target: Any, name: str) -> None:
        own = getattr(target, name)

        def run(*arguments: Any, **keywords: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                os._exit(9)
            return own(*arguments, **keywords)

        setattr(target, name, run)

    for name in ("fsync", "mkdir", "rename", "unlink", "rmdir"):
        ending(os, name)
    own_open = Path.open

    class File:
        """Writes half of what it is to write, when the process ends with that."""

        def __init__(self, file: Any) -> None:
            self.file = file

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

        def write(self, data: Any) -> int:
            left[0] -= 1
            if left[0] == 0:
                self.file.write(bytes(data)[: len(data) // 2])
                self.file.flush()
                os._exit(9)
            return self.file.write(data)

    def opened(path: Path, mode: str = "r", *rest: Any, **keywords: Any) -> Any:
        file = own_open(path, mode, *rest, **keywords)
        return File(file) if "w" in mode else file

    Path.open = opened  # pyright: ignore[reportAttributeAccessIssue]
