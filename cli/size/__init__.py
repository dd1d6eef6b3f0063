"""`plan size`: which batch fits a GPU, how, and how fast.

size.py       begin here: the command
model.py      the model, at each batch
search.py     the batches that are tried
report.py     what is printed
tables.py     several GPUs, several batches
"""

from .command import size as size
