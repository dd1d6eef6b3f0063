"""Output of all commands: rows, figures, tables, files, the log of a search.

Public modules: bounds, breakdown, curve, figures, live, log, output, output_files, race_log,
search_state.
"""
