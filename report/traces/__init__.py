"""A schedule as a trace for https://ui.perfetto.dev, and what was measured beside it.

In the order to read:

    events.py       what a trace has: groups of tracks with slices, counters
    planned.py      a schedule's: its queues, the bytes in each memory
    measured.py     what plan run has measured, beside it
    readers.py      which steps read what a transfer has brought: the arrows of a trace
    perfetto.py     Perfetto's own format
    chrome.py       the older one, JSON

All is linear in steps and reads.

Doors: chrome, events, measured, perfetto, planned.
"""
