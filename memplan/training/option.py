"""Options of a function, each declared once: its name and type, how a value is read, what it means.

    class Options(OptionsBase):
        budget: Budget = option(converter=parse_budget, text="Bytes, …")
        max_plans: int = option(converter=parse_count, text="Shapes …", default=8)

    @takes(Options, example='budget="12GB"')
    def optimize(module, inputs, options: Options): ...

    optimize(module, inputs, budget="12GB")

Type checkers see the keywords with the types that the converters read; `help`, editors and the documentation
see one signature and one list of arguments.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from textwrap import fill
from types import MappingProxyType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, dataclass_transform, get_type_hints, overload

from ..graphs.errors import InputError

Given = TypeVar("Given")
Read = TypeVar("Read")
Made = TypeVar("Made")
Result = TypeVar("Result")
First = TypeVar("First")
Second = TypeVar("Second")
Keywords = ParamSpec("Keywords")

_LONGEST = 60
"""Characters of a value that a message repeats."""


class UnfitError(Exception):
    """A value that an option does not take; the message says what to give instead."""


@overload
def option(*, converter: Callable[[Given], Read], text: str) -> Read: ...
@overload
def option(*, converter: Callable[[Given], Read], text: str, default: Given) -> Read: ...
def option(*, converter: Callable[[Any], Any], text: str, default: Any = MISSING) -> Any:
    """Declare one option.

    converter: reads a value that was given, as the options then hold it. Raises UnfitError, or an InputError
        whose message stands on its own.
    text: sentences for the list of arguments, with units.
    default: read like a value that was given; without one the option is required.
    """
    return field(default=default, metadata={"converter": converter, "text": text})


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(option,))
class OptionsBase:
    """A frozen dataclass, by keywords alone, whose values are read by the converters when it is made."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True, repr=False, eq=False)(cls)

    def __post_init__(self) -> None:
        own: Any = self
        for each in fields(own):
            object.__setattr__(self, each.name, _read(each, getattr(self, each.name)))

    def extended(self, kind: type[Made], **given: Any) -> Made:
        """Make options of a class below this one, of the values here and of those given."""
        made: Any = object.__new__(kind)
        for each in fields(made):
            own = each.name in vars(self)  # has been read: converters do not take what they have returned
            value = vars(self)[each.name] if own else _read(each, given.get(each.name, each.default))
            object.__setattr__(made, each.name, value)
        return made

    def replaced(self, **given: Any) -> Self:
        """Return the same options with the values given, which are read."""
        made: Any = object.__new__(type(self))
        for each in fields(made):
            value = _read(each, given[each.name]) if each.name in given else vars(self)[each.name]
            object.__setattr__(made, each.name, value)
        return made


def _read(each: Field[Any], value: Any) -> Any:
    try:
        return each.metadata["converter"](value)
    except UnfitError as error:
        raise InputError(f"{each.name}={_shown(value)}: {error}") from None


@overload
def takes(
    options: Callable[Keywords, Made], *, example: str
) -> Callable[
    [Callable[[First, Second, Made], Result]], Callable[Concatenate[First, Second, Keywords], Result]
]: ...
@overload
def takes(
    options: Callable[Keywords, Made], *, example: str, first: str, elsewhere: Mapping[str, str] = ...
) -> Callable[[Callable[[First, Made], Result]], Callable[Concatenate[First, Keywords], Result]]: ...
def takes(
    options: Any, *, example: str, first: str = "", elsewhere: Mapping[str, str] = MappingProxyType({})
) -> Any:
    """Let a function of positional arguments and options be called with the options as keywords.

    Its docstring and signature list them. Raises TypeError for an unknown or a missing keyword.
    example: options as a call has them, for the message about arguments by position.
    first: the name of the positional argument, if the function has only one.
    elsewhere: by names of keywords that other functions take, what to do instead.
    """
    del first  # tells type checkers how many there are

    def decorator(function: Callable[..., Any]) -> Callable[..., Any]:
        own = list(inspect.signature(function).parameters.values())[:-1]
        keywords = [_parameter(each) for each in fields(options)]
        known = [each.name for each in keywords]
        required = [each for each in keywords if each.default is inspect.Parameter.empty]

        @wraps(function)
        def with_keywords(*positional: Any, **given: Any) -> Any:
            for name in (name for name in given if name not in known and name not in [x.name for x in own]):
                close = get_close_matches(name, known, n=1)
                hint = f". Did you mean {close[0]!r}?" if close else ""
                hint = f": {elsewhere[name]}" if name in elsewhere else hint
                raise TypeError(f"{function.__name__}() has no argument {name!r}{hint}")
            if len(positional) > len(own):
                names = ", ".join(each.name for each in own)
                raise InputError(
                    f"{function.__name__} takes {names} by position and the rest by name: "
                    f"{function.__name__}({names}, {example})"
                )
            if missing := [each.name for each in required if each.name not in given]:
                raise TypeError(f"{function.__name__}() is missing the argument {missing[0]!r}")
            apart = {each.name: given.pop(each.name) for each in own if each.name in given}
            return function(*positional, **apart, options=options(**given))

        with_keywords.__signature__ = inspect.Signature([*own, *keywords])  # pyright: ignore
        with_keywords.__doc__ = _with_arguments(inspect.getdoc(function) or "", options)
        return with_keywords

    return decorator


def _parameter(each: Field[Any]) -> inspect.Parameter:
    default = inspect.Parameter.empty if each.default is MISSING else each.default
    return inspect.Parameter(
        each.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=_given_type(each)
    )


def _given_type(each: Field[Any]) -> Any:
    """Return the type that an option accepts: that of the converter's parameter."""
    converter = each.metadata["converter"]
    hints = get_type_hints(converter)
    return next((hint for name, hint in hints.items() if name != "return"), Any)


def _with_arguments(text: str, options: type) -> str:
    """Insert the options at the end of the docstring's `Args:`, which stands before `Returns:`."""
    lines = "\n".join(_argument_lines(options))
    head, mark, rest = text.partition("\nReturns:")
    return f"{head.rstrip()}\n{lines}\n{mark}{rest}"


def _argument_lines(options: type) -> Iterator[str]:
    for each in fields(options):
        kind = re.sub(r"\b[\w.]+\.(?=\w)", "", inspect.formatannotation(_given_type(each)))
        default = "required" if each.default is MISSING else f"default {each.default!r}"
        text = f"{each.name} ({kind}, {default}): {each.metadata['text']}"
        yield fill(text, 106, initial_indent="    ", subsequent_indent="        ", break_on_hyphens=False)


def _shown(value: Any) -> str:
    """Return a value's text if it is short and says more than its class, else its class."""
    if isinstance(value, Path):
        return str(value)
    text = repr(value)
    if isinstance(value, type) or text.startswith("<") or "\n" in text:
        return f"a {f'class {value.__name__}' if isinstance(value, type) else type(value).__name__}"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
