"""Will it fit: which batch fits a GPU, or each of several ranks, how, and how fast.

model, LoopOptions ──subject.py──▶ Subject ──loops.py──▶ graphs of each batch
Subject, GPUs, ranks ──sizing.py, search.py──▶ SizeResult
SizeResult ──answer.py, documents.py──▶ lines and tables, a page, JSON

request.py          begin here: what a user asks
size.py             memplan.size, the same in Python
settings/           options from files of other tools
rooms.py, prices.py what is asked of GPUs: their machines and bytes, their prices
sizing.py           on each of several GPUs, or on ranks
at_once.py          what fits without a plan
outline.py          its bytes and seconds as closed forms
search.py           the batches that are tried
question.py         what the solver is asked
trial.py            one batch within one budget; searches for the largest batch, the smallest budget
policies.py         FSDP2's policies, on ranks
rank_curve.py       time against memory, on ranks
lengths.py          samples of many lengths: what the allocator reserves, the mean time
alternatives.py     what people do next with a batch
result.py           what was found
answer.py, tables.py, words.py, documents.py   how it is said
breakdown.py        the bytes of the peak by kind
estimate_range.py   low and high figures of an estimate
ordinary_loop.py    the loop without a plan: updates after backward, all at once
accumulation.py     several micro-batches per update
eight_bit.py        optimizer states of 8 bits
"""
