"""The period of a schedule that moves weights, compiled: for offload-greedy, greedy-star and l2l.

An iteration of training is a cycle of runs; an order says when in it the copies run; `period` returns the
seconds of an iteration in the steady state, or ∞ if the order breaks a rule or the limit. Assumed: every
operation runs once, in traced order, on the device; only persistent tensors move, whole, on two links of
fixed rates. The symbols of the paper (Beaumont et al. 2022, hal-03580767, section 3) are in cycle.py.

    cycle.py    begin here: uses, versions and offload intervals of weights, read from any graph
    facts.py    the same as arrays, and scratch arrays
    replay.py   what an order is, and its period by the simulator's rules; planner/replay has the clock
    steps.py    from an order to the schedule that the simulator validates

A replay is linear in the order times the iterations played (40 at most).

Public modules: cycle, facts, replay, steps.
"""
