"""Numbers of the learning curve by name, as trackers such as TensorBoard group them."""

from longspan.results import Point


def scalars_of(point: Point) -> dict[str, float]:
    """Return the numbers of a point by name."""
    scalars = {
        "seconds": point.seconds,
        "learning_rate": point.learning_rate,
        "train/loss": point.train_loss,
        "validation/loss": point.validation_loss,
        **{f"train/{name}": x for name, x in point.train_metrics.items()},
        **{f"validation/{name}": x for name, x in point.validation_metrics.items()},
    }
    return {name: x for name, x in scalars.items() if x is not None}
