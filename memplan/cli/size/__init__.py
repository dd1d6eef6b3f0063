"""`plan size`: which batch fits a GPU, how, and how fast.

command.py        begin here: the command
loop_options.py   what the user says of the loop
screen.py         the lines that are printed
"""

from .command import size as size
