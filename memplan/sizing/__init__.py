"""Will it fit: which batch fits a GPU, or each of several ranks, how, and how fast.

subject.py          the model, and the options of its training loop
loops.py            the graphs of each batch: a plan's, and PyTorch's own loop
search.py           begin here: the batches that are tried on one GPU
ranks.py            the same on ranks of sharded training
trial.py            one batch within one budget; searches for the largest batch, the smallest budget
alternatives.py     what people do next with a batch
breakdown.py        the bytes of the peak by kind
estimate_range.py   low and high figures of an estimate
ordinary_loop.py    the loop without a plan: updates after backward, all at once
accumulation.py     several micro-batches per update
eight_bit.py        optimizer states of 8 bits
price.py            prices of GPUs
tables.py           the results as tables
words.py            sizes and names of GPUs in words
"""
