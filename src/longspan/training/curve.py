"""Learning curve: sums over the steps since its last point, and the numbers of a point."""

import torch
from torch import Tensor

from longspan.results import Point, Score
from longspan.tasks import Task
from longspan.tasks.base import Batch
from longspan.training.distributed.group import ProcessGroup, RowShard
from longspan.training.progress import Progress


class CurveWindow:
    """Loss and training metrics of the steps since the last point of the learning curve."""

    def __init__(self, task: Task, progress: Progress, device: torch.device):
        """Restore the sums of a checkpoint.

        Args:
            task: task, which names the training metrics.
            progress: progress of the run.
            device: device of the sums.
        """
        self.task, self.metrics = task, task.training_metrics
        self.loss = torch.tensor(progress.window_loss, device=device)
        self.statistics = {
            metric.name: torch.tensor(
                progress.window_statistics.get(metric.name, [0.0] * len(metric.columns)),
                dtype=torch.float64,
                device=device,
            )
            for metric in self.metrics
        }
        self.steps = progress.window_steps

    def empty_sums(self) -> dict[str, Tensor]:
        """Return sums of the training metrics, all of them zero."""
        return {name: torch.zeros_like(x) for name, x in self.statistics.items()}

    def add_rows(
        self,
        sums: dict[str, Tensor],
        batch: Batch,
        shard: RowShard,
        logits: Tensor,
        targets: Tensor,
    ) -> None:
        """Add the statistics of some rows of a batch to sums, in place."""
        statistics = self.task.example_statistics(
            self.metrics, "train", batch.rows[shard.rows], logits, targets
        )
        for name, values in statistics.items():
            sums[name] += shard.weight * values.sum(0).to(sums[name].device)

    def add_step(self, loss: Tensor, sums: dict[str, Tensor], group: ProcessGroup) -> None:
        """Add a step, whose loss is that of all processes and whose sums are of this one."""
        self.loss += loss
        for name, local_sum in sums.items():
            self.statistics[name] += group.all_reduce_sum(local_sum)
        self.steps += 1

    def close(self, step: int, seconds: float, learning_rate: float, score: Score | None) -> Point:
        """Return the next point of the learning curve, and set the sums to zero."""
        steps = self.steps
        sums = {name: x.cpu().numpy() for name, x in self.statistics.items()}
        metrics = {x.name: float(x.finalize(sums[x.name])) for x in self.metrics} if steps else {}
        point = Point(
            step=step,
            seconds=seconds,
            learning_rate=learning_rate,
            train_loss=float(self.loss) / steps if steps else None,
            validation_loss=score.loss if score else None,
            train_metrics=metrics,
            validation_metrics=score.metrics if score else {},
        )
        self.loss.zero_()
        for statistics in self.statistics.values():
            statistics.zero_()
        self.steps = 0
        return point

    def save(self, progress: Progress) -> None:
        """Write the sums into the progress of the run."""
        progress.window_loss = float(self.loss)
        progress.window_steps = self.steps
        progress.window_statistics = {name: x.tolist() for name, x in self.statistics.items()}


def scalars_of(point: Point) -> dict[str, float]:
    """Return the numbers of a point by name, as trackers such as TensorBoard group them."""
    scalars = {
        "seconds": point.seconds,
        "learning_rate": point.learning_rate,
        "train/loss": point.train_loss,
        "validation/loss": point.validation_loss,
        **{f"train/{name}": x for name, x in point.train_metrics.items()},
        **{f"validation/{name}": x for name, x in point.validation_metrics.items()},
    }
    return {name: x for name, x in scalars.items() if x is not None}
