"""Order of runs: cheap ones first, and each behind the run that it starts from."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from longspan.arena.experiment import Experiment
from longspan.arena.paths import RunPaths
from longspan.results import BASELINE
from longspan.tasks import build


def order_runs(
    experiments: Sequence[Experiment], cost: Callable[[Experiment], float] | None = None
) -> list[Experiment]:
    """Return experiments in an order that completes tables early.

    Seeds are outermost, so a first table has every mechanism once. Within a seed the baseline
    comes first, then the other rows by their cost on all their tasks together, each on all its
    tasks, cheap ones first. A run that another one starts from comes before it; missing ones are
    added.

    Args:
        experiments: experiments in any order, which equal costs keep.
        cost: cost of a run; None: its training FLOPs.
    """
    cost = CountFlops() if cost is None else cost
    costs = [float(cost(x)) for x in experiments]
    totals: dict[tuple[int, str], float] = defaultdict(float)
    for x, own in zip(experiments, costs, strict=True):
        totals[x.seed, x.row_name] += own
    seeds = list(dict.fromkeys(x.seed for x in experiments))
    rows = list(dict.fromkeys((x.seed, x.row_name) for x in experiments))

    def rank(number: int) -> tuple[int, bool, float, int, float]:
        x = experiments[number]
        row = (x.seed, x.row_name)
        is_other = x.row_name != BASELINE
        return seeds.index(x.seed), is_other, totals[row], rows.index(row), costs[number]

    return with_sources(experiments[number] for number in sorted(range(len(costs)), key=rank))


def with_sources(experiments: Iterable[Experiment]) -> list[Experiment]:
    """Return experiments, each behind the runs that it needs, which are added once."""
    ordered: dict[tuple[str, str, str], Experiment] = {}
    for experiment in experiments:
        for x in (*experiment.sources, experiment):
            ordered.setdefault((x.protocol, x.task, x.name), x)
    return list(ordered.values())


class CountFlops:
    """Count the training FLOPs of runs, every example at the length of its stage.

    Seeds of one configuration are counted once; finished runs cost nothing.
    """

    def __init__(self, paths: RunPaths | None = None):
        """Look for finished runs in these paths; None: nowhere."""
        self.paths = paths
        self.counted: dict[str, int] = {}

    def __call__(self, experiment: Experiment) -> int:
        """Return the training FLOPs; the first unfinished run imports the models."""
        if self.paths is not None and self.paths.record_file(experiment).exists():
            return 0
        if experiment.hash not in self.counted:
            from longspan.arena.stages import mean_step_flops

            config = experiment.config
            task = build(config.task.name, config.task.options)
            total = round(config.training.steps * mean_step_flops(config, task))
            self.counted[experiment.hash] = total
        return self.counted[experiment.hash]
