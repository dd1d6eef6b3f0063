"""Memories and what is in them: storages, copies of them, the host, the disk, a journal.

Doors: arena, away, blocks, checksum, copies, disk, home, journal, places, unmade.
"""
