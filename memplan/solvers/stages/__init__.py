"""Schedules in traced order: where an operation may be recomputed, greedy eviction, a scan of runs.

Assumes that first runs keep the traced order. Nothing is optimal here: eviction.py finds a schedule within a
limit of bytes, dropping what is cheap to recompute for its size. Stages are those of Checkmate (Jain et al.,
MLSys 2020, arXiv:1910.02653), whose (t, k) is a `Slot`.

In the order to read:

    slots.py        what a stage is, and the last one in which an operation is of use; O(n²) slots
    scan.py         the bytes that a list of runs takes, and which of them make something needed
    eviction.py     a first schedule for any graph; its score and reference

Public modules: eviction, scan, slots.
"""
