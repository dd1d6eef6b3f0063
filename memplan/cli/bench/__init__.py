"""`plan bench`: solvers compared on graphs and budgets.

    command.py     begin here: the command
    arguments.py   graphs, budgets and solvers from its arguments
    changes.py     against an earlier file of results
    tables.py      what is printed
    written.py     pages and plots

Public modules: arguments.
"""

from .command import bench as bench
