"""Files of other tools, changed as bytes and as documents, cut short, or of another kind: imported, or
refused in one line that names the file."""

from __future__ import annotations

import io
import json
import pickle
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from random import Random
from time import process_time
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from memplan.exchange.formats import FORMATS, Options, read
from memplan.graphs.errors import InputError
from memplan.graphs.files.files import graph_digest, load_graph, save_graph
from memplan.planner.baseline import baseline

from .area import Area, Fault, Verdict
from .readers import changed, line_faults
from .shrink import without

SLOW_SECONDS = 5.0
SUFFIXES = {"moccasin": ".json", "onnx": ".onnx", "fx": ".pt2"}
GPU, DIMS = "rtx3060", {"b": 4}


class ImportCase(NamedTuple):
    """A file of another tool. format: the one that it is imported as."""

    format: str
    data: bytes


class Imports(Area):
    name = "imports"

    def __init__(self) -> None:
        self.folder = Path(tempfile.gettempdir())
        self.sound: dict[str, bytes] = {}
        self.documents: dict[str, Any] = {}

    def warm_up(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="memplan-fuzz-imports-"))
        self._make_sound()
        for name, data in self.sound.items():
            if found := self.judge(ImportCase(name, data)).faults:
                raise ValueError(f"the sound file of {name} is none: {found[0].detail}")

    def make(self, random: Random) -> ImportCase:
        self._make_sound()
        name = random.choice([*self.sound])
        if random.random() < 0.05:  # of another kind
            return ImportCase(name, self.sound[random.choice([*self.sound])])
        if name in self.documents and random.random() < 0.6:
            document = changed(random, self.documents[name])
            data = json.dumps(document, ensure_ascii=random.random() < 0.7).encode(errors="surrogatepass")
            return ImportCase(name, _packed(data) if name == "fx" else data)
        return ImportCase(name, _spoilt(random, self.sound[name]))

    def judge(self, case: ImportCase) -> Verdict:
        path = self.folder / f"case{SUFFIXES.get(case.format, '.pkl')}"
        path.write_bytes(case.data)
        start = process_time()
        try:
            takes = FORMATS[case.format].takes
            options = Options(gpu=GPU if "gpu" in takes else None, dims=DIMS if self._is_open(case) else None)
            graph = read(case.format, path, options)
            baseline(graph)
            save_graph(graph, path.with_name("again.json"))
            same = graph_digest(load_graph(path.with_name("again.json"))) == graph_digest(graph)
            faults = [] if same else [Fault(f"{case.format}: not the same again", "written and read again")]
            outcome = "read"
        except InputError as error:
            faults, outcome = list(line_faults(str(error), path)), "refused"
        except Exception as error:
            kind = f"{case.format}: {type(error).__name__}"
            faults, outcome = [Fault(kind, f"{kind}: {str(error)[:300]}")], "failed"
        if (seconds := process_time() - start) > SLOW_SECONDS:
            size = f"{len(case.data):,} bytes took {seconds:.1f} s"
            faults.append(Fault(f"{case.format}: slow", size))
        return Verdict(faults, {f"{case.format} {outcome}": 1})

    def smaller(self, case: ImportCase) -> Iterator[ImportCase]:
        for data in without(case.data):
            yield case._replace(data=bytes(data))

    def write(self, case: ImportCase, folder: Path, fault: Fault | None) -> list[str]:
        name = f"file{SUFFIXES.get(case.format, '.pkl')}"
        (folder / name).write_bytes(case.data)
        gpu = f" --gpu {GPU}" if "gpu" in FORMATS[case.format].takes else ""
        dims = " --dim b=4" if self._is_open(case) else ""
        return [f"plan import {case.format} {name}{gpu}{dims}"]

    def _is_open(self, case: ImportCase) -> bool:
        return case.format == "onnx"

    def _make_sound(self) -> None:
        if not self.sound:
            self.documents = {"moccasin": _moccasin(), "fx": _fx()}
            self.sound = {
                "moccasin": json.dumps(self.documents["moccasin"]).encode(),
                "fx": _packed(json.dumps(self.documents["fx"]).encode()),
                "checkmate": _checkmate(),
                "snapshot": _snapshot(),
                "rkgb": _rkgb(),
            }
            if find_spec("onnx"):
                self.sound["onnx"] = _onnx()


def _spoilt(random: Random, data: bytes) -> bytes:
    """Some bits turned, a part cut, moved, doubled or filled, the end gone."""
    made = bytearray(data)
    for _change in range(random.choice((1, 1, 1, 2, 8))):
        at, size = random.randrange(len(made) or 1), random.choice((1, 1, 2, 4, 16, 200))
        part = bytes(made[at : at + size])
        match random.randrange(7):
            case 0 | 1:
                if made:
                    made[at] ^= 1 << random.randrange(8)
            case 2:
                del made[at:]
            case 3:
                del made[at : at + size]
            case 4:
                made[at:at] = part
            case 5:
                made[at : at + size] = random.choice((b"\0", b"\xff", b"\x80", b"(")) * len(part)
            case _:
                del made[at : at + size]
                place = random.randrange(len(made) + 1)
                made[place:place] = part
    return bytes(made)


# ── sound files ─────────────────────────────────────────────────────────────────────────────────────


def _moccasin() -> Any:
    nodes = [
        {"name": f"n{k}", "id": k, "cost_cpu": k + 1, "cost_ram": 4, "backward": k > 2} for k in range(5)
    ]
    links = [{"source": k, "target": k + 1} for k in range(4)] + [{"source": 0, "target": 4}]
    about = {"name": "g", "order": [0, 1, 2, 3, 4]}
    return {"directed": True, "multigraph": False, "graph": about, "nodes": nodes, "links": links}


def _checkmate() -> bytes:
    v = list(range(5))
    arguments = {
        "v": v,
        "args": {k: [k - 1] if k else [] for k in v},
        "backward_nodes": {3, 4},
        "cost_cpu": dict.fromkeys(v, 2),
        "cost_ram": dict.fromkeys(v, 8),
        "node_names": {k: f"n{k}" for k in v},
        "cost_ram_parameters": 16,
    }
    return pickle.dumps(arguments, protocol=4)


def _snapshot() -> bytes:
    frames = [{"filename": "/home/a/train.py", "name": "step", "line": 12}]

    def entry(action: str, addr: int, size: int, time: int) -> Any:
        return {"action": action, "addr": addr, "size": size, "time_us": time, "frames": frames}

    trace = [entry("alloc", 0, 512, 1), entry("alloc", 512, 900, 2), entry("free_requested", 0, 512, 3)]
    trace += [entry("free_completed", 0, 512, 3), entry("alloc", 0, 100, 4)]
    blocks = [{"size": 512, "state": "active_allocated"}, {"size": 1024, "state": "active_allocated"}]
    segment = {"device": 0, "address": 0, "total_size": 1536, "blocks": blocks}
    return pickle.dumps({"segments": [segment], "device_traces": [trace]})


def _rkgb() -> bytes:
    """A pickle of classes with rkgb's names, which exist only while it is made."""
    names = {
        "rkgb.core.backward": [
            "ForwardAndBackwardGraph",
            "ComputationNode",
            "AllocationNode",
            "ParameterNode",
        ]
    }
    kinds: dict[str, Callable[[], Any]] = {}
    before = {name: sys.modules.get(name) for name in ("rkgb", "rkgb.core", *names)}
    try:
        for module in before:
            sys.modules[module] = ModuleType(module)
        for module, each in names.items():
            for name in each:
                kinds[name] = type(name, (), {"__module__": module})
                setattr(sys.modules[module], name, kinds[name])
        return pickle.dumps(_chain(kinds))
    finally:
        for module, own in before.items():
            if own is None:
                del sys.modules[module]
            else:
                sys.modules[module] = own


def _chain(kinds: dict[str, Callable[[], Any]]) -> Any:
    def made(kind: str, **fields: Any) -> Any:
        one = kinds[kind]()
        vars(one).update(fields)
        return one

    weight = made("ParameterNode", param_name="w", mem=16, is_buffer=False)
    computations, allocations = list[Any](), list[Any]()
    for place, name in enumerate(("FWD[a]", "FWD[loss]", "BWD[a]")):
        needed = {allocations[-1]} if allocations else set[Any]()
        one = made(
            "ComputationNode",
            name=name,
            is_fwd=place < 2,
            is_rand=False,
            time=1.0,
            mem_overhead=2,
            deps_real=needed,
            required_parameter_nodes_real={weight},
        )
        computations.append(one)
        kind = "grad" if place else "data"
        fields: Any = {"name": f"t{place}", "allocation_type": kind, "mem": 8, "deps": {one}}
        allocations.append(made("AllocationNode", **fields))
    return made(
        "ForwardAndBackwardGraph",
        computation_nodes=computations,
        allocation_nodes=allocations,
        parameter_nodes=[weight],
        loss_cnode=computations[1],
    )


def _onnx() -> bytes:
    import onnx

    make, real = onnx.helper.make_node, onnx.TensorProto.FLOAT
    own = {"domain": "com.microsoft"}
    nodes = [
        make("LayerNormalization", ["x", "s", "s"], ["n", "mean", "inv"]),
        make("Shape", ["x"], ["shape"]),
        make("Gather", ["shape", "zero"], ["rows"]),
        make("Concat", ["rows", "rest"], ["sizes"], axis=0),
        make("Reshape", ["n", "sizes"], ["r"]),
        make("ReduceMean", ["r"], ["loss"], keepdims=0),
        make("Expand", ["one", "shape"], ["n_grad"]),
        make("LayerNormalizationGrad", ["n_grad", "x", "s", "mean", "inv"], ["", "s_grad"], **own),
        make("InPlaceAccumulatorV2", ["sum", "s_grad"], ["done"], **own),
    ]

    def info(name: str, shape: list[Any]) -> Any:
        return onnx.helper.make_tensor_value_info(name, real, shape)

    values = {"s": np.ones(8, np.float32), "zero": np.array([0]), "rest": np.array([2, 4])}
    values["one"] = np.ones(1, np.float32)
    fixed = [onnx.numpy_helper.from_array(value, name) for name, value in values.items()]
    inputs, outputs = [info("x", ["b", 8]), info("sum", [8])], [info("loss", []), info("done", [1])]
    graph = onnx.helper.make_graph(nodes, "g", inputs, outputs, fixed)
    imports = [onnx.helper.make_opsetid("", 14), onnx.helper.make_opsetid("com.microsoft", 1)]
    return onnx.helper.make_model(graph, opset_imports=imports).SerializeToString()


def _fx() -> Any:
    import torch
    from torch import nn
    from torch.export.experimental import _export_forward_backward

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.layer(x).double().float()).square().mean()

    file = io.BytesIO()
    program = torch.export.export(Loss(), (torch.zeros(2, 4),))
    torch.export.save(_export_forward_backward(program), file)
    with zipfile.ZipFile(file) as archive:
        name = next(each for each in archive.namelist() if "/models/" in each and each.endswith(".json"))
        return json.loads(archive.read(name))


def _packed(data: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("m/models/m.json", data)
    return file.getvalue()


AREA = Imports()
