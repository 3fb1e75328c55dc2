"""Every rule finds the defect it is for, in a record that is clean but for it."""

import base64
import dataclasses
import json
import math
import zlib
from pathlib import Path

import pytest
from longspan.arena.protocols.conformity import recipe

import synthetic
from longspan.arena import get
from longspan.checks import ACROSS, RULES, Fault, check
from longspan.errors import DataError
from longspan.results import Failure, load, pack

COMMITTED = Path(__file__).parents[2] / "results"


@pytest.fixture(scope="module")
def clean():
    """Records of two mechanisms with three seeds on the two tasks of `quick`."""
    return list(synthetic.records("quick", 3, ["local", "linformer"]))


@pytest.fixture
def folder(clean, tmp_path):
    for record in clean:
        record.save(tmp_path)
    return tmp_path


def file_of(folder, mechanism="local", task="listops", seed=0):
    (path,) = folder.glob(f"quick/{task}/{mechanism}-*-{seed}.json")
    return path


def spoil(path, change):
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


def at(value, *way):
    """A change: the value at the end of the way."""

    def change(record):
        for name in way[:-1]:
            record = record[name]
        record[way[-1]] = value(record[way[-1]]) if callable(value) else value

    return change


def without(*way):
    def change(record):
        for name in way[:-1]:
            record = record[name]
        del record[way[-1]]

    return change


def both(*changes):
    def change(record):
        for one in changes:
            one(record)

    return change


def answered(right, asked):
    return at(pack(right, asked), "answers")


def test_clean_records_have_no_findings(folder):
    done = check([folder], [recipe])
    assert (done.records, done.failures, done.findings) == (12, 0, ())


def test_records_of_real_runs_pass(finished):
    done = check([finished], [recipe])
    assert done.records == 2
    assert {(f.severity, f.rule) for f in done.findings} <= {("warning", "provenance")}


def test_the_committed_records_pass_and_old_ones_say_what_they_lack():
    done = check([COMMITTED], [recipe])
    assert done.records >= 41
    assert not done.of("error")
    old = [f for f in done.of("note") if "linformer-13ce25e5fd" in f.file]
    assert {f.field for f in old} >= {"answers", "selected_step", "model.head_dim"}


ERROR, WARNING = "error", "warning"
# the defect, the rule that is for it, the field that it names, and how grave it is
PLANTED = {
    "seed in the file, not in the name": (at(7, "seed"), "place", "file name", ERROR),
    "protocol of another folder": (at("lra-small", "protocol"), "place", "file name", ERROR),
    "a path for a name": (at("../x", "task"), "names", "task", ERROR),
    "a changed option": (at(4, "options", "window"), "configuration", "config_hash", ERROR),
    "a changed rate": (at(1.0, "training", "learning_rate"), "configuration", "config_hash", ERROR),
    "an infinite option": (at(math.inf, "options", "window"), "schema", "the whole file", ERROR),
    "an override of nothing": (
        at({"train.stps": 1}, "overrides"), "departures", "overrides.train.stps", ERROR
    ),
    "an override with another value": (
        at({"training.steps": 1}, "overrides"), "departures", "overrides.training.steps", ERROR
    ),
    "an unknown budget": (at("money", "budget", "kind"), "budget", "budget.kind", ERROR),
    "a budget without limit": (at(None, "budget", "limit"), "schema", "the whole file", ERROR),
    "a budget of nothing": (at(-1, "budget", "limit"), "budget", "budget.limit", ERROR),
    "a budget of several kinds": (
        at(["steps"], "budget", "kind"), "schema", "the whole file", ERROR
    ),
    "a vast step": (at(10**400, "curve", 0, "step"), "schema", "the whole file", ERROR),
    "a vast slice": (
        at(10**300, "slices", "depth", 0, "examples"), "schema", "the whole file", ERROR
    ),
    "a budget of other steps": (at(7, "budget", "limit"), "budget", "budget.limit", ERROR),
    "no commit": (at(None, "git_commit"), "provenance", "git_commit", WARNING),
    "a changed tree": (at("0123-dirty", "git_commit"), "provenance", "git_commit", WARNING),
    "no version of torch": (
        without("versions", "torch"), "provenance", "versions.torch", WARNING
    ),
    "a date to come": (at("2100-01-01T00:00:00+00:00", "date"), "date", "date", ERROR),
    "no date": (at("yesterday", "date"), "date", "date", ERROR),
    "a date of no zone": (at("2026-03-01T12:00:00", "date"), "date", "date", ERROR),
    "several processes that share nothing": (
        at(2, "processes"), "processes", "parallelism", ERROR
    ),
    "no test score": (without("scores", "test"), "splits", "scores.test", ERROR),
    "percent": (at(30.0, "scores", "test", "accuracy"), "ranges", "scores.test.accuracy", ERROR),
    "a rounded score": (
        at(0.30001, "scores", "test", "accuracy"), "ranges", "scores.test.accuracy", ERROR
    ),
    "a negative loss": (at(-1.0, "scores", "test", "loss"), "ranges", "scores.test.loss", ERROR),
    "no examples": (at(0, "scores", "test", "examples"), "ranges", "scores.test.examples", ERROR),
    "no chance": (at(0.0, "chance"), "ranges", "chance", ERROR),
    "far below chance": (
        at(0.0, "scores", "test", "accuracy"), "chance", "scores.test.accuracy", WARNING
    ),
    "some examples left out": (
        both(answered([1, 0], [1, 1]), at(2, "scores", "test", "examples")),
        "counts", "scores.test.examples", ERROR,
    ),
    "validation examples left out": (
        at(250, "scores", "validation", "examples"), "counts", "scores.validation.examples", ERROR
    ),
    "another score": (
        at(lambda x: x + 0.1, "scores", "test", "accuracy"), "answers", "answers", ERROR
    ),
    "no answers": (at(None, "answers"), "answers", "answers", ERROR),
    "torn answers": (at(lambda x: x[:-8], "answers"), "answers", "answers", ERROR),
    "more right than asked": (answered([2, 0], [1, 1]), "answers", "answers", ERROR),
    "a slice twice": (
        at(lambda x: [x[0], *x], "slices", "length"), "slices", "slices.length", ERROR
    ),
    "a better slice": (
        at(1.0, "slices", "depth", 0, "accuracy"), "slices", "slices.depth", ERROR
    ),
    "a worse slice": (
        at(0.0, "slices", "depth", 0, "accuracy"), "slices", "slices.depth", ERROR
    ),
    "a slice of a part of an example": (
        at(0.1234567, "slices", "depth", 0, "accuracy"), "slices", "slices.depth.0 to 99", ERROR
    ),
    "no end": (at(lambda x: x[:-1], "curve"), "curve", "curve", ERROR),
    "no curve": (at([], "curve"), "curve", "curve", ERROR),
    "a hole": (at(lambda x: [x[0], x[2]], "curve"), "curve", "curve", ERROR),
    "turned round": (at(lambda x: [x[1], x[0], x[2]], "curve"), "curve", "curve", ERROR),
    "time going back": (at(1e-6, "curve", 1, "seconds"), "curve", "curve", ERROR),
    "a curve in percent": (
        at(34.0, "curve", 1, "train_accuracy"), "curve", "curve at step 200, train_accuracy", ERROR
    ),
    "a negative rate": (
        at(-1.0, "curve", 0, "learning_rate"), "curve", "curve at step 100, learning_rate", ERROR
    ),
    "fewer steps than planned": (at(299, "steps"), "steps", "steps", ERROR),
    "another rule": (at("last", "selection"), "selection", "selection", ERROR),
    "selected on test": (
        at("best validation (validation is test)", "selection"),
        "selection", "selection", WARNING,
    ),
    "another checkpoint": (at(17, "selected_step"), "selection", "selected_step", ERROR),
    "no checkpoint": (at(None, "selected_step"), "selection", "selected_step", ERROR),
    "better on validation than the curve": (
        at(lambda x: x + 0.1, "scores", "validation", "accuracy"),
        "selection", "scores.validation.accuracy", ERROR,
    ),
    "an example better on validation": (
        at(lambda x: x + 0.002, "scores", "validation", "accuracy"),
        "selection", "scores.validation.accuracy", WARNING,
    ),
    "no time": (at(0.0, "seconds"), "positive", "seconds", ERROR),
    "no memory": (at(0, "peak_memory"), "positive", "peak_memory", ERROR),
    "no parameters": (at(-1, "parameters"), "positive", "parameters", ERROR),
    "longer waiting than training": (at(1e9, "waiting"), "waiting", "waiting", ERROR),
    "seconds of another run": (at(lambda x: 2 * x, "seconds"), "timing", "seconds", ERROR),
    "faster than the data": (
        at(lambda x: 10 * x, "tokens_per_second"), "tokens", "tokens_per_second", ERROR
    ),
    "slower than a token an example": (
        at(1e-3, "tokens_per_second"), "tokens", "tokens_per_second", ERROR
    ),
    "more pairs than there are": (
        at(255**2 + 1, "attended_pairs"), "pairs", "attended_pairs", ERROR
    ),
    "another chance": (at(0.2, "chance"), "same_data", "chance", ERROR),
    "another length": (at(256, "length"), "same_data", "length", ERROR),
    "another majority": (
        at(0.5, "scores", "test", "majority"), "same_data", "scores.test.majority", ERROR
    ),
    "another size": (at(1, "parameters"), "same_model", "parameters", ERROR),
    "another cost": (at(1, "flops"), "same_model", "flops", ERROR),
    "half the tokens": (
        at(lambda x: x / 2, "tokens_per_second"), "drawn", "tokens_per_second", WARNING
    ),
    "an unknown protocol": (at("quik", "protocol"), "recipe", "protocol", ERROR),
    "an unknown mechanism": (at("locl", "mechanism"), "recipe", "mechanism", ERROR),
    "a task of another protocol": (at("image", "task"), "recipe", "task", ERROR),
    "an old task": (at(0, "task_version"), "recipe", "task_version", ERROR),
    "a field of no recipe": (at(1, "model", "depth"), "recipe", "model.depth", ERROR),
    "a missing option": (without("options", "window"), "recipe", "options.window", ERROR),
    "another recipe": (at(64, "training", "batch"), "recipe", "training.batch", ERROR),
    "an override that cannot be": (
        at({"model.layers": "two"}, "overrides"), "recipe", "overrides", ERROR
    ),
    "the chance of another task": (at(0.5, "chance"), "recipe", "chance", ERROR),
}  # fmt: skip


@pytest.mark.parametrize("case", PLANTED)
def test_a_planted_defect_is_found(folder, case):
    change, rule, field, severity = PLANTED[case]
    path = file_of(folder)
    spoil(path, change)
    done = check([folder], [recipe])
    findings = [f for f in done.findings if f.file == str(path)]
    told = [f for f in findings if (f.rule, f.field, f.severity) == (rule, field, severity)]
    assert told, "\n".join(map(str, done.findings))
    found = told[0]
    assert all((found.expected, found.found, found.remedy))
    assert str(found).startswith(f"{path}: {field}: expected ")


def test_every_rule_has_a_planted_defect():
    names = {rule.__name__ for rule in (*RULES, *ACROSS, recipe)}
    elsewhere = {"repeated", "copied"}
    assert {rule for _, rule, _, _ in PLANTED.values()} >= names - elsewhere


def test_defects_of_one_record_are_not_told_of_others(folder):
    spoil(file_of(folder), at(1, "parameters"))
    done = check([folder])
    assert {f.file for f in done.findings} == {str(file_of(folder))}


def test_a_file_elsewhere_is_told_where_it_belongs(folder):
    path = file_of(folder)
    moved = folder / "quick" / "text" / path.name
    path.rename(moved)
    (found,) = check([folder]).findings
    assert (found.rule, found.expected) == ("place", f"quick/listops/{path.name}")
    assert found.found == f"quick/text/{path.name}"


def test_a_backend_that_was_asked_for_by_name_is_in_the_hash(tmp_path):
    made = get("quick").experiment("listops", "local", 0)
    record = synthetic.record(dataclasses.replace(made, backend="torch"))
    assert record.config_hash != made.hash
    record.save(tmp_path)
    assert not check([tmp_path], [recipe]).findings


def test_a_departure_that_is_named_is_no_fault(tmp_path):
    from longspan.arena import override

    made = get("quick").experiment("listops", "local", 0)
    synthetic.record(override(made, {"training.steps": 200, "options.window": 8})).save(tmp_path)
    assert not check([tmp_path], [recipe]).findings


def test_what_a_budget_changed_is_no_departure(tmp_path):
    """Steps and sizes that follow from a budget; the recipe's own are kept under "asked"."""
    from longspan.arena.budget import Budget

    made = get("quick").experiment("listops", "linformer", 0)
    named = dataclasses.replace(made, budget=Budget(kind="memory", limit=1e9))
    train = dataclasses.replace(made.train, steps=200)
    ran = dataclasses.replace(named, options={**made.options, "rank": 128}, train=train)
    asked = {"options.rank": 64, "training.steps": 300}
    record = dataclasses.replace(
        synthetic.record(ran),
        config_hash=named.hash,
        overrides={"budget": "memory=1GB"},
        budget={"kind": "memory", "limit": 1e9, "asked": asked},
    )
    record.save(tmp_path)
    assert not check([tmp_path], [recipe]).findings
    wrong = {"options.rank": 32, "training.steps": 300}
    dataclasses.replace(record, budget={**record.budget, "asked": wrong}).save(tmp_path)
    assert {f.rule for f in check([tmp_path], [recipe]).findings} == {"configuration", "recipe"}


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ({"budget": "flops=300M"}, None),
        ({}, "steps=300, by quick and overrides"),
        ({"budget": "flops=1"}, "flops=1, by quick and overrides"),
        ({"budget": "memory=300000000"}, "memory=300000000, by quick and overrides"),
        ({"budget": "money=1"}, "changes that quick can take"),
    ],
    ids=["as it was", "none", "another limit", "another kind", "an unknown kind"],
)
def test_a_budget_is_the_protocols_or_named(tmp_path, named, expected):
    """Who runs under a budget of his own is not ranked with those who keep to the protocol."""
    from longspan.arena.budget import Budget

    made = get("quick").experiment("listops", "linear", 0)
    made = dataclasses.replace(made, budget=Budget(kind="flops", limit=3e8), overrides=named)
    synthetic.record(made).save(tmp_path)
    found = check([tmp_path], [recipe]).findings
    assert [f.expected for f in found] == ([expected] if expected else [])


def test_a_limit_of_many_digits_is_the_one_that_was_named(tmp_path):
    """Overrides have twelve digits of it."""
    from longspan.arena.budget import Budget

    from longspan.arena import under

    made = get("quick").experiment("listops", "linear", 0)
    synthetic.record(under(made, Budget(kind="flops", limit=123456789012345.0))).save(tmp_path)
    assert not check([tmp_path], [recipe]).findings


def test_a_combination_of_the_recipes_own_grid_is_the_recipe(tmp_path):
    made = get("xiong").experiment("listops", "local", 42)
    train = dataclasses.replace(made.train, learning_rate=3e-4)
    record = synthetic.record(dataclasses.replace(made, train=train))
    tuned = {"chosen": {"training.learning_rate": 3e-4, "seed": 42}}
    dataclasses.replace(record, tuning=tuned).save(tmp_path)
    assert not check([tmp_path], [recipe]).findings
    record.save(tmp_path)
    (found,) = check([tmp_path], [recipe]).findings
    assert (found.rule, found.field) == ("recipe", "training.learning_rate")


def test_an_unnamed_departure_is_found_even_with_its_own_hash(tmp_path):
    """Whoever recomputes the hash has still departed from the recipe."""
    made = get("quick").experiment("listops", "local", 0)
    train = dataclasses.replace(made.train, learning_rate=0.002)
    synthetic.record(dataclasses.replace(made, train=train)).save(tmp_path)
    (found,) = check([tmp_path], [recipe]).findings
    assert (found.rule, found.field) == ("recipe", "training.learning_rate")
    assert (found.expected, found.found) == ("0.001, as quick has it", "0.002")


def test_a_copied_record_is_found(folder):
    """Another seed is written over a record, with the name to go with it."""
    path = file_of(folder)
    record = dataclasses.replace(load(path), seed=9)
    copy = record.save(folder)
    done = check([folder], [recipe])
    assert {(f.rule, f.severity) for f in done.findings} == {("copied", ERROR)}
    assert {str(path), str(copy)} == {
        done.findings[0].file,
        done.findings[0].found.removeprefix("exactly those of "),
    }


def test_a_copy_under_another_mechanism_is_found(folder, clean):
    record = next(r for r in clean if r.mechanism == "local" and r.seed == 0)
    dataclasses.replace(record, mechanism="linformer", seed=9).save(folder)
    assert "copied" in {f.rule for f in check([folder]).findings}


@pytest.mark.parametrize(
    ("change", "severity"),
    [
        ({}, WARNING),  # a run of its own, of the same size and cost
        ({"seconds": 0.0}, ERROR),
        ({"seed": 1}, ERROR),
        ({"parameters": 1}, ERROR),
        ({"flops": 1}, ERROR),
    ],
)
def test_mechanisms_that_do_the_same_are_told_apart_from_copies(folder, clean, change, severity):
    """longformer without a global token is local."""
    record = next(r for r in clean if r.mechanism == "local" and r.seed == 0)
    moved = {name: getattr(record, name) + by for name, by in {"seconds": 1.0, **change}.items()}
    dataclasses.replace(record, mechanism="longformer", **moved).save(folder)
    found = [f for f in check([folder]).findings if f.rule == "copied"]
    assert {f.severity for f in found} == {severity}
    assert all(("do the same here" in f.remedy) == (severity == WARNING) for f in found)


def test_one_recipe_under_two_budgets_is_no_copy(folder):
    """A mechanism without a size runs the same steps; so do two protocols that share a recipe."""
    from longspan.arena.budget import Budget

    from longspan.arena import under

    made = get("quick").experiment("listops", "full", 0)
    there = synthetic.record(made)
    there.save(folder)
    synthetic.record(under(made, Budget(kind="memory", limit=2.0**30))).save(folder)
    synthetic.record(dataclasses.replace(made, backend="torch")).save(folder)
    dataclasses.replace(there, protocol="lra-small").save(folder)
    assert not check([folder]).findings


def test_a_copied_record_with_other_losses_is_suspected(folder):
    """Two mechanisms may find one rule, so equal answers alone are no proof."""
    record = load(file_of(folder))
    other = load(file_of(folder, "linformer"))
    score = dataclasses.replace(record.scores["test"], loss=1.2345)
    mixed = dataclasses.replace(
        other, answers=record.answers, scores={**other.scores, "test": score}, slices={}
    )
    mixed.save(folder)
    done = check([folder], [recipe])
    assert {(f.rule, f.severity, f.field) for f in done.findings} == {
        ("copied", WARNING, "answers")
    }
    assert all("found one rule" in fault.remedy for fault in done.findings)


def test_answers_of_the_majority_class_may_be_equal(folder):
    for mechanism, loss in (("local", 0.7001), ("linformer", 0.7002)):
        record = load(file_of(folder, mechanism, "text"))
        test = record.scores["test"]
        right = round(test.majority * test.examples)
        score = dataclasses.replace(test, accuracy=test.majority, loss=loss)
        answers = pack([1] * right + [0] * (test.examples - right), [1] * test.examples)
        scores = {**record.scores, "test": score}
        dataclasses.replace(record, answers=answers, scores=scores, slices={}).save(folder)
    assert not check([folder], [recipe]).findings


def test_a_run_recorded_twice_is_told(folder, tmp_path_factory):
    again = tmp_path_factory.mktemp("again")
    load(file_of(folder)).save(again)
    (found,) = [f for f in check([folder, again]).findings if f.rule == "repeated"]
    assert found.severity == WARNING
    assert found.file.startswith(str(again))
    assert str(file_of(folder)) in found.found


def test_a_file_named_twice_is_checked_once(folder):
    done = check([folder, file_of(folder), folder / "quick" / "listops"])
    assert (done.records, done.findings) == (12, ())


JUNK = {
    "empty": b"",
    "torn": b'{"schema": 3, "protocol": "qui',
    "foreign": b'{"name": "somebody else\'s"}',
    "list": b"[1, 2]",
    "bytes": bytes(range(128, 256)),
    "deep": b"[" * 100_000,
    "digits": b"1" * 10_000,
    "not a number": b'{"schema": NaN}',
    "schema of tomorrow": b'{"schema": 99}',
    "schema of no kind": b'{"schema": [3]}',
}


@pytest.mark.parametrize("case", JUNK)
def test_what_is_no_record_is_named_and_the_others_are_checked(folder, case):
    path = folder / "quick" / "listops" / "junk-0123456789-0.json"
    path.write_bytes(JUNK[case])
    done = check([folder], [recipe])
    assert done.records == 12
    (found,) = done.findings
    assert (found.file, found.rule, found.severity) == (str(path), "schema", ERROR)
    assert found.remedy


def test_a_half_written_record_is_named(folder):
    """Cut anywhere, it is refused, and no cut is taken for a whole record."""
    path = file_of(folder)
    content = path.read_bytes()
    for share in (0.001, 0.3, 0.7, 0.999):
        path.write_bytes(content[: int(len(content) * share)])
        (found,) = check([folder]).findings
        assert (found.file, found.rule) == (str(path), "schema")


WAYS = [("scores", "test", "examples"), ("length",), ("steps",), ("seed",), ("training", "batch")]


@pytest.mark.parametrize(
    "number", [10**400, -(10**400), 10**308], ids=["vast", "negative", "large"]
)
@pytest.mark.parametrize("way", WAYS, ids=".".join)
def test_numbers_of_no_run_are_found_and_stop_nothing(folder, way, number):
    spoil(file_of(folder), at(number, *way))
    done = check([folder], [recipe])
    assert done.of(ERROR)
    assert {f.file for f in done.of(ERROR)} == {str(file_of(folder))}


def test_a_line_of_text_does_not_fill_the_memory(folder):
    bomb = base64.b64encode(zlib.compress(b"\0" * (2**26 + 2), 1)).decode()
    spoil(file_of(folder), at(bomb, "answers"))
    found = [f for f in check([folder]).findings if f.rule == "answers"]
    assert "more than 67,108,864 bytes" in found[0].found


def test_a_finding_says_nothing_to_the_terminal_but_itself(folder):
    spoil(file_of(folder), at("\x1b[2Jquick\ud800", "protocol"))
    done = check([folder], [recipe])
    assert done.of(ERROR)
    assert all(str(finding).isprintable() for finding in done.findings)


def test_records_of_failures_are_checked_too(folder, clean):
    names = {field.name for field in dataclasses.fields(Failure)}
    shared = {name: value for name, value in vars(clean[0]).items() if name in names}
    failure = Failure(
        **{**shared, "schema": 3}, kind="memory", reason="needs more than there is", step=3
    )
    path = failure.save(folder)
    done = check([folder])
    assert (done.records, done.failures, done.findings) == (12, 1, ())
    path.rename(path.with_name("x.failed.json"))
    assert [f.rule for f in check([folder]).findings] == ["place"]


def test_absent_and_empty_folders_are_refused(tmp_path):
    with pytest.raises(DataError, match="absent does not exist; give record files"):
        check([tmp_path / "absent"])
    with pytest.raises(DataError, match="holds no records; give record files"):
        check([tmp_path])


def test_a_fault_is_an_error_unless_it_says_otherwise():
    assert Fault(field="a", expected="b", found="c", remedy="d").severity == ERROR
