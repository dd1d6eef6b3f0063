"""Reports of readers: loads, stores and uses of values, each recorded with its object."""

from __future__ import annotations

import sys
from types import (
    BuiltinFunctionType,
    FunctionType,
    MethodType,
    ModuleType,
)
from typing import Any

from torch import Tensor, nn

from ...torch_support.raw import MISSING, class_entry, is_a, name_of, own_attributes
from ...torch_support.reach import container_of, entries_of, is_of_library, is_of_user_class
from ...torch_support.torch_fakes import FakeTensor
from ...torch_support.torch_modules import MODULE_REGISTERS
from .contents import is_plain
from .following import Following
from .forbidden import refuse_iterator
from .nodes import quietly
from .placeholders import Identity
from .predicates import (
    CODE_OF_ANY,
    OF_CONTENT,
    SKIPPED,
    entries,
    full_name,
    is_hashable,
    is_of_python_alone,
    is_ours,
    is_users_function,
    of_its_bases,
    of_super,
)
from .reads import (
    Made,
    of_attribute,
    of_bases,
    of_closure,
    of_content,
    of_entry,
    of_instance,
    of_item,
    of_length,
    of_loose_content,
    of_loose_whole,
    of_made,
    of_membership,
    of_whole,
)


class Reports(Following):
    """Recording of the reports of readers (reader.py)."""

    @quietly
    def read_name(self, function: FunctionType, name: str, value: Any, *, free: bool) -> None:
        self.see(value)
        node = self._node(function, (function.__qualname__,))
        if free:
            if name in function.__code__.co_freevars and name != "__class__":
                self._record(node, of_closure, name, value)
            return
        there = function.__globals__
        if name in there:
            self._record(self._globals(there), of_entry, name, value)

    @quietly
    def wrote_name(self, function: FunctionType, name: str, *, free: bool, counts: bool) -> None:
        node = self._node(function, (function.__qualname__,)) if free else self._globals(function.__globals__)
        self._wrote(node, name, counts=counts)

    @quietly
    def imported(self, function: FunctionType, module: str, level: int, name: str, value: Any) -> None:
        if (found := sys.modules.get(full_name(function, module, level))) is not None:
            self.read_attribute(found, name, value)

    @quietly
    def loaded(self, function: FunctionType, module: str, level: int) -> None:
        """Record which module an import has found, if it is not a library's; and whether it has found any."""
        full = full_name(function, module, level)
        node = self._node(sys.modules, ("sys.modules",))
        if (found := sys.modules.get(full)) is None:
            self._record(node, of_membership, full, False)
            return
        file = vars(found).get("__file__")
        if not (full.partition(".")[0] in sys.stdlib_module_names or (file and is_of_library(file))):
            self.see(found)
            self._record(node, of_entry, full, found)

    @quietly
    def read_attribute(self, thing: Any, name: str, value: Any) -> None:
        if is_a(thing, Tensor):
            self._read_of_tensor(thing, name, value)
            return
        if is_a(thing, SKIPPED) and not is_of_user_class(type(thing)):
            return
        self.see(value)
        if type(thing) is super:
            where: Any = thing
            kind = type(where.__self__)
            self._record(self._node(kind, (name_of(kind),)), of_super, (where.__thisclass__, name))
            return
        node = self._outside(thing)
        if name == "__class__" or (is_a(value, BuiltinFunctionType) and value.__self__ is thing):
            return
        if node is None:
            kind = type(thing)
            if is_of_user_class(kind) and name not in (own_attributes(thing) or ()):
                self._record(self._node(kind, (name_of(kind),)), of_its_bases, name)
            return
        if is_a(thing, ModuleType):
            file = vars(thing).get("__file__")
            if file is None or is_of_library(file) or is_ours(thing.__name__):
                held = callable(value) or container_of(value) is not None
                if is_plain(value) or (held and vars(thing).get(name) is value):
                    self._record(node, of_attribute, name)  # a switch of the library's, its function or table
                else:
                    self._node_of(value, (*node.path, name))
                return
            self._record(node, of_instance, name, vars(thing).get(name, MISSING))
            return
        if is_a(thing, nn.Module) and (name in MODULE_REGISTERS or name not in vars(thing)):
            for register in MODULE_REGISTERS:
                if name in vars(thing)[register]:
                    self._node_of(vars(thing)[register][name], (*node.path, name))
                    return
        self._record(node, *self._source(thing, name))

    def _read_of_tensor(self, tensor: Any, name: str, value: Any) -> None:
        """Record a read of an attribute that the user has put on a tensor, or of a state outside its
        content.
        """
        if callable(value) and callable(entry := of_bases(Tensor, name)):
            self._record(self._node(Tensor, ("torch.Tensor",)), of_its_bases, name, entry)
        if is_a(tensor, FakeTensor) or self.stand_ins.is_own(tensor):
            if (own := self.stand_ins.read(tensor, name)) is not None:
                self._record(self._node(own[0], ("module", *own[1].split("."))), of_attribute, name)
            return
        node = self._outside(tensor)
        state = is_plain(value) or value is None or not hasattr(Tensor, name) or name == "grad"
        if node is not None and name not in OF_CONTENT and state:
            self._record(node, of_attribute, name)

    @quietly
    def read_item(self, thing: Any, key: Any, value: Any, *, made: bool = False) -> None:
        key = self._as_key(thing, key)
        if is_a(thing, (*SKIPPED, Tensor, nn.Module)):
            return
        self.see(value)
        node = self._outside(thing)
        if node is None:
            return
        if is_a(key, slice):
            self.read_whole(thing)
        elif not is_hashable(key):
            self.read_whole(thing, deep=True)
        elif is_a(thing, dict) and class_entry(type(thing), "__getitem__") is dict.__getitem__:
            if made:
                self._record(node, of_made, Made(key, value))
                self._record(node, of_attribute, "default_factory")
            else:
                self._record(node, of_entry, key)
        elif not is_users_function(of_bases(type(thing), "__getitem__")):
            self._record(node, of_item, key, value)

    @quietly
    def read_length(self, thing: Any) -> None:
        """Record a read of whether there is something in the thing."""
        if is_a(thing, (*SKIPPED, Tensor, nn.Module)):
            return
        if is_users_function(class_entry(type(thing), "__bool__")):
            return  # which Python asks first, and which reports what it reads
        sized = class_entry(type(thing), "__len__") is not MISSING
        if sized and (node := self._outside(thing)) is not None:
            self._record(node, of_length, None, of_length(thing, None))
        else:
            self.read_whole(thing)

    @quietly
    def read_membership(self, thing: Any, key: Any, value: bool) -> None:
        if is_a(thing, (*SKIPPED, Tensor, nn.Module)):
            return
        refuse_iterator(self._outside(thing), thing)
        key = self._as_key(thing, key)
        if (node := self._outside(thing)) is not None:
            if is_users_function(of_bases(type(thing), "__contains__")):
                return
            if is_hashable(key):
                self._record(node, of_membership, key, value)
            else:
                self.read_whole(thing)

    @quietly
    def read_whole(self, thing: Any, *, deep: bool = False, depth: int = 0) -> None:
        if is_a(thing, SKIPPED):
            return
        if is_a(thing, Tensor) or (is_a(thing, CODE_OF_ANY) and not is_a(thing, MethodType)):
            self.see(thing)
            self._node_of_tensor(thing)
            if is_a(thing, BuiltinFunctionType) and not is_a(thing.__self__, ModuleType):
                self.read_whole(thing.__self__, deep=True)  # a dict's `get`, as a key to sort by
            return
        self.see(thing)
        node = self._outside(thing)
        if node is None:
            base = container_of(thing)
            if depth < 2 and base is not None:
                for _key, each in entries_of(thing, base) or ():
                    self.read_whole(each, deep=deep, depth=depth + 1)
            return
        if deep or not depth:  # to unpack a tuple takes nothing from an iterator in it
            refuse_iterator(node, thing)
        if not deep and is_of_python_alone(type(thing)):
            return  # its methods report what they read
        self._note_large(node, thing)
        fetch = of_whole if deep else of_content
        self._record(node, fetch, None, fetch(thing, None))
        if (read := node.reads.get((fetch, None))) is not None and id(read) not in self._loose:
            self._loose[id(read)] = (of_loose_whole if deep else of_loose_content)(thing, None)
        for each in entries(thing):
            self._node_of(each, (*node.path, ""))
            self.see(each)

    def read_identity(self, thing: Any) -> Any:
        """Note that no other object is as good, and return the object to compare instead."""
        if (node := self._nodes.get(id(thing))) is not None:
            node.itself = True
        return self.stand_ins.identity(thing)

    @quietly
    def wrote(self, thing: Any, key: Any, *, attribute: bool, counts: bool) -> None:
        if is_a(thing, Tensor) and attribute:
            if (own := self.stand_ins.wrote(thing, key)) is not None:
                self._wrote(self._node(own[0], ("module", *own[1].split("."))), key, counts=counts)
            return
        if is_a(thing, (*SKIPPED, Tensor)) or not is_hashable(key):
            return
        if (node := self._outside(thing)) is not None:
            self._wrote(node, key, counts=counts)

    def _as_key(self, thing: Any, key: Any) -> Any:
        """Return a key for an object from outside: the identity of an input is another one in each
        iteration.
        """
        outside = is_a(key, Identity) and self._outside(thing) is not None
        return key.number() if outside else key
