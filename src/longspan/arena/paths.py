"""Files and folders of runs."""

import dataclasses
from pathlib import Path

from longspan.arena.experiment import Experiment
from longspan.config.training import Parallelism
from longspan.files import cache_folder
from longspan.results import FAILED
from longspan.results.reading import FINAL


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunPaths:
    """Folders that runs read and write, the device they use, and what they accept.

    Attributes:
        runs: folder of results and checkpoints.
        cache: folder of built data sets.
        data: folder of source files, for example those of IMDB.
        device: "cpu", or None for the available accelerator.
        parallel: strategy for several processes that train one run.
        is_trial: True for trials of a search: their records are kept separately and the test
            split is never scored.
        is_final: True for models that are trained on all texts: their records, which have no
            scores, are kept separately.
        accept_changes: whether an interrupted run may be resumed with other code than began it; the
            record then has both.
    """

    runs: Path = Path("runs")
    cache: Path = dataclasses.field(default_factory=cache_folder)
    data: Path | None = None
    device: str | None = None
    parallel: Parallelism | None = None
    is_trial: bool = False
    is_final: bool = False
    accept_changes: bool = False

    def for_trials(self) -> "RunPaths":
        """Return the same paths for the trials of a search."""
        return dataclasses.replace(self, is_trial=True)

    def for_sources(self) -> "RunPaths":
        """Return the same paths for runs that others start from, which are no trials."""
        return dataclasses.replace(self, is_trial=False)

    def for_final(self) -> "RunPaths":
        """Return the same paths for models that are trained on all texts."""
        return dataclasses.replace(self, is_final=True)

    @property
    def device_type(self) -> str:
        """Device type that runs train on, in torch's spelling."""
        import torch

        return "cuda" if self.device != "cpu" and torch.cuda.is_available() else "cpu"

    def record_file(self, experiment: Experiment) -> Path:
        """Return the result file of an experiment."""
        folder = self.runs / experiment.protocol / experiment.task
        part = "trials" if self.is_trial else FINAL if self.is_final else ""
        return folder / part / f"{experiment.name}.json"

    def failure_file(self, experiment: Experiment) -> Path:
        """Return the failure file of an experiment."""
        return self.record_file(experiment).with_suffix(FAILED)

    def run_dir(self, experiment: Experiment) -> Path:
        """Return the folder of an experiment's checkpoints."""
        return self.record_file(experiment).parent / "work" / experiment.name
