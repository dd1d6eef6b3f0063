"""The Python interface: from a module and its batches to a step that trains within a budget.

optimize.py   memplan.optimize; its arguments in options.py, read by option.py, and option_rules.py
plan.py       one shape: trace, measure, solve, compare
plan_cache.py       plans on disk
unplanned_optimizer.py    optimizers that run after the plan; loop_memory.py, what a loop has outside of plans
plans.py      one plan per shape; buckets.py, batches padded to a few lengths
deferred.py   a step that is planned by its first batch; function.py, a loss that is a function
inference.py  forward alone, without training
step.py       the step that the loop calls, for batches of any shape; evaluation.py, forward alone
loss.py       its loss, whose backward hands the gradients over
module.py     memplan.optimize_module: a module in a graph of the caller's
trainer.py    memplan.optimize_trainer: transformers' Trainer; trainer_loss.py; sharded_trainer.py, with FSDP2
weights.py    a model on meta, its weights in files
checkpoint.py a run on disk, to resume from; in tensor_file.py, with random_numbers.py; holding.py, who has
              a tensor, whole or in shares
loop.py       a loop for users without their own; batches.py: the position in its data
progress.py   progress events; report.py: predicted and measured; retry.py: out of memory in spite of a plan
"""
