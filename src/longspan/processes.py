"""Processes that a command starts."""

import multiprocessing
import os
import threading


def exit_with_parent() -> None:
    """Let this process exit when its parent dies, killed or not: nothing works on alone."""
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
