"""Mixed-integer linear programs and the backends that solve them.

In the order to read:

    linear.py           linear expressions, and constraints between them
    model.py            a program, written row by row: what is minimised, and within what
    result.py           settings, outcomes, and the check of an answer
    solve.py            scaling, the backend, the check: where users of this package begin
    scaling.py          programs of any magnitude
    highs.py            HiGHS, in worker processes; highs_worker.py, their side
    pulp_worker.py      every other backend, in a worker process
    write.py            programs as files, for other solvers
    safe_bounds.py      bounds from linear programs that hold whatever the solver does
    planes.py           the small linear program of cutting-plane methods

Backends answer within tolerances (result.py): what has to be exact is replayed by the simulator. Writing,
scaling and checking are linear in the nonzeros; solving is exponential in the worst case. References are in
highs.py, solve.py and safe_bounds.py.

Public modules: highs, linear, model, planes, result, safe_bounds, scaling, solve, write.
"""
