"""Do the scores agree with themselves: ranges, counts, answers, slices, curve, selection."""

import itertools
import math
from collections.abc import Iterator

from longspan.checks.base import Fault, Filed, close, whole
from longspan.errors import DataError
from longspan.results import Answers, Point, Score, unpack

SPLITS = ("validation", "test")
FAR = 4.0  # standard deviations below chance at which a score asks for an explanation
SHOWN = 3  # steps that are named where more are missing
AS_RUN = "keep what the run wrote; if it wrote this, report it as a bug"
AGAIN = "run it again to the end"
BEST = "best validation"


def splits(filed: Filed) -> Iterator[Fault]:
    """Validation and test were scored."""
    for split in SPLITS:
        if split not in filed.record.scores:
            yield Fault(field=f"scores.{split}", expected="a score", found="none", remedy=AGAIN)


def ranges(filed: Filed) -> Iterator[Fault]:
    """Accuracies are fractions of whole examples, losses are not negative."""
    if not 0 < filed.record.chance <= 1:
        yield Fault(
            field="chance",
            expected="a fraction above 0",
            found=f"{filed.record.chance}",
            remedy=AS_RUN,
        )
    for split, score in filed.record.scores.items():
        yield from _range(f"scores.{split}", score)


def _range(name: str, score: Score) -> Iterator[Fault]:
    if score.examples < 1:
        yield Fault(
            field=f"{name}.examples", expected="1 or more", found=f"{score.examples}", remedy=AGAIN
        )
        return
    for field in ("accuracy", "majority"):
        value = getattr(score, field)
        if not 0 <= value <= 1:
            remedy = "divide percentages by 100" if value > 1 else AS_RUN
            yield Fault(
                field=f"{name}.{field}",
                expected="a fraction from 0 to 1",
                found=f"{value}",
                remedy=remedy,
            )
        elif not whole(value * score.examples):
            yield Fault(
                field=f"{name}.{field}",
                expected=f"a whole number of {score.examples} examples",
                found=f"{value} of them, {value * score.examples:.6f} examples",
                remedy="scores are not rounded: " + AS_RUN,
            )
    if score.loss < 0:
        yield Fault(
            field=f"{name}.loss", expected="0 or more", found=f"{score.loss}", remedy=AS_RUN
        )


def chance(filed: Filed) -> Iterator[Fault]:
    """A score far below that of a guess has a cause: labels turned round, say."""
    test, guess = filed.record.scores.get("test"), filed.record.chance
    if test is None or test.examples < 1 or not 0 < guess < 1:
        return
    deviation = math.sqrt(guess * (1 - guess) / test.examples)
    if test.accuracy < guess - FAR * deviation:
        yield Fault(
            field="scores.test.accuracy",
            expected=f"about {guess} (chance) or more",
            found=f"{test.accuracy}",
            remedy="look whether classes are mixed up",
            severity="warning",
        )


def counts(filed: Filed) -> Iterator[Fault]:
    """Every example counts: as many as the task's options ask for."""
    record, rows = filed.record, _answers(filed)
    for split in SPLITS:
        asked, score = record.task_options.get(split), record.scores.get(split)
        if not isinstance(asked, int) or isinstance(asked, bool) or score is None:
            continue
        known = rows if split == "test" else None
        # Where tokens are scored there are more of them than examples.
        fits = score.examples >= asked if known is None else len(known.asked) == asked
        if not fits:
            found = score.examples if known is None else len(known.asked)
            yield Fault(
                field=f"scores.{split}.examples",
                expected=f"{asked}, all of the split",
                found=f"{found}",
                remedy="score every example: " + AGAIN,
            )


def _answers(filed: Filed) -> Answers | None:
    try:
        return None if filed.record.answers is None else unpack(filed.record.answers)
    except DataError:
        return None


def answers(filed: Filed) -> Iterator[Fault]:
    """What was answered example by example adds up to the score."""
    record, test = filed.record, filed.record.scores.get("test")
    if record.answers is None:
        old = filed.schema < 3
        yield Fault(
            field="answers",
            expected="which test examples were answered rightly",
            found="none",
            remedy=(
                f"nothing: schema {filed.schema} had none, so no paired comparison"
                if old
                else AGAIN
            ),
            severity="note" if old else "error",
        )
        return
    try:
        right, asked = unpack(record.answers)
    except DataError as error:
        yield Fault(field="answers", expected="packed counts", found=str(error), remedy=AS_RUN)
        return
    if any(r > n for r, n in zip(right, asked, strict=True)):
        yield Fault(
            field="answers",
            expected="no more right answers than questions in a row",
            found="more",
            remedy=AS_RUN,
        )
    if test is not None and (sum(asked), sum(right)) != (
        test.examples,
        round(test.accuracy * test.examples),
    ):
        yield Fault(
            field="answers",
            expected=f"{test.accuracy} of {test.examples}, the score on test",
            found=f"{sum(right)} of {sum(asked)}",
            remedy=AS_RUN,
        )


def slices(filed: Filed) -> Iterator[Fault]:
    """The parts of the test examples add up to no more than the whole, and to it where complete."""
    test = filed.record.scores.get("test")
    for name, parts in filed.record.slices.items():
        field = f"slices.{name}"
        labels = [part.label for part in parts]
        if len(set(labels)) < len(labels):
            yield Fault(
                field=field, expected="each label once", found=", ".join(labels), remedy=AS_RUN
            )
        odd = [p for p in parts if not 0 <= p.accuracy <= 1 or not whole(p.accuracy * p.examples)]
        for part in odd:
            yield Fault(
                field=f"{field}.{part.label}",
                expected=f"a whole number of {part.examples} examples",
                found=f"{part.accuracy} of them",
                remedy=AS_RUN,
            )
        if test is None or odd:
            continue
        examples = sum(part.examples for part in parts)
        right = round(sum(part.accuracy * part.examples for part in parts))
        all_right = round(test.accuracy * test.examples)
        wrong = test.examples - all_right
        # What is in no slice must be there to be left out: right answers and wrong ones.
        if right > all_right or examples - right > wrong:
            yield Fault(
                field=field,
                expected=f"at most {all_right} right and {wrong} wrong, the score on test",
                found=f"{right} right and {examples - right} wrong",
                remedy=AS_RUN,
            )


def curve(filed: Filed) -> Iterator[Fault]:
    """Steps and seconds grow, values are in range, and no evaluation is missing."""
    record, points = filed.record, filed.record.curve
    steps = [point.step for point in points]
    if not points or steps[-1] != record.steps:
        yield Fault(
            field="curve",
            expected=f"points up to the last step, {record.steps}",
            found=f"the last at {steps[-1]}" if steps else "none",
            remedy=AGAIN,
        )
    if any(b <= a for a, b in itertools.pairwise(steps)):
        yield Fault(field="curve", expected="growing steps", found=f"{steps!r:.60}", remedy=AS_RUN)
    seconds = [point.seconds for point in points]
    if any(b < a for a, b in itertools.pairwise([0.0, *seconds])):
        yield Fault(
            field="curve", expected="growing seconds", found=f"{seconds!r:.60}", remedy=AS_RUN
        )
    for point in points:
        yield from _point(point)
    every = record.training.get("evaluate_every")
    if isinstance(every, int) and every > 0:
        there = set(steps)
        due = (step for step in range(every, record.steps + 1, every) if step not in there)
        if missing := list(itertools.islice(due, SHOWN)):
            yield Fault(
                field="curve",
                expected=f"a point every {every} steps",
                found=f"none at {', '.join(map(str, missing))}",
                remedy=AGAIN,
            )


def _point(point: Point) -> Iterator[Fault]:
    for field in ("train_accuracy", "validation_accuracy"):
        value = getattr(point, field)
        if value is not None and not 0 <= value <= 1:
            yield Fault(
                field=f"curve at step {point.step}, {field}",
                expected="a fraction from 0 to 1",
                found=f"{value}",
                remedy=AS_RUN,
            )
    for field in ("train_loss", "validation_loss", "learning_rate"):
        value = getattr(point, field)
        if value is not None and value < 0:
            yield Fault(
                field=f"curve at step {point.step}, {field}",
                expected="0 or more",
                found=f"{value}",
                remedy=AS_RUN,
            )


def steps(filed: Filed) -> Iterator[Fault]:
    """The training was carried out to its last step."""
    record = filed.record
    planned = record.training.get("steps")
    if record.steps != planned:
        yield Fault(field="steps", expected=f"{planned}", found=f"{record.steps}", remedy=AGAIN)


def selection(filed: Filed) -> Iterator[Fault]:
    """The tested checkpoint is the one that the rule chooses, from validation alone."""
    record = filed.record
    rule = record.training.get("selection")
    if record.selection.partition(" (")[0] != rule:
        yield Fault(
            field="selection",
            expected=f"{rule}, as in training",
            found=record.selection,
            remedy=AS_RUN,
        )
    if record.selection.startswith(BEST) and "test" in record.selection:
        yield Fault(
            field="selection",
            expected="a validation split apart from test",
            found=record.selection,
            remedy="do not compare it with scores that were not selected on test",
            severity="warning",
        )
    chosen = _chosen(filed)
    if record.selected_step is None:
        yield Fault(
            field="selected_step",
            expected="the step of the tested checkpoint",
            found="none",
            remedy=f"nothing: schema {filed.schema} did not note it" if filed.schema < 3 else AGAIN,
            severity="note" if filed.schema < 3 else "error",
        )
    elif chosen is not None and record.selected_step != chosen.step:
        yield Fault(
            field="selected_step",
            expected=f"{chosen.step}, by {record.selection}",
            found=f"{record.selected_step}",
            remedy=AS_RUN,
        )
    yield from _validated(filed, chosen)


def _chosen(filed: Filed) -> Point | None:
    """The point of the curve that the rule chooses: of equal ones that of the lower loss."""
    points = [p for p in filed.record.curve if p.validation_accuracy is not None]
    if not points or not filed.record.selection.startswith(BEST):
        return points[-1] if points else None
    return max(points, key=lambda p: (p.validation_accuracy, -(p.validation_loss or 0.0)))


def _validated(filed: Filed, chosen: Point | None) -> Iterator[Fault]:
    """The selected model was scored on validation twice, with one outcome."""
    score = filed.record.scores.get("validation")
    if score is None or chosen is None or chosen.validation_accuracy is None:
        return
    if not close(score.accuracy, chosen.validation_accuracy):
        yield Fault(
            field="scores.validation.accuracy",
            expected=f"{chosen.validation_accuracy}, as in the curve at step {chosen.step}",
            found=f"{score.accuracy}",
            remedy=AS_RUN,
            # Rounding of another device or number of threads turns an example or two.
            severity="error"
            if abs(score.accuracy - chosen.validation_accuracy) > 0.01
            else "warning",
        )


RULES = (splits, ranges, chance, counts, answers, slices, curve, steps, selection)
