"""From what is offloaded when to a schedule with its transfers.

    residency.py            begin here: what a solver decides
    lifetimes.py            when each tensor is needed, and where
    copies_over_time.py     which copies exist when, in two neighbouring memories
    tensor_transfers.py     the transfers and deletes of one tensor as rows
    assembly.py             prefetches placed and all steps merged, compiled: also for the search of `joint`
    prefetch_placement.py   the fastest schedule of a residency
    from_schedule.py        the reverse: the residency of a schedule

Public modules: assembly, from_schedule, lifetimes, prefetch_placement, residency, tensor_transfers.
"""
