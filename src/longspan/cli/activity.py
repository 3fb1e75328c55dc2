"""Progress of work without steps: a status line in a terminal, now and then a line elsewhere."""

import contextlib
import threading
import time

from rich.console import Console
from rich.status import Status
from rich.text import Text

FIRST_SECONDS, LATER_SECONDS = 10.0, 60.0  # before the first plain line, and between later ones


class Activity:
    """Context in which a command says on the error stream what it does.

    Files and pipes get a line once the work has lasted `FIRST_SECONDS`, then every `LATER_SECONDS`,
    from a thread: the work need not report progress.
    """

    def __init__(self, console: Console, text: str):
        """Store the text that names the work.

        Args:
            console: console of the error stream.
            text: what is done, such as "evaluating test".
        """
        self.console, self.text, self.start = console, text, time.monotonic()
        self._status: Status | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._print_lines, daemon=True)

    def __enter__(self) -> "Activity":
        """Show the text."""
        self.start = time.monotonic()
        if self.console.is_terminal:
            self._status = self.console.status(Text(self.text))
            self._status.start()
        else:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the text."""
        self._done.set()
        if self._status is not None:
            self._status.stop()
        else:
            self._thread.join()

    def update(self, text: str) -> None:
        """Show another text."""
        self.text = text
        if self._status is not None:
            self._status.update(Text(text))

    def on_build(self, description: str, done: int, total: int) -> None:
        """Show the progress of building a data set, as `ProgressCallback`."""
        self.update(f"{description}: {done:,} of {total:,}")

    def _print_lines(self) -> None:
        wait = FIRST_SECONDS
        # An error stream that takes no lines must not end the work.
        with contextlib.suppress(OSError):
            while not self._done.wait(wait):
                wait = LATER_SECONDS
                seconds = time.monotonic() - self.start
                self.console.print(
                    Text(f"{self.text} ({seconds:.0f} s)"), soft_wrap=True, highlight=False
                )
