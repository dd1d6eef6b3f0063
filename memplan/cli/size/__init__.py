"""`plan size`: which batch fits a GPU, how, and how fast.

command.py       begin here: the command
loop_options.py, price.py   what the user says of the loop and of prices
"""

from .command import size as size
