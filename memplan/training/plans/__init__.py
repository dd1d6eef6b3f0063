"""Plans of one module: made for a batch, kept on disk, compared with eager PyTorch, replaced.

Public modules: adapt_on_ranks, agreement, buckets, front_end, infeasible, loop_memory, old_gradients,
plan, plan_cache, plans, report, splits, trace_watch, training_log, value_plans.
"""
