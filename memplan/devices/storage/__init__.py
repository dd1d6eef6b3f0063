"""Memories and what is in them: storages, copies of them, the host, the disk, a journal.

Public modules: arena, blocks, checksum, copies, disk, host_access, host_buffers, journal, lazy_init,
offloaded, shortage.
"""
