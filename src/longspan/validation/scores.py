"""Rules for the scores of a result: splits, per-example scores, slices."""

from collections.abc import Iterator

from longspan.errors import DataError, LongspanError
from longspan.metrics import Metric
from longspan.results import Result
from longspan.results.packing import EXAMPLE
from longspan.tasks import TASKS, build
from longspan.tasks.base import HELD_OUT
from longspan.validation.findings import RUN_AGAIN, Finding, RecordFile, is_whole


def _counts_targets(metric: Metric) -> bool:
    """Return whether the metric is the share of correct targets."""
    return metric.comparison == "mcnemar"


def check_splits(file: RecordFile[Result]) -> Iterator[Finding]:
    """Require scores on all examples of validation and test, and on the sample of train."""
    record = file.record
    published = TASKS[record.task].info.sizes if record.task in TASKS else {}
    for split in HELD_OUT:
        if split not in record.scores and published.get(split) != 0:
            yield file.finding(f"scores.{split}", "none", "a score", RUN_AGAIN)
        elif type(size := record.config.task.options.get(split)) is int:
            actual = record.scores[split].num_examples
            yield from file.compare(f"scores.{split}.num_examples", actual, size, RUN_AGAIN)
    # Older records have neither.
    if record.inference is not None:
        yield from _check_train(file)


def _check_train(file: RecordFile[Result]) -> Iterator[Finding]:
    """Require a score on the requested training examples, or on all if there are fewer."""
    record = file.record
    requested = record.config.training.train_eval_examples
    if requested is None:  # as many as validation has
        validation = record.scores.get("validation")
        requested = validation.num_examples if validation else None
    score = record.scores.get("train")
    if requested == 0:
        return
    if score is None:
        yield file.finding("scores.train", "none", "a score", RUN_AGAIN)
        return
    actual, field = score.num_examples, "scores.train.num_examples"
    size = record.config.task.options.get("train")
    if requested is not None and type(size) is int:
        yield from file.compare(field, actual, min(requested, size), RUN_AGAIN)
    elif requested is not None and actual > requested:
        yield file.finding(field, actual, f"at most {requested}", RUN_AGAIN)


def check_shares(file: RecordFile[Result]) -> Iterator[Finding]:
    """Require losses that are not negative, and unrounded shares of the targets."""
    record = file.record
    for split, score in record.scores.items():
        name = f"scores.{split}"
        if score.loss < 0:
            yield file.finding(f"{name}.loss", score.loss, "0 or more")
        main = record.score(split)
        shares = {f"metrics.{record.metric}": main, "majority_baseline": score.majority_baseline}
        for field, share in shares.items() if _counts_targets(record.main) else ():
            is_valid = share is None or (0 <= share <= 1 and is_whole(share * score.num_targets))
            if not is_valid or score.num_targets < 1:
                expected = f"an unrounded share of {score.num_targets} targets, 0 to 1"
                yield file.finding(f"{name}.{field}", share, expected)


def _check_rules(file: RecordFile[Result]) -> Iterator[Finding]:
    """Require the accuracy of every rule of the task on validation and on test."""
    record = file.record
    if record.rules is None:  # not recorded
        return
    expected = _rule_names(record)
    for split in (split for split in HELD_OUT if split in record.scores):
        accuracies, num_targets = record.rules.get(split, {}), record.scores[split].num_targets
        if expected not in (None, sorted(accuracies)):
            remedy = "run it again, unless the rules are newer than the record"
            yield file.finding(f"rules.{split}", sorted(accuracies), expected, remedy, "warning")
        for name, share in accuracies.items() if _counts_targets(record.main) else ():
            if not (0 <= share <= 1 and is_whole(share * num_targets)):
                shares = f"an unrounded share of {num_targets} targets, 0 to 1"
                yield file.finding(f"rules.{split}.{name}", share, shares)


def _rule_names(record: Result) -> list[str] | None:
    """Return the rules of the task; None for a task or options that are unknown here."""
    try:
        task = build(record.task, record.config.task.options)
    except LongspanError:
        return None  # the rule for recipes names them
    return sorted(task.rule_names) if record.metric == task.metrics[0].name else []


def _check_inference(file: RecordFile[Result]) -> Iterator[Finding]:
    """Require a speed above zero, and memory that is not negative."""
    cost = file.record.inference
    if cost is None:
        return
    if cost.examples_per_second <= 0:
        yield file.finding("inference.examples_per_second", cost.examples_per_second, "above 0")
    if (cost.peak_memory or 0) < 0:
        yield file.finding("inference.peak_memory", cost.peak_memory, "0 or more, or none")


def check_example_scores(file: RecordFile[Result]) -> Iterator[Finding]:
    """Aggregate the per-example scores again, and compare them with the score on test."""
    record, packed, test = file.record, file.record.example_scores, file.record.scores.get("test")
    if test is None:
        return
    if packed is None:
        expected, remedy = "scores of each test example", "run it again for paired comparisons"
        yield file.finding("example_scores", "none", expected, remedy, "warning")
        return
    try:
        statistics = packed.unpack()
        value = record.main.aggregate(statistics)
    except DataError as error:
        yield file.finding("example_scores", error, f"packed statistics of {record.metric}")
        return
    yield from file.compare("example_scores.metric", packed.metric, record.metric)
    if packed.unit == EXAMPLE:
        yield from file.compare("scores.test.num_examples", test.num_examples, len(statistics))
    elif len(statistics) > test.num_examples:
        expected = f"at most one for each of {test.num_examples} examples"
        yield file.finding("example_scores", f"{len(statistics)} {packed.unit}s", expected)
    yield from file.compare(f"scores.test.metrics.{record.metric}", record.score(), value)
    if _counts_targets(record.main):
        correct, targets = statistics.T
        yield from file.compare("scores.test.num_targets", test.num_targets, int(targets.sum()))
        if (correct > targets).any():
            yield file.finding("example_scores", "more", "correct <= targets in each example")


def _check_slices(file: RecordFile[Result]) -> Iterator[Finding]:
    """Compare the sums over the slices of each property with the score on test."""
    record, test = file.record, file.record.scores.get("test")
    if test is None:
        return
    for name, slices in record.slices.items():
        field, num_targets = f"slices.{name}", sum(one.num_targets for one in slices)
        if len({one.label for one in slices}) < len(slices):
            yield file.finding(field, "repeated labels", "each label once")
        if num_targets > test.num_targets:
            yield file.finding(field, f"{num_targets} targets", f"at most {test.num_targets}")
        if not _counts_targets(record.main):
            continue
        correct = [one.value * one.num_targets for one in slices]
        all_correct = record.score() * test.num_targets
        # Targets outside all slices account for the rest.
        least = all_correct - (test.num_targets - num_targets)
        if not least - 0.5 < sum(correct) < all_correct + 0.5 or not all(map(is_whole, correct)):
            actual = f"{sum(correct):.6g} of {num_targets} correct"
            yield file.finding(field, actual, f"shares of the {all_correct:.0f} correct on test")


RULES = (
    check_splits,
    check_shares,
    _check_rules,
    _check_inference,
    check_example_scores,
    _check_slices,
)
