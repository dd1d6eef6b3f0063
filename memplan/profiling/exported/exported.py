"""A `.pt2` file (torch.export.save) as a graph with estimated times.

Of the archive one file is read, `models/*.json`, the program. Weights and sample inputs, which may be
pickles, are left alone. A joint forward-backward program comes from
torch.export.experimental._export_forward_backward.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

from ...devices.device.device import StreamDevice
from ...graphs.errors import MemplanError
from ...graphs.files.documents import regular_size
from ...graphs.graph import Graph
from ...graphs.machines.presets import Preset, find_preset
from ...program.graph import graph_of
from ...tracing.lowering import lower
from ...tracing.trace_context import silent
from ..profile.estimate import costs_of, demands_of, estimate_source
from .joint import joint_of

MOST_BYTES = 512 * 2**20


def read_export(path: Path, gpu: str | Preset) -> Graph:
    """Read a `.pt2` file as a graph with estimated times.

    gpu: the machine, or its name, for whose GPU the roofline estimates times.

    Raises ValueError or InputError.
    """
    preset = find_preset(gpu)
    document = _document(path)
    try:
        with silent():
            program = lower(joint_of(document))
    except MemplanError as error:  # of a program, not of a model that is traced
        raise ValueError(str(error)) from None
    demands = demands_of(program)
    costs = costs_of(program, demands, preset.gpu, preset.machine.updates)
    estimated = estimate_source(preset.gpu, (one.work for one in demands))
    source = {"kind": "fx", "file": path.name, "estimate": estimated}
    return graph_of(
        program,
        costs,
        name=path.stem,
        source=source,
        machine=preset.machine,
        block_bytes=StreamDevice.block_bytes,
    )


def _document(path: Path) -> Any:
    """Read the program of an archive. Raises ValueError if the file is not an archive or has no program."""
    regular_size(path)
    try:
        with zipfile.ZipFile(path) as archive:
            names = [one for one in archive.infolist() if one.filename.endswith(".json")]
            models = [one for one in names if "models" in Path(one.filename).parts[:-1]]
            if len(models) != 1:
                raise ValueError(f"has {len(models)} programs in models/, not one")
            # The archive's own word, before anything is unpacked; the read is limited in any case.
            if models[0].file_size > MOST_BYTES:
                raise ValueError(f"its program is larger than the {MOST_BYTES // 2**20} MiB that are read")
            with archive.open(models[0]) as stream:
                return json.loads(stream.read(MOST_BYTES))
    except zipfile.BadZipFile:
        raise ValueError(
            "is no .pt2 file: save the program with torch.export.save; a pickled GraphModule runs code "
            "when it is read"
        ) from None
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
