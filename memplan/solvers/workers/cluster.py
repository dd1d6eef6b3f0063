"""Joblib's backends, on which tasks of solvers and comparisons run in parallel.

loky: processes on this machine. dask, ray: a cluster: the one that this process is connected to, for Dask
also the scheduler that DASK_SCHEDULER_ADDRESS names; else one started on this machine. Reference:
https://joblib.readthedocs.io.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

from joblib import parallel_config

from ...graphs.errors import InputError, MissingPackageError

BACKENDS = ("loky", "dask", "ray")

ADDRESS = "DASK_SCHEDULER_ADDRESS"
CONNECT_SECONDS = 10

SAFE_PATH = "PYTHONSAFEPATH"


def check_backend(backend: str) -> None:
    """Raise InputError if the backend is unknown."""
    if backend not in BACKENDS:
        raise InputError(f"unknown backend {backend!r}: {', '.join(BACKENDS)}")


@contextmanager
def connected(backend: str) -> Generator[None]:
    """Have joblib's tasks run on a backend within the block.

    Raises MissingPackageError; InputError if the cluster does not answer.
    """
    with _without_current_folder():
        yield from _connected(backend)


@contextmanager
def _without_current_folder() -> Generator[None]:
    """Keep the current folder out of the path with which the processes started meanwhile begin.

    joblib and Dask start them by `python -m` and `python -c`, which put it first: a file of the user's named
    `random.py` would come before Python's own. Later they take over the path of this process.
    """
    before = os.environ.get(SAFE_PATH)
    # Of the environment, as only new interpreters read it.
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(SAFE_PATH, None)
        else:
            os.environ[SAFE_PATH] = before


def _connected(backend: str) -> Generator[None]:
    if backend == "dask":
        with ExitStack() as own:
            _connect_dask(own)
            own.enter_context(parallel_config(backend="dask"))
            yield
    elif backend == "ray":
        _package("ray", "ray.util.joblib", "ray").register_ray()
        with parallel_config(backend="ray"):
            yield
    else:
        # One thread in each: the processes already take all cores.
        with parallel_config(backend="loky", inner_max_num_threads=1):
            yield


def _connect_dask(own: ExitStack) -> None:
    distributed = _package("dask", "distributed", "distributed")
    address = os.environ.get(ADDRESS)
    try:
        # Raises ValueError if this process is connected to none.
        distributed.get_client()
    except ValueError:
        if not address:
            # Solvers hold the GIL: threads of one process would take turns.
            local = distributed.Client(processes=True, threads_per_worker=1, dashboard_address=None)
            own.enter_context(local)
            return
        try:
            own.enter_context(distributed.Client(address, timeout=CONNECT_SECONDS))
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise InputError(f"no Dask scheduler answers at {ADDRESS}={address}: {reason}") from None


def _package(backend: str, module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise MissingPackageError(
            f"the backend {backend} needs the package {package}, which is not installed: "
            f"pip install {package}"
        ) from None
