"""A schedule is run: its Python code, its queues, who owns the tensors that it moves."""
