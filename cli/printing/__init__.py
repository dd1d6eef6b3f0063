"""Output of all commands: rows, figures, tables, files, the log of a search.

Doors: account, curve, figures, output, race_log, written.
"""
