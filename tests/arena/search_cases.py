"""Small search for tests of searches and selection."""

import tiny
from longspan.arena import SearchSpace, search
from longspan.arena.callbacks import GridCallback

RATES = (1e-12, 0.01)
SMALL_CHANGES = {name: x for name, x in tiny.CHANGES.items() if name != "training.learning_rate"}
GRID = {"training.learning_rate": RATES, "seed": (0, 1)}
SPACE = SearchSpace(grid=GRID, changes=SMALL_CHANGES)
CELL = {"tasks": ["listops"], "mechanisms": ["local"]}


class LogTrials(GridCallback):
    """Callback that logs starts, steps and results, and interrupts after `stop` steps."""

    def __init__(self, stop=None):
        self.lines, self.stop = [], stop

    def on_run_begin(self, index, total, experiment):
        self.lines.append(f"{index}/{total}")

    def on_run_end(self, result):
        self.lines.append(f"ended {sorted(result.scores)}")

    def on_step(self, step, loss, tokens, seconds):
        self.lines.append("step")
        if self.stop is not None and self.lines.count("step") == self.stop:
            raise KeyboardInterrupt


def small_search(**space):
    """Return the small search with changes to its space."""
    fields = {"grid": GRID, "changes": SMALL_CHANGES, **space}
    return search("smoke", "listops", "local", SearchSpace(**fields))


def result_files(paths):
    return sorted((paths.runs / "smoke" / "listops").glob("*.json"))


def trial_files(paths):
    trials = small_search().trials
    return [paths.for_trials().record_file(trial.experiment) for trial in trials]


def learning_rate_of(result):
    return result.config.training.learning_rate
