"""A schedule as a trace for https://ui.perfetto.dev, together with measured times.

In the order to read:

    events.py       what a trace has: groups of tracks with slices, counters
    planned.py      a schedule's: its queues, the bytes in each memory
    measured.py     what plan run has measured, as a second group
    readers.py      which steps read what a transfer has brought: the arrows of a trace
    perfetto.py     Perfetto's own format
    chrome.py       the older one, JSON

All is linear in steps and reads.

Public modules: chrome, events, measured, perfetto, planned.
"""
