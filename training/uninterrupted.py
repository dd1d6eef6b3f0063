"""Work that no signal can break off halfway."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread


def run_uninterrupted(work: Callable[[], None]) -> None:
    """Run `work` to its end in a thread of its own. Handlers of signals run in the main thread: what they
    raise meanwhile, Ctrl-C too, is raised here when the work has ended. Raises what the work raises.

    If something is raised before the work has begun, it does not begin.
    """
    may_begin, ended = Event(), Event()
    abandoned = False
    raised: list[BaseException] = []

    def run() -> None:
        may_begin.wait()
        try:
            if not abandoned:
                work()
        except BaseException as error:  # raised in the caller's thread
            raised.append(error)
        finally:
            ended.set()

    thread = Thread(target=run, name="memplan uninterrupted", daemon=True)
    try:
        thread.start()
    except BaseException:
        abandoned = True
        may_begin.set()
        raise
    interrupts: list[BaseException] = []
    while not ended.is_set():
        try:
            may_begin.set()
            ended.wait()
        except BaseException as error:  # raised below
            interrupts.append(error)
    thread.join()
    for error in (*raised, *interrupts):
        raise error
