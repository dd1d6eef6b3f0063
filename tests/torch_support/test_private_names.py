"""Names that torch does not promise to keep stand in torch_support, in the files torch_*.py; those of a GPU
that is not here in devices/absent_gpu, and nowhere else.

Read from the syntax trees of the package. What counts: modules of torch with an underscore in their path, and
those that its documentation leaves out; attributes with a leading underscore that the same file does not
define (on `self`: no file of the package); such names as strings. Not those that Python documents.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import memplan
import pytest

PACKAGE = Path(memplan.__file__).parent
WITHOUT_TORCH = ("exchange", "graphs", "planner", "solvers")
"""Rooms whose private names are Python's, NumPy's and Numba's, or of files."""
FILES = sorted(
    path
    for path in PACKAGE.rglob("*.py")
    if path.relative_to(PACKAGE).parts[0] not in WITHOUT_TORCH
    and path.parent.name != "absent_gpu"  # all of it replaces what PyTorch keeps to itself
)
DOCUMENTED = {"_replace", "_fields", "_asdict", "_make", "_exit", "_run_exitfuncs", "_getframe"}
NOT_OF_TORCH = {
    *("_shutdown", "_functools", "_thread", "_ctypes", "_cache", "_name_", "_cython", "_memplan"),
    *("_hf_hook", "_shared_state", "_save_optimizer_and_scheduler", "_models", "_is_overflow"),
}
"""Names of Python's threads, modules, loggers and enums, of Cython's types, of our attribute of tensors; of
accelerate and the Trainer."""
UNDOCUMENTED = ("torch.fx.experimental", "torch.utils.flop_counter", "torch.utils.weak")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name != "_"


def is_on_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "self"


def defined(tree: ast.AST) -> set[str]:
    """What a file binds: functions, classes, variables, attributes that it sets on `self`."""
    names = DOCUMENTED | NOT_OF_TORCH
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_on_self(node):
            names.add(node.attr)
    return names


@cache
def everywhere() -> set[str]:
    """What all files bind."""
    return {name for path in FILES for name in defined(ast.parse(path.read_text()))}


def private_names(source: str) -> list[str]:
    """`line: name` for each name of torch's that is not promised."""
    tree = ast.parse(source)
    own = defined(tree)
    parts = {part for node in ast.walk(tree) for part in _parts_of_texts(node)}
    return [
        f"{getattr(node, 'lineno', 0)}: {name}"
        for node in ast.walk(tree)
        if node not in parts
        for name in _private(node, own)
    ]


def _private(node: ast.AST, own: set[str]) -> Iterator[str]:
    for module in _torch_modules(node):
        if any(map(is_private, module.split("."))) or module.startswith(UNDOCUMENTED):
            yield module
    if isinstance(node, ast.Attribute) and is_private(node.attr):
        known = own | everywhere() if is_on_self(node) else own
        if node.attr not in known:
            yield node.attr
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in own:
        parts = node.value.split(".")
        if all(part.isidentifier() for part in parts) and any(map(is_private, parts)):
            yield node.value


def _parts_of_texts(node: ast.AST) -> list[ast.expr]:
    """Strings that are a piece of another: in an f-string, or looked for at the end of one."""
    if isinstance(node, ast.JoinedStr):
        return node.values
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.args if node.func.attr in {"endswith", "removesuffix"} else []
    return []


def _torch_modules(node: ast.AST) -> Iterator[str]:
    """The modules and names of torch that an import or a dotted name reaches."""
    names: list[str] = []
    if isinstance(node, ast.ImportFrom) and not node.level:
        names = [f"{node.module}.{alias.name}" for alias in node.names]
    elif isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.Attribute):
        names = [ast.unparse(node)]
    return (name for name in names if re.fullmatch(r"torch(\.\w+)*", name))


@pytest.mark.sampled(173)
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_they_stand_in_their_files(path: Path) -> None:
    found = private_names(path.read_text())
    if path.parent.name == "torch_support" and path.name.startswith("torch_") and path.stem != "torch_range":
        assert found
    else:
        assert not found, f"these belong in torch_support: {found}"


@pytest.mark.parametrize(
    "line",
    [
        "import torch._dynamo",
        "from torch._ops import OpOverload",
        "from torch import _C",
        "from torch.utils._pytree import tree_map",
        "from torch.fx.experimental.proxy_tensor import make_fx",
        "torch._C._autograd",
        "module._buffers['weight']",
        "self.module._buffers",
        "self._own = 1\nmodule._modules",
        "aten._to_copy.default",
        "getattr(optimizer, '_opt_called')",
        "logging.getLogger('torch._dynamo')",
    ],
)
def test_what_counts(line: str) -> None:
    assert private_names(line)


@pytest.mark.parametrize(
    "line",
    [
        "self._own = 1\nother._own",
        "value._replace(x=1)",
        "from ._own import name",
        "def _own(): ...\n_own()",
        "__slots__ = ('_own',)\nself._own = 1",
        "tensor.__torch_dispatch__",
        "'a text with _underscores'",
        "f'{name}_peak'",
        "name.endswith('_like')",
        "self._own = torch.empty(0)\ntorch.stack(self._own).sum",
    ],
)
def test_what_does_not(line: str) -> None:
    assert not private_names(line)
