"""A traced iteration as calls over storages, and the names in it.

Doors: program, call_text, canonical, fingerprint, free_names, graph, names, outputs.
"""
