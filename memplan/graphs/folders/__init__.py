"""Folders of this user's: caches, and temporary files.

Public modules: cache, private, scratch, sources.
"""
