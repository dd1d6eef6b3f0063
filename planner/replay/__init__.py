"""The judge's rules, compiled: the period of one turn's rows, for searches that ask thousands of times.

A turn is read into rows (rows.py), in replay.py from the steps of a schedule; walk.py goes through them until
what a turn leaves repeats, and writes down which row waits for which; clock.py plays that, and what
solvers/offloading/cycles has walked by itself. So time follows from memory as in planner/simulator, which
keeps the last word.

runs.py does the same for sequences of runs without transfers.

Doors: clock, instance, rows, runs.
"""
