"""What differs between two versions is told with its kind, and whether it is more than chance."""

import dataclasses
import math
import random

import numpy as np
import pytest
from longspan.report.render import markdown
from report_records import failure, record, scores

from longspan.report import changes as module
from longspan.report.changes import sheet, to_json
from longspan.report.differences import difference
from longspan.report.snapshots import take
from longspan.report.statistics import student
from longspan.report.tables import leaderboards
from longspan.results import pack


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


def tables(results, failures=()):
    return leaderboards(results, failures) if results or failures else []


def changes(before, after, lost=((), ())):
    return module.changes(tables(before, lost[0]), tables(after, lost[1]))


def since(folders, results):
    return module.since(folders, tables(results))


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
    found = changes(BEFORE, [BEFORE[0], record("local", accuracy=0.45)])
    assert [(x.mechanism, x.kinds) for x in found] == [("full", ("rank",)), ("local", ("score",))]
    assert (found[0].before.rank, found[0].after.rank) == (1, 2)
    assert found[1].difference.value == pytest.approx(0.10)


def test_a_changed_configuration_is_one_row_with_its_fields():
    training = {"steps": 600, "batch": 32, "learning_rate": 1e-4}
    other = record("local", accuracy=0.35, training=training, options={"window": 8})
    found = one(BEFORE, [BEFORE[0], other])
    assert found.kinds == ("configuration",)
    assert {field.name: (field.before, field.after) for field in found.fields} == {
        "options.block": (64, None),
        "options.heads": (4, None),
        "options.window": (None, 8),
        "training.steps": (500, 600),
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
    departed = record("local", accuracy=0.30, overrides={"training.steps": 9})
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
    # against the binomial by hand: all of the 20 that differ are for the better
    assert (paired.over, paired.p) == ("examples", pytest.approx(2**-20))
    assert (apart.over, apart.significant) == ("examples", False)


@pytest.mark.parametrize("seeds", [3, 5])
def test_versions_of_equal_skill_differ_as_seldom_as_they_say(seeds):
    """Each version has examples that it finds hard of its own: Welch over seeds errs in 1 of 6."""
    source, versions, hits = np.random.default_rng(seeds), 100, 0
    for _ in range(versions):
        sides = []
        for _ in range(2):
            easy = np.clip(source.normal(0.35, 0.3, 400), 0.05, 0.95)
            right = source.random((seeds, 400)) < easy
            runs = [record("local", seed=i) for i in range(seeds)]
            sides.append([answered(x, list(map(int, y))) for x, y in zip(runs, right, strict=True)])
        found = difference(*sides)
        assert found.over == "seeds and examples"
        hits += found.significant
    assert hits / versions <= 0.10


def test_several_seeds_without_answers_are_compared_by_welch():
    """Of equal variances and numbers the freedom is 3 + 3 - 2."""
    a = [record("local", accuracy=x, seed=i) for i, x in enumerate((0.30, 0.32, 0.34))]
    b = [record("local", accuracy=x, seed=i) for i, x in enumerate((0.35, 0.37, 0.39))]
    gap = difference(a, b)
    assert gap.over == "seeds"
    assert gap.value == pytest.approx(0.05)
    assert student(4, 1 - gap.p) == pytest.approx(0.05 / math.sqrt(2 * 0.0004 / 3), rel=1e-5)
    assert gap.significant
    assert not difference(a, [*b[:2], record("local", accuracy=0.30, seed=2)]).significant


def test_seeds_that_do_not_vary_give_no_verdict():
    a, b = ([record("local", accuracy=x, seed=i) for i in (0, 1)] for x in (0.35, 0.3505))
    gap = difference(a, b)
    assert (gap.value, gap.p, gap.significant) == (pytest.approx(0.0005), None, None)


def test_a_record_in_both_versions_is_not_compared_with_itself():
    runs = [record("local", accuracy=0.30 + 0.02 * i, seed=i) for i in range(4)]
    gap = difference(runs[:3], [dataclasses.replace(run, curve=[]) for run in runs])
    assert (gap.value, gap.p) == (pytest.approx(0.01), None)
    (row,) = sheet(changes(runs[:3], runs), "v1", "v2").rows
    assert (row[6].shown, row[6].detail) == ("+1.0", "")


def test_rows_with_several_questions_weigh_as_many():
    run = BEFORE[1]
    a = dataclasses.replace(run, answers=pack([3, 0], [3, 1]))
    b = dataclasses.replace(run, answers=pack([3, 1], [3, 1]))
    test = dataclasses.replace(run.scores["test"], examples=4)
    scores = [{"test": dataclasses.replace(test, accuracy=x)} for x in (0.75, 1.0)]
    a, b = (dataclasses.replace(r, scores=s) for r, s in zip((a, b), scores, strict=True))
    gap = difference([a], [b])
    assert gap.value == 0.25
    # Of 3 and 1 questions 0 and 1 more are right: less 0.25 a question, 0.75 apart from it each.
    error = math.sqrt(2 * 0.75**2) / 4
    assert gap.p == pytest.approx(math.erfc(0.25 / error / math.sqrt(2)), rel=1e-6)


def test_rows_under_a_budget_are_compared_with_those_under_the_same():
    timed = {"kind": "seconds", "limit": 600.0}
    steps, held = record("local"), record("local", budget=timed, config_hash="t")
    assert [x.kinds for x in changes([steps], [held])] == [("gone",), ("new",)]
    found = changes(
        [steps, held],
        [
            record("local", accuracy=0.6),
            record("local", accuracy=0.2, budget=timed, config_hash="t"),
        ],
    )
    assert [x.budget for x in found] == [None, "training time (10 min)"]
    told = [row[0].shown for row in sheet(found, "v1", "v2").rows]
    assert told == ["lra-small", "lra-small, equal training time (10 min)"]
    assert [x["budget"] for x in to_json(found, "v1", "v2")["changes"]] == [x.budget for x in found]


def test_rows_of_one_mechanism_are_told_apart():
    runs = [record("local"), record("local", overrides={"training.steps": 9})]
    found = changes(runs, [dataclasses.replace(run, scores=scores(0.5, 0.1)) for run in runs])
    labels = ["local", "local (training.steps=9)"]
    assert sorted(row[2].shown for row in sheet(found, "v1", "v2").rows) == labels
    assert sorted(x["label"] for x in to_json(found, "v1", "v2")["changes"]) == labels


def test_what_was_measured_is_no_configuration():
    """Under a budget of time the steps differ from day to day, and the recipe does not."""
    facts = [(500, 1.0), (450, 1.1)]
    before, after = (
        record(
            "local",
            training={"steps": steps, "batch": 32},
            budget={
                **{"kind": "seconds", "limit": 600.0, "steps": steps, "seconds_per_step": seconds},
                "asked": {"training.steps": 700},
            },
        )
        for steps, seconds in facts
    )
    assert changes([before], [after]) == []
    other = dataclasses.replace(after, config_hash="x", options={"block": 1, "heads": 4})
    (found,) = changes([before], [other])
    assert [field.name for field in found.fields] == ["options.block"]


def test_a_failure_leaves_no_score_and_is_told():
    runs = [record("local", seed=seed, accuracy=0.35 + 0.01 * seed) for seed in (0, 1)]
    (found,) = changes(runs, runs, ((), [failure("local", seed=2)]))
    assert (found.kinds, found.after.accuracy, found.difference) == (("score", "rank"), None, None)
    (row,) = sheet([found], "v1", "now").rows
    assert (row[4].shown, row[5].shown) == ("35.50", "memory")
    # and of a row that has nothing else
    (found,) = changes([], [], ([failure("local")], ()))
    assert (found.kinds, found.before.first.seed) == (("gone",), 2)
    assert to_json([found], "v1", "v2")["changes"][0]["before"]["failures"] == [
        {"seed": 2, "kind": "memory"}
    ]


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
        "score",
        "35.00",
        "45.00",
        "+10.0",
        "1",
    ]
    assert row[6].value == pytest.approx(0.1)
    assert "p < 0.001 over examples, significant" in row[6].detail
    text = markdown(drawn_sheet)
    assert "| 35.00 32.9–37.1, 1 seed | 45.00" in text
    assert "2 rows differ (score 1, rank 1)" in text
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
    assert BEFORE[1].config_hash != record("local", options={"window": 8}).config_hash
