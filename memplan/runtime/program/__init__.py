"""A traced iteration as calls over storages, and the names in it.

Public modules: call_text, canonical, fingerprint, free_names, graph, names, outputs, program, reaching,
renumbered, structure.
"""
