"""What commands print and write, whatever the command.

Doors: account, curve, figures, output, race_log, written.
"""
