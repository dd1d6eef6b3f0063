"""Tracing: PyTorch's forward and backward to a program.

One forward pass is recorded at three levels, since it is replayed for three purposes:

    Python's reads      by guards/reads/recorder.py: what each read gave. Each is made once more before each
                        iteration, and must give the same.
    torch's functions   by api_calls.py: the result of each call, under the function and its arguments. The
                        user's code runs once more after each iteration, with these results (host_part.py).
    operators           by known_values.py, on a tape (guards/values_used.py): calls on known values, in their
                        order. They run once more on the values of each batch, and must give the same answers.

One record can't serve them all. The code that runs once more is Python: it asks for a function with its
arguments, and one function makes many operators. A batch's values are computed without Python: by operators
alone, among them those of backward, of kernels that the trace replaces, of functions written in C++, which no
call of Python's shows. And a read of an attribute is no call of torch's.
"""
