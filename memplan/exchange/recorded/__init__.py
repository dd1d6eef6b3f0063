"""Recordings of memory that PyTorch and XLA make: what was allocated, when, by which code; who owns the peak.

Public modules: owners, read, recording.

snapshot.pickle ──snapshots.py──▶ Recording ◀──profiles.py── trace.json
                                      ▲
   buffer-assignment.txt ──xla.py────┘  program_text.py: the instructions' code
Recording ──owners.py──▶ owners of the peak, by kind and by line

recording.py    begin here: blocks, and the moment of the peak
read.py         which of them a file is
"""
