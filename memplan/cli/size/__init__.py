"""`plan size`: which batch fits a GPU, how, and how fast.

size.py       begin here: the command
model.py      the model, at each batch
loops.py      the graphs of each batch: a plan's, and PyTorch's own loop
search.py     the batches that are tried
alternatives.py  what people do next with a batch
report.py     what is printed
loop_options.py, price.py   what the user says of the loop and of prices
tables.py     several GPUs, several batches
words.py      the words of the first line
"""

from .command import size as size
