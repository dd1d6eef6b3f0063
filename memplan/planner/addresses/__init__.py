"""Addresses of copies: offsets in one arena for each memory (dynamic storage allocation).

schedule ──lifetimes──▶ arcs of the cycle ──first fit, then search──▶ Layout: an offset for each arc

Public modules: caching_allocator, layout, lifetimes, pinned, room.
"""
