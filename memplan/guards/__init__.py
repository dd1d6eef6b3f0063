"""Guards: the Python state that a plan assumes, read in a trace, put back after it, checked in iterations.

A plan has no Python in it. The code that was traced has read attributes, globals, closures and values of
tensors, and the plan holds what it has read. So there are three questions about the user's objects:

    is it still so   before each iteration: would the code read what it has read in the trace?
    put back         after a trace or a comparison: all is what it was before.
    what is it       at the next start of a program: is the verdict on this code still about this code?

Still so: `Guards` (guards.py) is asked before each iteration, and asks

    module_state     modules, hooks, modes and forms of tensors, compared in some µs per module
    holders          what parameters with tensors among their attributes say of these
    captured         tensors that the trace holds: whether they are there, unchanged
    reads/           what the user's code has read of Python's objects, as it reported during the trace

and before these values_used is asked what the code has read of the values of inputs and buffers.

Put back: `PythonState` (python_state.py) and, with tensors, optimizer and generators, `unchanged`.

    kept             one object as it was
    saved            one tensor as it was, bit by bit
    cached_results   results that functools' caches hold, which are cleared of tensors

What is it: `signature`. Refused from the start: `refused_modules`.

One walk finds the objects: `reachable` (torch_support/reach.py), from the module, its loss function and the
inputs. It goes along attributes and containers and, if asked, along what functions hold and name. It yields
each object once, with the shortest path to it. Nobody else recurses into containers and attributes, but for
`content`, whose parts have no identity. Neither calls a method of a user's class: it may load what it lists,
count its calls, or refuse (torch_support/raw.py).

An object is its parts by their keys, for all three questions. How two states of a part are compared differs,
and must:

    still so     by value, down to numbers and bytes (reads/contents.py). Another object with the same content
                 is as good: a configuration may be read from its file anew for each iteration.
    put back     by identity. An equal object is not enough: a list that others hold too must stay that list.
                 Only so can each object be put back by itself, whatever the others are.
    what is it   by text. The next process has other objects, at other addresses.

Still so does not walk, either. What the code has read is reported by the code itself (reads/reader.py): a
walk before each iteration would take milliseconds, and would find changes of what no iteration reads.
"""
