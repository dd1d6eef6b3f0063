"""Folders of this user's: caches, and temporary files.

Doors: cache, scratch.
"""
