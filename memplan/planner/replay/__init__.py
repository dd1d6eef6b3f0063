"""The simulator's rules, compiled: the period of one iteration's rows, for searches that ask thousands of
times.

An iteration is read into rows (rows.py), in replay.py from the steps of a schedule. walk.py goes through them
until the state after an iteration repeats, and writes down which row waits for which. clock.py computes the
times from that, and from what solvers/offloading/cycles has walked by itself. So time follows from memory as
in planner/simulator, which has the last word.

runs.py does the same for sequences of runs without transfers. ranking.py orders known schedules by time.

Public modules: clock, instance, ranking, rows, runs.
"""
