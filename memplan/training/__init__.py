"""The Python interface: from a module and its batches to a step that trains within a budget.

optimize.py   memplan.optimize; its arguments in options.py, read by option.py, and option_rules.py
plans         a plan for each shape of batches: made, kept, compared, replaced
step          what the loop calls
ranks         several processes that train one module
checkpoints   a run on disk, to go on from; weights in files
function.py   a loss that is a function
module.py     memplan.optimize_module: a module in a graph of the caller's
trainer.py    memplan.optimize_trainer: transformers' Trainer; trainer_loss.py; trainer_updates.py, with its
              updates; sharded_trainer.py, with FSDP2
accelerated.py    accelerate's wrappers
loop.py       a loop for users without their own; batches.py, the position in its data
"""
