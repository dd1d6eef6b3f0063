"""`plan size`: which batch fits a GPU, how, and how fast.

command.py       begin here: the command
report.py, ranks_report.py   what is printed
loop_options.py  what the user says of the loop
"""

from .command import size as size
