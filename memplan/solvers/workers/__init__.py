"""Worker processes: native libraries and solvers run where they can crash, hang and be ended without harm.

    worker.py: Worker.call ──function, arguments──▶ serve.py: the function, in a process of its own
               Worker.wait ◀──events, the result───

A thread of a native library that comes back after the interpreter's end aborts the program, and a library may
crash, go on for seconds after it was asked to stop, or clash with another one in the same process. So each
runs in a worker process. All workers speak one protocol (messages.py): the program sends the name of a
function and its arguments, the worker sends events while the function runs and then what it returns or
raises. A worker that does not stop in time is ended; the events that it has sent are kept.

In the order to read:

    process.py       starts and ends a process that does not outlive the program, and the seconds it is given
    messages.py      what both sides send, pickled: both are of one version of memplan, on a private pipe
    worker.py        the program's side
    serve.py         the worker's side
    precompile.py    compiles functions in workers, on all cores
    cluster.py       joblib's backends, for tasks that may also run on other machines

Public modules: cluster, precompile, process, serve, worker.
"""
