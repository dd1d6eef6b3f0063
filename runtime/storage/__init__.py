"""Where bytes lie: storages, copies of them, the host, the disk, a journal.

Doors: away, blocks, copies, home, journal, places, unmade.
"""
