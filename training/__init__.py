"""From a module and its batches to a step that trains within a budget: the Python interface.

optimize.py   memplan.optimize: the arguments
plan.py       one shape: trace, measure, solve, compare
kept.py       plans on disk
outside.py    optimizers that no plan has
plans.py      one for each shape; buckets.py, batches padded to a few
step.py       what the loop calls, for batches of any shape; evaluation.py, forward alone
loss.py       its loss, whose backward hands the gradients over
trainer.py    memplan.optimize_trainer: transformers' Trainer
weights.py    a model on meta, its weights in files
checkpoint.py a run on disk, to go on from; in tensor_file.py, with random_numbers.py
loop.py       a loop for those who write none; batches.py: where it was in its data
progress.py   what it is at; report.py: predicted and measured; retry.py: out of memory in spite of a plan
"""

if __name__ != "memplan.training":  # found from the repository's root: a second copy of each class
    raise ImportError("import memplan.training, not training")
