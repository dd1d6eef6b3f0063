"""Programs as HiGHS takes them, and as files for other solvers, MPS or CPLEX's LP, which HiGHS writes.

The first file is model.mps, those after it model-2.mps, model-3.mps, …: an existing file stays as it is.
"""

from __future__ import annotations

from pathlib import Path

import highspy
import numpy as np

from ...graphs.errors import InputError
from .model import Program


def write(program: Program, path: str) -> Path:
    """Write a program to a new file and return its path. Raises InputError."""
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.passModel(lp_of(program))
    taken = _free(Path(path))
    if highs.writeModel(str(taken)) == highspy.HighsStatus.kError:
        raise InputError(f"{taken}: cannot be written")
    return taken


def _free(path: Path) -> Path:
    """Create an empty file under a name that was not taken, and return its path."""
    place, number = path, 1
    while True:
        try:
            # Looking first and creating then would let another process take the name in between.
            place.touch(exist_ok=False)
            return place
        except FileExistsError:
            number += 1
            place = path.with_stem(f"{path.stem}-{number}")
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {error.strerror}") from None


def lp_of(program: Program, whole: bool = True) -> highspy.HighsLp:
    """Return the program as HiGHS takes it.

    whole: keep its integers.
    """
    columns, rows = len(program.cost), len(program.row_lower)
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_, lp.offset_ = columns, rows, program.offset
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = program.cost, program.lower, program.upper
    lp.row_lower_, lp.row_upper_ = program.row_lower, program.row_upper
    matrix = lp.a_matrix_
    matrix.format_, matrix.num_col_, matrix.num_row_ = highspy.MatrixFormat.kRowwise, columns, rows
    matrix.start_, matrix.index_, matrix.value_ = (
        # HiGHS' indices have 32 bits.
        program.start.astype(np.int32),
        program.columns,
        program.values,
    )
    if whole and program.integer.any():
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        lp.integrality_ = [kinds[integer] for integer in program.integer.tolist()]
    return lp
