"""A program of many equal layers from that of the same model with a few of them.

Storages, values and operations come in the order of the trace. In it the layers' own follow each other, up
in forward and down in backward:

    parameters   embedding  0 1 2 3  head
    operations   embedding  0 1 2 3  head and its backward  3 2 1 0  embedding

Between layers 1 and 2 everything must be the same but for what it reads: that is of the layer before, of the
one after, of the own, or of the same place outside. Then as many layers more are put between them. What does
not come out equal raises DiffersError: such a model is traced whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from torch import nn

from ..graphs.graph import Phase
from ..program.program import Call, Operation, Program, Ref, Storage, Value
from ..torch_support.reach import hash_of_values
from .equal_layers import KEPT, EqualLayers, equal_layers, shortened
from .layer_calls import Forward, LayerCalls, repeats

FIRST, SECOND, LAST = 0, 1, KEPT - 1
_NEXT_TO_LAST = KEPT - 2


class DiffersError(Exception):
    """Error: the layers' programs are not equal."""


class _Item(NamedTuple):
    """What one node of the trace has made.

    operation: its index, None for a resident or view. call: of a view or operation.
    values, storages: new ones.
    """

    operation: int | None
    call: Call | None
    values: tuple[int, ...]
    storages: tuple[int, ...]


class _Place(NamedTuple):
    """Place of an item: in a layer of one pass over the layers, or outside (layer None).

    position: in that layer and pass; outside in the whole trace.
    """

    layer: int | None
    run: int
    position: int


Made = tuple[_Place, int]
"""A value, or a storage: the place of the item that made it, and the how manieth of the item's it is."""


_Model = tuple[type[nn.Module], str, bytes, tuple[tuple[str, int, int], ...]]

_verified: dict[_Model, bool] = {}
"""Whether a trace of a few layers gives a model's whole program."""


def by_some_layers(module: nn.Module, trace: Callable[[], Program], forward: Forward) -> Program:
    """Return the program that `trace` makes of the module, by a trace of a few of its equal layers if that
    gives the same.

    The first time that is verified: by forward's calls in all layers, or if these tell nothing, by a whole
    trace. Whatever the trace of a few layers raises, the whole is traced.

    forward: runs the module once without a trace.
    """
    layers = equal_layers(module)
    if not layers:
        return trace()
    lists = tuple((one.path, one.first, one.equal) for one in layers)
    # By a number the code may do something else in one layer: `if number == self.skipped`.
    model = type(module), repr(module), hash_of_values(module), lists
    if model not in _verified and not _calls_repeat(module, layers, forward):
        whole = trace()
        repeated = _by_some(module, layers, trace)
        _verified[model] = repeated is not None and _same(repeated, whole)
        return whole
    repeated = _by_some(module, layers, trace) if _verified.setdefault(model, True) else None
    return trace() if repeated is None else repeated


def _calls_repeat(module: nn.Module, layers: Sequence[EqualLayers], forward: Forward) -> bool:
    """Tell whether forward's calls show that all layers do what the kept ones do."""

    def calls(counts: Sequence[int]) -> LayerCalls:
        return forward(partial(LayerCalls, module, list(zip(layers, counts, strict=True))))

    try:
        every = calls([one.equal for one in layers])
        with shortened(module, layers):
            few = calls([KEPT] * len(layers))
        return repeats(few, every, layers)
    except Exception:  # what the calls don't tell, traces do
        return False


def _by_some(
    module: nn.Module, layers: Sequence[EqualLayers], trace: Callable[[], Program]
) -> Program | None:
    """Return the program made of a trace of a few layers; None if there is none."""
    try:
        with shortened(module, layers):
            program = trace()
        for one in layers:
            program = with_all_layers(program, one)
    except Exception:  # with fewer layers a model may fail in any way
        return None
    return program


def _same(one: Program, other: Program) -> bool:
    """Tell whether two programs are equal; operations get their final names later."""
    groups = ("parameters", "buffers", "inputs", "gradients")
    return (
        [each._replace(name="") for each in one.operations]
        == [each._replace(name="") for each in other.operations]
        and one.storages == other.storages
        and one.values == other.values
        and dict(one.views) == dict(other.views)
        and all([*getattr(one, group).items()] == [*getattr(other, group).items()] for group in groups)
        and one.loss == other.loss
    )


def with_all_layers(program: Program, layers: EqualLayers) -> Program:
    """Return the program of all layers. Raises DiffersError.

    program: of the model with KEPT of them, before its operations have their final names.
    """
    short = _Short(program, layers)
    return _Long(short, layers.equal).program()


class _Short:
    """The program that was traced, its items by place.

    items: outside and of the layers, in the order of the trace.
    places: of each.
    """

    def __init__(self, program: Program, layers: EqualLayers) -> None:
        self.program, self.layers = program, layers
        self._in_list = re.compile(rf"{re.escape(layers.path)}\.(\d+)(?!\w)")
        if program.generators or program.outputs:
            raise DiffersError
        self.names = {
            value: name for group in (program.parameters, program.buffers) for name, value in group.items()
        }
        self.items = list(_items(program))
        self.places = _places([self._label(item) for item in self.items])
        self.by_place = dict(zip(self.places, self.items, strict=True))
        self.value_made = _makers(self.items, self.places, lambda item: item.values)
        self.storage_made = _makers(self.items, self.places, lambda item: item.storages)

    def layer_of(self, path: str | None) -> int | None:
        """Return the number of the equal layer that a path is in."""
        found = None if path is None else self._in_list.match(path)
        number = -1 if found is None else int(found[1]) - self.layers.first
        return number if number >= 0 else None

    def moved(self, path: str, by: int) -> str:
        """Return a path that is in an equal layer for one so many layers further; another as it is."""
        if not by or self.layer_of(path) is None:
            return path
        return self._in_list.sub(lambda found: f"{self.layers.path}.{int(found[1]) + by}", path)

    def _label(self, item: _Item) -> tuple[str, int | None]:
        """Return the kind of pass that an item is of, and the layer that it says it is in."""
        program = self.program
        if item.operation is None:
            if item.call is not None or not (name := self.names.get(item.values[0])):
                return "", None
            return "parameter" if name in program.parameters else "buffer", self.layer_of(name)
        one = program.operations[item.operation]
        if one.mutates:
            return "change", self.layer_of(program.storages[one.mutates[0]].name)
        phase = Phase.FORWARD if one.phase == Phase.LOSS else one.phase
        return phase.word, self.layer_of(one.layer)


def _kind(item: _Item) -> tuple[bool, bool, int, int]:
    """Return whether an item is an operation or a call, and how much it makes."""
    return item.operation is None, item.call is None, len(item.values), len(item.storages)


def _items(program: Program) -> Iterator[_Item]:
    """Yield what the nodes of the trace have made, in their order."""
    value = storage = 0
    views = program.views

    def until(end: int) -> Iterator[_Item]:
        nonlocal value, storage
        while value < end:
            call = views.get(value)
            if call is not None:
                made = tuple(output for output in call.outputs if output is not None)
                yield _Item(None, call, made, ())
                value += len(made)
                continue
            new = program.values[value].storage == storage
            yield _Item(None, None, (value,), (storage,) if new else ())
            value, storage = value + 1, storage + new

    for index, one in enumerate(program.operations):
        made = tuple(output for output in one.call.outputs if output is not None)
        if made:
            yield from until(made[0])
        yield _Item(index, one.call, made, one.writes)
        value, storage = value + len(made), storage + len(one.writes)
        if one.writes and one.writes[-1] != storage - 1:
            raise DiffersError
    yield from until(len(program.values))
    if storage != len(program.storages):
        raise DiffersError


def _places(labels: Sequence[tuple[str, int | None]]) -> list[_Place]:
    """Return the items' places. Items between those of a layer, and before the next, are of that layer."""
    spans: dict[str, list[int]] = {}
    for index, (kind, layer) in enumerate(labels):
        if layer is not None:
            first, _last = spans.setdefault(kind, [index, index])
            spans[kind] = [first, index]
    places = [_Place(None, 0, index) for index in range(len(labels))]
    end = -1
    for run, (kind, (first, last)) in enumerate(sorted(spans.items(), key=lambda pair: pair[1])):
        if first <= end:
            raise DiffersError
        end, layer, position, order = last, -1, 0, list[int]()
        for index in range(first, last + 1):
            own, number = labels[index]
            if number is not None and (own != kind or number >= KEPT):
                raise DiffersError
            if number is not None and number != layer:
                layer, position = number, 0
                order.append(number)
            places[index] = _Place(layer, run, position)
            position += 1
        if order not in (list(range(KEPT)), list(range(KEPT))[::-1]):
            raise DiffersError
    return places


def _makers(
    items: Sequence[_Item], places: Sequence[_Place], made: Callable[[_Item], tuple[int, ...]]
) -> dict[int, Made]:
    return {
        index: (place, number)
        for item, place in zip(items, places, strict=True)
        for number, index in enumerate(made(item))
    }


@dataclass
class _Long:
    """The program of all layers, item by item.

    count: equal layers.
    """

    short: _Short
    count: int
    values: list[Value] = field(default_factory=list[Value])
    storages: list[Storage] = field(default_factory=list[Storage])
    operations: list[Operation] = field(default_factory=list[Operation])
    views: dict[int, Call] = field(default_factory=dict[int, Call])
    named: dict[str, dict[str, int]] = field(
        default_factory=lambda: {"parameters": dict[str, int](), "buffers": dict[str, int]()}
    )
    new_values: dict[Made, int] = field(default_factory=dict[Made, int])
    new_storages: dict[Made, int] = field(default_factory=dict[Made, int])

    def program(self) -> Program:
        short, program = self.short, self.short.program
        for source, layer in self._order():
            self._add(source, layer)
        outside = _Place(None, 0, 0)

        def value(index: int) -> int:
            return self.new_values[self._there(short.value_made[index], outside, outside)]

        return replace(
            program,
            storages=self.storages,
            values=self.values,
            operations=self.operations,
            views=self.views,
            parameters=self.named["parameters"],
            buffers=self.named["buffers"],
            inputs={name: value(index) for name, index in program.inputs.items()},
            constants={value(index): tensor for index, tensor in program.constants.items()},
            held={value(index): path for index, path in program.held.items()},
            loss=None if program.loss is None else value(program.loss),
            gradients=self._gradients(),
            used=None,
        )

    def _order(self) -> Iterator[tuple[_Place, int | None]]:
        """Yield the place of each item's source, and its layer among all, in the order of the whole trace."""
        waiting: dict[tuple[int, int], list[_Place]] = {}
        places = self.short.places
        for index, place in enumerate(places):
            if place.layer is None:
                yield place, None
                continue
            waiting.setdefault((place.run, place.layer), []).append(place)
            if index + 1 < len(places) and places[index + 1][:2] == place[:2]:
                continue
            layer, own = place.layer, waiting[place.run, place.layer]
            if layer in (FIRST, LAST):
                yield from ((one, self.number(layer)) for one in own)
            elif (place.run, SECOND) in waiting and (place.run, _NEXT_TO_LAST) in waiting:
                up = range(SECOND, self.count - 1)
                rising = (place.run, FIRST) in waiting
                inner = waiting[place.run, SECOND]
                if len(inner) != len(waiting[place.run, _NEXT_TO_LAST]):
                    raise DiffersError
                for number in up if rising else reversed(up):
                    yield from ((one, number) for one in inner)

    def number(self, layer: int) -> int:
        """Return the number among all of a layer of the short program: the last ones are counted from the
        end.
        """
        return layer if layer <= SECOND else layer + self.count - KEPT

    def _there(self, one: Made, place: _Place, twin_place: _Place, twin: Made | None = None) -> Made:
        """Return what an item refers to, for an item in the long program.

        one: what the item refers to in the short program. place: of the new item, its layer among all.
        twin: what the item refers to that is the same in the next layer, if it is in an inner layer.
        """
        made, number = one
        own = twin_place.layer
        if twin is None:
            if made.layer is None:
                return one
            if place.layer is None or own is None:
                if made.layer not in (FIRST, LAST):
                    raise DiffersError
            elif abs(made.layer - own) > 1 and made.layer not in (FIRST, LAST):
                raise DiffersError
            return made._replace(layer=self.number(made.layer)), number
        other, other_number = twin
        if number != other_number or made[1:] != other[1:]:
            raise DiffersError
        if made.layer is None or other.layer is None:
            if made != other:
                raise DiffersError
            return one
        if made.layer == other.layer:
            if made.layer not in (FIRST, LAST):
                raise DiffersError
            return made._replace(layer=self.number(made.layer)), number
        if other.layer != made.layer + 1 or place.layer is None or abs(made.layer - SECOND) > 1:
            raise DiffersError
        return made._replace(layer=place.layer + made.layer - SECOND), number

    def _add(self, source: _Place, layer: int | None) -> None:
        """Add the item of a place of the short program, as it is in a layer among all."""
        short = self.short
        program, item = short.program, short.by_place[source]
        new = source._replace(layer=layer)
        inner = layer is not None and layer not in (FIRST, self.count - 1)
        twin = short.by_place[source._replace(layer=_NEXT_TO_LAST)] if inner else None
        by = 0 if layer is None or source.layer is None else layer - source.layer

        def value(index: int, other: int | None) -> int:
            there = None if other is None else short.value_made[other]
            return self.new_values[self._there(short.value_made[index], new, source, there)]

        def storage(index: int, other: int | None) -> int:
            there = None if other is None else short.storage_made[other]
            return self.new_storages[self._there(short.storage_made[index], new, source, there)]

        if twin is not None and _kind(item) != _kind(twin):
            raise DiffersError
        for number, index in enumerate(item.storages):
            made = program.storages[index]
            moved = made._replace(
                name=short.moved(made.name, by), layer=made.layer and short.moved(made.layer, by)
            )
            if twin is not None:
                self._check_storage(made, program.storages[twin.storages[number]])
            self.new_storages[new, number] = len(self.storages)
            self.storages.append(moved)
        first = len(self.values)
        for number, index in enumerate(item.values):
            form = program.values[index]
            other = None if twin is None else program.values[twin.values[number]]
            if other is not None and form[1:] != other[1:]:
                raise DiffersError
            self.new_values[new, number] = len(self.values)
            self.values.append(form._replace(storage=storage(form.storage, other and other.storage)))
        if item.call is None:
            self._add_name(item.values[0], twin, first, by)
            return
        call = _call(item.call, None if twin is None else twin.call, value, first)
        if item.operation is None:
            self.views.update((output, call) for output in call.outputs if output is not None)
            return
        one = program.operations[item.operation]
        other = None if twin is None or twin.operation is None else program.operations[twin.operation]
        self.operations.append(
            self._operation(one, other, call=call, by=by, storage=storage, inner=twin is not None)
        )

    def _operation(
        self,
        one: Operation,
        other: Operation | None,
        call: Call,
        by: int,
        storage: Callable[[int, int | None], int],
        inner: bool,
    ) -> Operation:
        short = self.short
        if inner and (
            other is None
            or (one.phase, one.random) != (other.phase, other.random)
            or (one.layer and short.moved(one.layer, _NEXT_TO_LAST - SECOND)) != other.layer
        ):
            raise DiffersError

        def storages(group: str) -> tuple[int, ...]:
            own: tuple[int, ...] = getattr(one, group)
            others: Sequence[int | None] = getattr(other, group) if other else [None] * len(own)
            if len(own) != len(others):
                raise DiffersError
            return tuple(map(storage, own, others))

        moved = one.layer and short.moved(one.layer, by)
        return one._replace(
            name=short.moved(one.name, by),
            layer=moved,
            call=call,
            reads=storages("reads"),
            writes=storages("writes"),
            mutates=storages("mutates"),
        )

    def _check_storage(self, made: Storage, twin: Storage) -> None:
        layer = made.layer and self.short.moved(made.layer, _NEXT_TO_LAST - SECOND)
        if (made.bytes, made.kind, layer) != (twin.bytes, twin.kind, twin.layer):
            raise DiffersError

    def _add_name(self, value: int, twin: _Item | None, new: int, by: int) -> None:
        short = self.short
        name = short.names.get(value)
        if name is None:
            if twin is not None:
                raise DiffersError  # a constant of each layer
            return
        if twin is not None and short.names.get(twin.values[0]) != short.moved(name, _NEXT_TO_LAST - SECOND):
            raise DiffersError
        group = "parameters" if name in short.program.parameters else "buffers"
        self.named[group][short.moved(name, by)] = new

    def _gradients(self) -> Mapping[str, int]:
        """Return the gradients' values, in the order of the parameters."""
        short, gradients = self.short, self.short.program.gradients
        found: dict[str, int] = {}
        for name in self.named["parameters"]:
            layer = short.layer_of(name)
            if layer is None:
                source, own = name, _Place(None, 0, 0)
            else:
                inner = FIRST < layer < self.count - 1
                kept = FIRST if layer == FIRST else SECOND if inner else LAST
                source, own = short.moved(name, kept - layer), _Place(kept, 0, 0)
            if source not in gradients:
                continue
            made, number = short.value_made[gradients[source]]
            if (
                made.layer is not None
                and made.layer != own.layer
                and (own.layer is not None or made.layer not in (FIRST, LAST))
            ):
                raise DiffersError
            if made.layer is not None:
                where = self.number(made.layer) if own.layer is None else layer
                made = made._replace(layer=where)
            elif own.layer == SECOND:
                raise DiffersError
            found[name] = self.new_values[made, number]
        return found


def _call(call: Call, twin: Call | None, value: Callable[[int, int | None], int], first: int) -> Call:
    """Return a call with the values of the long program.

    twin: that of the next layer. first: index of its first result.
    """
    if twin is not None and (call.target, call.several) != (twin.target, twin.several):
        raise DiffersError
    if twin is not None and [each is None for each in call.outputs] != [
        each is None for each in twin.outputs
    ]:
        raise DiffersError
    made = iter(range(first, first + len(call.outputs)))
    return replace(
        call,
        arguments=_argument(call.arguments, twin and twin.arguments, value, twin is not None),
        keywords=_argument(call.keywords, twin and twin.keywords, value, twin is not None),
        outputs=tuple(None if output is None else next(made) for output in call.outputs),
    )


def _argument(one: Any, other: Any, value: Callable[[int, int | None], int], compared: bool) -> Any:
    if compared and type(one) is not type(other):
        raise DiffersError
    if isinstance(one, Ref):
        return Ref(value(one.value, other.value if compared else None))
    if isinstance(one, tuple | list):
        parts: Sequence[Any] = one
        others: Sequence[Any] = other if compared else [None] * len(parts)
        if len(parts) != len(others):
            raise DiffersError
        made = [_argument(*pair, value, compared) for pair in zip(parts, others, strict=True)]
        return made if isinstance(one, list) else tuple(made)
    if isinstance(one, Mapping):
        named: Mapping[str, Any] = one
        if compared and list(named) != list(other):
            raise DiffersError
        return {
            name: _argument(part, other[name] if compared else None, value, compared)
            for name, part in named.items()
        }
    if compared and not (one is other or one == other):
        raise DiffersError
    return one
