"""Watchers of grids, for tests."""


class Quiet:
    """Does not watch."""

    def building(self, what, done, total): ...
    def starts(self, number, total, experiment): ...
    def ended(self, result): ...
    def stepped(self, step, loss, tokens, seconds): ...
    def evaluated(self, point): ...


class Log(Quiet):
    """Notes what starts and what ends."""

    def __init__(self):
        self.lines = []

    def starts(self, number, total, experiment):
        self.lines.append(f"{number}/{total} {experiment.mechanism} {experiment.seed}")

    def ended(self, result):
        self.lines.append(f"ended {result.mechanism} {result.seed}")
