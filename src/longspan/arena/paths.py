"""Where runs read and write."""

import dataclasses
from pathlib import Path

from longspan.arena.experiment import Experiment
from longspan.data.cache import default_folder
from longspan.results import FAILED
from longspan.training.config import Parallel


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunPaths:
    """Where a run reads and writes."""

    runs: Path = Path("runs")
    cache: Path = dataclasses.field(default_factory=default_folder)
    data: Path | None = None  # folder of source files, as IMDB's
    device: str | None = None  # "cpu", or None for the accelerator that is there
    parallel: Parallel | None = None  # how the processes of one run work together, if several
    trials: bool = False  # runs are trials of a grid: kept apart, and nobody looks at test

    def for_trials(self) -> "RunPaths":
        """The same paths, for the trials of a grid."""
        return dataclasses.replace(self, trials=True)

    @property
    def type(self) -> str:
        """The kind of device that runs train on here, as torch names it."""
        import torch

        return "cuda" if self.device != "cpu" and torch.cuda.is_available() else "cpu"

    def record(self, experiment: Experiment) -> Path:
        """The file of an experiment's result."""
        folder = self.runs / experiment.protocol / experiment.task.name
        return (folder / "trials" if self.trials else folder) / f"{experiment.name}.json"

    def failure(self, experiment: Experiment) -> Path:
        """The file that says why an experiment has no result."""
        return self.record(experiment).with_suffix(FAILED)

    def work(self, experiment: Experiment) -> Path:
        """The folder of an experiment's checkpoints."""
        return self.record(experiment).parent / "work" / experiment.name
