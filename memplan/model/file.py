"""A model from the user's own file: `model.py[:entry]`, by default `model.py:build`.

`entry` is a function that can be called without arguments and returns `(module, example_inputs)`,
`(module, example_inputs, loss_fn)` with `loss_fn(output)` or `loss_fn(output, example_inputs)`, or
`(module, example_inputs, loss_fn, targets)` with `loss_fn(output, targets)`; one with a parameter `batch` can
be asked for other batches. A function `data` of the file, if there is one, gives batches to train with: an
epoch each time it is called. The file runs as a script would: what is in its folder can be imported.
No module of this package can be shadowed by it, since inside the package all imports are relative.
"""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar, cast

from torch import nn

from ..graphs.errors import InputError, MemplanError, MissingPackageError
from ..graphs.files.documents import regular_size
from .arguments import parse_inputs
from .batches import PARAMETER, takes_batch, with_batch
from .iteration import Inputs, Iteration, Labelled, LossFunction, with_targets
from .variant import Variant

_MOST_BYTES = 64 * 2**20
DEFAULT_ENTRY = "build"

T = TypeVar("T")
_END = object()


class ModelFile(NamedTuple):
    """A function that builds a model.

    path, entry: as the user named them.
    data: see `epoch`.
    label: a name for the graph, which replaces the file's.
    variant: options that change what the function builds.
    """

    path: str
    entry: str
    function: Callable[..., Any]
    data: Callable[[], Iterable[Any]] | None = None
    label: str | None = None
    variant: Variant | None = None

    @property
    def name(self) -> str:
        """Return a name for the graph: `gpt2`, or `gpt2-large` for the entry `large`."""
        stem = self.label or Path(self.path).stem
        return stem if self.entry == DEFAULT_ENTRY else f"{stem}-{self.entry}"

    def build(self, batch: int | None = None) -> Iteration:
        """Call the function and return its iteration.

        batch: samples in an iteration, None: its own (see batches.py).

        Raises InputError, one line, if it fails or returns something else.
        """
        path, place = Path(self.path), f"{self.path}:{self.entry}"
        asked = {} if batch is None or not takes_batch(self.function) else {PARAMETER: batch}
        with imports_from(path):
            called = f"{self.entry}({f'{PARAMETER}={batch}' if asked else ''})"
            made = guarded(path, f"{called} fails", partial(self.function, **asked))
        iteration = _checked(made, place)
        if self.variant is not None:
            iteration = self.variant.of(iteration)
        if batch is None or asked:
            return iteration
        try:
            return with_batch(iteration, batch)
        except InputError as error:
            raise InputError(f"{place}: {error}") from None

    def epoch(self, example: Inputs) -> Iterator[Inputs]:
        """Yield the batches of `data()`, or the example alone.

        If `build` returns targets each is a pair of inputs and targets; else it is the inputs: a tensor, a
        tuple, a dict. Raises InputError, one line.
        """
        if self.data is None:
            yield example
            return
        path = Path(self.path)
        batches = guarded(path, "data() fails", lambda: iter(cast(Any, self.data)()))
        # With a default: StopIteration would count as a failure of the user's code.
        while (made := guarded(path, "data() fails", lambda: next(batches, _END))) is not _END:
            yield guarded(path, "data() fails", partial(_as_batch, made, isinstance(example, Labelled)))


def path_and_entry(text: str) -> tuple[str, str]:
    """Return the path and the function's name of `model.py` or `model.py:entry`."""
    before, colon, after = text.rpartition(":")
    return (before, after) if colon and after.isidentifier() else (text, DEFAULT_ENTRY)


def load_model_file(text: str) -> ModelFile:
    """Run the file of `model.py` or `model.py:entry`. Raises InputError, one line."""
    path, entry = path_and_entry(text)
    with imports_from(Path(path)):
        module = _run(Path(path))
    data = getattr(module, "data", None)
    return ModelFile(path, entry, _entry(path, entry, module), cast(Any, data) if callable(data) else None)


def model_file_of(function: Callable[..., Any]) -> ModelFile:
    """Return a function of the caller's as the `build` of a model file. Raises InputError."""
    name = getattr(function, "__name__", type(function).__name__)
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: must be callable without arguments: {error}") from None
    path = getattr(getattr(function, "__code__", None), "co_filename", name)
    return ModelFile(path, name.strip("<>"), function)


def _as_batch(made: Any, labelled: bool) -> Inputs:
    if not labelled:
        return parse_inputs(made)
    if not isinstance(made, tuple | list) or len(made) != 2:
        raise InputError("data() must give pairs of inputs and targets, as build() returns targets")
    return with_targets(parse_inputs(made[0]), made[1])


def _run(path: Path) -> ModuleType:
    if (size := regular_size(path)) > _MOST_BYTES:
        raise InputError(f"{path}: {size} bytes are more than the {_MOST_BYTES} of a Python file that is run")
    name = f"memplan_model_{path.stem}"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path}: not a Python file")
    module, loader = module_from_spec(spec), spec.loader
    sys.modules[name] = module  # before it runs: dataclasses and pickle look it up there
    guarded(path, "the file can't be run", lambda: loader.exec_module(module))
    return module


def _entry(path: str, entry: str, module: ModuleType) -> Callable[..., Any]:
    build = getattr(module, entry, None)
    if not callable(build):
        own = [
            name
            for name, thing in vars(module).items()
            if inspect.isfunction(thing) and thing.__module__ == module.__name__ and name[0] != "_"
        ]
        defined = f"it defines {', '.join(own)}" if own else "it defines no function"
        # Of another name it is a slip, and the functions that are there say enough.
        wanted = "; write one that returns model and example batch (docs/models.md)"
        more = wanted if entry == DEFAULT_ENTRY else ""
        raise InputError(f"{path}: no function {entry}(): {defined}{more}")
    try:
        inspect.signature(build).bind()
    except TypeError as error:
        raise InputError(f"{path}:{entry}: must be callable without arguments: {error}") from None
    return build


def _checked(made: Any, place: str) -> Iteration:
    form = "(module, example_inputs), (module, example_inputs, loss_fn) or (…, loss_fn, targets)"
    if not isinstance(made, tuple) or len(made) not in (2, 3, 4):
        what = f"{len(made)} values" if isinstance(made, tuple) else f"a {type(made).__name__}"
        raise InputError(f"{place}: returns {what}, not {form}")
    module, inputs, loss_fn, targets = (*made, None, None)[:4]
    if not isinstance(module, nn.Module):
        raise InputError(f"{place}: the first value is a {type(module).__name__}, not a torch.nn.Module")
    if isinstance(inputs, Mapping) and all(isinstance(name, str) for name in inputs):
        inputs = dict(inputs)
    elif not isinstance(inputs, tuple):
        raise InputError(
            f"{place}: example_inputs is a {type(inputs).__name__}, not a tuple (of positional arguments) "
            "or a dict (of named ones)"
        )
    if loss_fn is not None and not callable(loss_fn):
        raise InputError(f"{place}: loss_fn is a {type(loss_fn).__name__}, not a function")
    if targets is not None and loss_fn is None:
        raise InputError(f"{place}: there are targets, but no loss_fn to take them")
    return Iteration(module, with_targets(inputs, targets), cast(LossFunction | None, loss_fn))


def guarded(path: Path, what: str, run: Callable[[], T]) -> T:
    """Run the user's code; whatever it raises becomes one line with the place in their file."""
    try:
        return run()
    except MemplanError:
        raise
    except SyntaxError as error:
        raise InputError(f"{path}:{error.lineno}: {error.msg}") from error
    except ModuleNotFoundError as error:
        if (name := _missing(error)) is None:
            raise _failed(path, what, error) from error
        raise MissingPackageError(f"{path}: needs the package {name}, not installed here") from error
    except (Exception, SystemExit) as error:  # a script may call sys.exit
        raise _failed(path, what, error) from error


def _missing(error: BaseException | None) -> str | None:
    """Return the package that was not found.

    Libraries that import late raise errors without its name, from those that have it.
    """
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and error.name is not None:
            return error.name
        error = error.__cause__ or error.__context__
    return None


def _failed(path: Path, what: str, error: BaseException) -> InputError:
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).resolve() == path.resolve()
    ]
    place = f"{path}:{lines[-1]}" if lines else str(path)
    text = " ".join(str(error).split())[:300]
    return InputError(f"{place}: {what}: {type(error).__name__}: {text}")


@contextmanager
def imports_from(path: Path) -> Generator[None]:
    """Put the file's folder first on the import path, as for a script; afterwards last."""
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        if folder not in sys.path:
            sys.path.append(folder)  # not removed: the model's code may import later
