"""What differs between two versions is told with its kind, and whether it is more than chance."""

import dataclasses
import math
import random
import statistics

import pytest
from report_records import record

from longspan.report import changes as module
from longspan.report.changes import changes, sheet, since, to_json
from longspan.report.differences import difference
from longspan.report.render import markdown
from longspan.report.snapshots import take
from longspan.results import config_hash, pack


def answered(run, right):
    """The run with these answers and the score that follows."""
    test = run.scores["test"]
    score = dataclasses.replace(test, accuracy=sum(right) / len(right), examples=len(right))
    answers = pack(right, [1] * len(right))
    return dataclasses.replace(run, answers=answers, scores={**run.scores, "test": score})


def drawn(share, seed, count=2000):
    source = random.Random(seed)
    return [int(source.random() < share) for _ in range(count)]


BEFORE = [record("full", accuracy=0.37), record("local", accuracy=0.35)]


def one(before, after):
    (found,) = changes(before, after)
    return found


def test_nothing_changes_between_equal_results():
    assert changes(BEFORE, [dataclasses.replace(run, seconds=1.0) for run in BEFORE]) == []


def test_new_and_gone_rows_are_told():
    found = one(BEFORE, [*BEFORE, record("linear", accuracy=0.16)])
    assert (found.kinds, found.mechanism, found.before) == (("new",), "linear", None)
    assert (found.after.accuracy, found.after.rank) == (0.16, 3)
    found = one(BEFORE, BEFORE[:1])
    assert (found.kinds, found.mechanism, found.after) == (("gone",), "local", None)
    assert [x.kinds for x in changes([], BEFORE)] == [("new",)] * 2


def test_a_changed_score_changes_ranks_of_others():
    found = changes(BEFORE, [BEFORE[0], record("local", accuracy=0.40)])
    assert [(x.mechanism, x.kinds) for x in found] == [
        ("full", ("rank",)),
        ("local", ("score", "rank")),
    ]
    assert (found[1].before.rank, found[1].after.rank) == (2, 1)
    assert found[1].difference.value == pytest.approx(0.05)


def test_a_changed_configuration_is_one_row_with_its_fields():
    training = {"steps": 600, "batch": 32, "learning_rate": 1e-4}
    other = record("local", accuracy=0.35, training=training, options={"window": 8})
    found = one(BEFORE, [BEFORE[0], other])
    assert found.kinds == ("configuration",)
    assert {field.name: (field.before, field.after) for field in found.fields} == {
        "options.block": (64, None),
        "options.heads": (4, None),
        "options.window": (None, 8),
        "train.steps": (500, 600),
    }


def test_rows_are_matched_by_the_fewest_fields():
    """Of two configurations of a mechanism each meets the one that it came from."""

    def row(block, rank, accuracy=0.3):
        return record(
            "local", accuracy=accuracy, options={"block": block, "rank": rank, "heads": 1}
        )

    found = changes([row(1, 10), row(2, 20)], [row(2, 21, 0.4), row(1, 11)])
    assert [{f.name: (f.before, f.after) for f in x.fields} for x in found] == [
        {"options.rank": (10, 11)},
        {"options.rank": (20, 21)},
    ]


def test_departures_from_the_protocol_are_rows_of_their_own():
    departed = record("local", accuracy=0.30, overrides={"train.steps": 9})
    found = one(BEFORE, [*BEFORE, departed])
    assert (found.kinds, found.after.accuracy, found.after.rank) == (("new",), 0.30, None)


def test_other_data_is_told_and_not_compared():
    other = record("local", accuracy=0.5, data_checksum="6a" * 32)
    found = one(BEFORE[1:], [other])
    assert found.kinds == ("score", "data")
    assert found.difference is None


def test_more_seeds_are_told():
    found = one(BEFORE, [*BEFORE, record("local", accuracy=0.35, seed=1)])
    assert found.kinds == ("seeds",)
    assert found.after.seeds == (0, 1)


def test_paired_examples_see_what_two_samples_do_not():
    """20 more of 2,000 right, and none lost: certain by example, unclear by two proportions."""
    right = drawn(0.35, 1)
    better, left = list(right), 20
    for i, value in enumerate(better):
        if not value and left:
            better[i], left = 1, left - 1
    a, b = answered(BEFORE[1], right), answered(BEFORE[1], better)
    paired = difference([a], [b])
    blind = [dataclasses.replace(run, answers=None) for run in (a, b)]
    apart = difference(blind[:1], blind[1:])
    assert paired.value == apart.value == pytest.approx(0.01)
    assert (paired.over, paired.significant) == ("paired examples", True)
    assert (apart.over, apart.significant) == ("examples", False)
    # against the formula by hand: 20 ones among 2,000 differences
    half = 1.959964 * math.sqrt(0.01 * 0.99 * 2000 / 1999 / 2000)
    assert paired.high - paired.value == pytest.approx(half, rel=1e-6)


def test_the_interval_of_pairs_holds_the_truth_as_often_as_it_says():
    source, hits = random.Random(3), 0
    for _ in range(100):
        hard = [source.random() for _ in range(400)]
        right = [int(source.random() < h) for h in hard]
        better = [int(source.random() < min(1, h + 0.05)) for h in hard]
        truth = statistics.fmean(min(1, h + 0.05) - h for h in hard)
        gap = difference([answered(BEFORE[1], right)], [answered(BEFORE[1], better)])
        hits += gap.low <= truth <= gap.high
    assert 88 <= hits <= 99


def test_several_seeds_are_compared_by_welch():
    """Against the example with 3 and 2 values done by hand."""
    a = [record("local", accuracy=x, seed=i) for i, x in enumerate((0.30, 0.32, 0.34))]
    b = [record("local", accuracy=x, seed=i) for i, x in enumerate((0.40, 0.41))]
    gap = difference(a, b)
    total = 0.0004 / 3 + 0.00005 / 2
    freedom = total**2 / ((0.0004 / 3) ** 2 / 2 + (0.00005 / 2) ** 2)
    assert math.floor(freedom) == 2
    assert gap.over == "seeds"
    assert gap.value == pytest.approx(0.085)
    assert gap.high - gap.value == pytest.approx(4.302653 * math.sqrt(total), rel=1e-5)
    assert gap.significant


def test_rows_with_several_questions_weigh_as_many():
    run = BEFORE[1]
    a = dataclasses.replace(run, answers=pack([3, 0], [3, 1]))
    b = dataclasses.replace(run, answers=pack([3, 1], [3, 1]))
    test = dataclasses.replace(run.scores["test"], examples=4)
    scores = [{"test": dataclasses.replace(test, accuracy=x)} for x in (0.75, 1.0)]
    a, b = (dataclasses.replace(r, scores=s) for r, s in zip((a, b), scores, strict=True))
    gap = difference([a], [b])
    assert gap.value == 0.25
    assert gap.high - gap.value == pytest.approx(
        1.959964 * statistics.stdev([0, 0.5]) / math.sqrt(2)
    )


def test_a_run_without_a_test_score_is_not_compared():
    bare = dataclasses.replace(BEFORE[1], scores={})
    assert difference([bare], [BEFORE[1]]) is None
    assert one(BEFORE[1:], [bare]).after.accuracy is None


def test_the_table_tells_kinds_scores_and_significance():
    found = changes(BEFORE, [BEFORE[0], record("local", accuracy=0.45)])
    drawn_sheet = sheet(found, "v1", "v2")
    assert drawn_sheet.title == "Changes from v1 to v2"
    assert all(len(row) == len(drawn_sheet.headings) for row in drawn_sheet.rows)
    (row,) = [row for row in drawn_sheet.rows if row[2].value == "local"]
    assert [entry.shown for entry in row[3:8]] == [
        "score, rank",
        "35.00",
        "45.00",
        "+10.0",
        "2 → 1",
    ]
    assert row[6].value == pytest.approx(0.1)
    assert "over examples, significant" in row[6].detail
    text = markdown(drawn_sheet)
    assert "| 35.00 32.9–37.1, 1 seed | 45.00" in text
    assert "2 rows differ (score 1, rank 2)" in text
    assert "Nothing differs between v1 and v2." in markdown(sheet([], "v1", "v2"))


def test_json_is_not_rounded():
    found = to_json(changes(BEFORE, [BEFORE[0], record("local", accuracy=1 / 3)]), "v1", "now")
    (change,) = found["changes"]
    assert change["after"]["accuracy"] == 1 / 3
    assert change["difference"]["value"] == 1 / 3 - 0.35
    assert change["before"]["configuration"] == BEFORE[1].config_hash


def test_since_compares_with_the_newest_snapshot(tmp_path, monkeypatch):
    assert since([tmp_path], BEFORE) is None
    for number, results in enumerate((BEFORE[:1], BEFORE), 1):
        for run in results:
            run.save(tmp_path / "runs")
        monkeypatch.setattr(module.snapshots.datetime, "datetime", clock(number))
        take(f"v{number}", [tmp_path / "runs"], tmp_path)
    assert since([tmp_path], BEFORE).rows == ()
    found = since([tmp_path], BEFORE[:1])
    assert (found.title, len(found.rows)) == ("Changes from v2 to now", 1)


def clock(day):
    """A clock that stands on a day."""
    import datetime

    class Standing(datetime.datetime):
        @classmethod
        def now(cls, zone=None):
            return cls(2026, 1, day, tzinfo=zone)

    return Standing


def test_hashes_of_the_test_records_tell_options_apart():
    assert BEFORE[1].config_hash != config_hash({})
