"""Log messages of a test, without pytest's plugin, which takes 6 % of the time of small tests."""

import contextlib
import logging


class Logged(logging.Handler):
    """Handler that keeps what is logged."""

    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        """Keep a record."""
        self.records.append(record)

    @property
    def messages(self):
        """Return the messages, in order."""
        return [record.getMessage() for record in self.records]

    @property
    def text(self):
        """Return the messages as lines."""
        return "\n".join(self.messages)

    def clear(self):
        """Forget what was logged."""
        self.records.clear()

    @contextlib.contextmanager
    def at_level(self, level, name=None):
        """Let a logger pass messages of a level inside the context."""
        logger = logging.getLogger(name)
        before = logger.level
        logger.setLevel(level)
        try:
            yield
        finally:
            logger.setLevel(before)
