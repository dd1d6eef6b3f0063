"""A trace's reads of Python's objects, recorded while it runs.

The code of the user's functions is replaced, for the time of the trace, by code that reports what it reads:

    codes.py, rewrite.py    the code; scopes.py: the names that its functions bind
    reader.py               the reader in it that reports
    reports.py, calls.py    what is reported: loads and uses of values, calls
    following.py            which functions run in that form
    nodes.py                the objects that were there, and the reads of each
    youngest.py             which objects are new
    carried.py              state that the iteration reads and then changes
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from threading import enumerate as enumerate_threads
from threading import get_ident

from ...torch_support.unsupported import warn_user
from .calls import Calls
from .carried import Counter, StateError, carried, refusal
from .contents import content
from .getters import of_call
from .outside import outside_watched
from .placeholders import Placeholders
from .reads import (
    Fetch,
    Node,
    Read,
    Reads,
    all_reads,
    of_content,
    of_loose_content,
    of_loose_whole,
    of_whole,
    same,
)
from .youngest import Youngest


class Recording(Calls):
    """The reads of one trace: `listening` surrounds it, `reads` gives those to guard, `close` ends it."""

    @contextmanager
    def listening(self) -> Generator[None]:
        """Make the user's functions report what they read; afterwards they are as before."""
        with self._youngest.watched():
            self._thread, self._others_threads = get_ident(), {*enumerate_threads()}
            self._listening = True
            try:
                self._follow_roots()
                with outside_watched(lambda: self.listens, self.unwatched):
                    yield
            finally:
                self._listening = False
                for function, code in self._codes.items():
                    function.__code__ = code

    def _follow_roots(self) -> None:
        self._node(self._module, ("module",))
        for path, part in self._module.named_modules():
            self._node(part, ("module", *(path.split(".") if path else ())))
        for part in self._module.modules():
            self._see_module(part)
        for name, thing in self._others.items():
            self._node(thing, (name,))
            self.see(thing)
        self._by_names()  # code without a source reports nothing: what it leads to is followed beforehand

    def note_carried(self) -> None:
        """Find what the code has read and the iteration then changed, before that is put back.

        Raises TraceError if a container was read after it had grown, unless the code runs once more after
        each planned iteration.
        """
        for node, read in all_reads(self._nodes.values()):
            now = read.fetch(node.thing, read.key)
            if now is read.value or same(now, read.value):
                continue
            if self._is_of_libraries(node, read):
                continue
            # By what the iteration itself has done: no iteration finds it as it was before the first one.
            self._own_state.add(id(read))
            if read.fetch is of_call and (not read.key.method or isinstance(now, bool)):
                continue  # it was inside of a `with` that switches it
            found = carried(node, read, now)
            if self._runs_again and not read.backward:
                self.counters.append(Counter(node.thing, read.key, found.refusal))
            else:
                self.carried.append(found)
        for node, (before, place) in self._grown.items():
            if not self._runs_again and place and content(node.thing, deep=False) != before:
                raise StateError(refusal(node.path, before, content(node.thing, deep=False), place))

    def _is_of_libraries(self, node: Node, read: Read) -> bool:
        """Tell whether all that the iteration has changed is what libraries keep in their objects, as caches.

        From here on these count by their identity.
        """
        loose = _LOOSE.get(read.fetch)
        if loose is None or (before := self._loose.get(id(read))) is None:
            return False
        if loose(node.thing, None) != before:
            return False
        del node.reads[read.fetch, read.key]
        node.reads[loose, None] = Read(loose, None, before, None, read.place)
        return True

    def reads(self) -> Reads:
        """Return the reads to check before iterations.

        Call it after what the iteration has changed was put back.
        """
        self._by_names()
        for text in dict.fromkeys(self.left):
            warn_user(f"{text}: it stays as it is")
        for text in dict.fromkeys(self.unwatched):
            warn_user(f"{text}, can't be watched: if it changes, plan the module anew")
        trace_real_layouts = {id(each.read): each.guard() for each in self.carried}
        for node, read in all_reads(self._nodes.values()):
            # A read that does not hold even now, when all is put back, would refuse every iteration: it reads
            # what is another object each time.
            if read.key in node.written or id(read) in self._own_state or not _holds(node, read):
                node.reads.pop((read.fetch, read.key), None)
            if (guard := trace_real_layouts.get(id(read))) is not None:
                node.reads[guard.fetch, guard.key] = guard
        roots = [node for node in self._nodes.values() if node.reads]
        tops = _tops(roots)
        batch = self.stand_ins.batch
        batch.forget()
        self.stand_ins = Placeholders(batch)
        return Reads(tops, batch)

    def close(self) -> None:
        """Let go of the objects that were there when the trace began: the error of a trace that failed may be
        kept for long, and with it this recording."""
        self._seen, self._youngest, self._nodes, self.carried = {}, Youngest(), {}, []


_LOOSE: dict[Fetch, Fetch] = {of_content: of_loose_content, of_whole: of_loose_whole}


def _tops(nodes: list[Node]) -> list[Node]:
    """Return nodes from which reads lead to all of them.

    Those that no read leads to were found by a call that reports nothing. Of a circle (a part that knows its
    module) that nothing else leads to, it is the first.
    """
    led = {id(read.node) for _node, read in all_reads(nodes) if read.node is not None}
    tops: list[Node] = []
    reached: set[int] = set()
    for node in (*(each for each in nodes if id(each) not in led), *nodes):
        if id(node) in reached:
            continue
        tops.append(node)
        following = [node]
        while following:
            if id(each := following.pop()) not in reached:
                reached.add(id(each))
                following += [read.node for read in each.reads.values() if read.node is not None]
    return tops


def _holds(node: Node, read: Read) -> bool:
    now = read.fetch(node.thing, read.key)
    return now is read.value or same(now, read.value)
