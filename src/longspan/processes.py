"""Processes that a command starts."""

import multiprocessing
import os
import threading


def exit_with_parent() -> None:
    """Exit as soon as the parent process dies, so that nothing runs on unattended."""
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
