"""Contributions to a leaderboard: each missing part is an error with the command that makes it."""

import dataclasses
import hashlib

import pytest
from counted_records import with_counts

import synthetic
from longspan.results import SourceFile
from longspan.validation import validate_contribution

COMMIT = "523f72dcf0a6"


@pytest.fixture(scope="module")
def records():
    """Return records of a mechanism and of the baseline, with three seeds on one task."""
    made = (with_counts(x) for x in synthetic.records("smoke", 3, ["full", "local"]))
    return [dataclasses.replace(x, git_commit=COMMIT) for x in made if x.task == "listops"]


def errors_of(records, folder):
    """Return the errors of a folder with some records, in addition to those of `check`."""
    for record in records:
        record.save(folder)
    return [str(x).split(": ", 1)[1] for x in validate_contribution(folder).of("error")]


def changed(records, index, **fields):
    return [dataclasses.replace(x, **fields) if i == index else x for i, x in enumerate(records)]


def test_complete_contribution_has_no_errors(records, tmp_path):
    assert errors_of(records, tmp_path) == []


def test_missing_seeds_and_baselines_name_the_command(records, tmp_path):
    kept = [x for x in records if x.mechanism == "local" or x.seed == 0]
    (message,) = errors_of([x for x in kept if x.seed < 3], tmp_path / "a")[-1:]
    assert message == (
        "seed: expected records of full with the same seeds, found no seeds 1, 2; run "
        "`longspan arena --protocol smoke --tasks listops --mechanisms full --seeds 1,2`"
    )
    messages = errors_of([x for x in records if x.seed < 2], tmp_path / "b")
    assert messages == [
        f"seed: expected 3 seeds of {row}, found seeds 0, 1; run "
        f"`longspan arena --protocol smoke --tasks listops --mechanisms {row} --seeds 0,1,2`"
        for row in ("full", "local")
    ]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"example_scores": None}, "example_scores: expected the score of each test example"),
        ({"git_commit": f"{COMMIT}-dirty"}, "git_commit: expected a commit without changes"),
        ({"git_commit": None}, "git_commit: expected a commit without changes, found none"),
        (
            {"source_files": {"mechanism": SourceFile(name="mine.py", sha256="0" * 64)}},
            "source_files.mechanism: expected a file of the folder, found mine.py 00000000",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_had_again_is_an_error(records, tmp_path, fields, expected):
    assert any(x.startswith(expected) for x in errors_of(changed(records, 0, **fields), tmp_path))


def test_file_of_a_mechanism_belongs_to_the_folder(records, tmp_path):
    (tmp_path / "mine.py").write_text("WIDTH = 1\n")
    digest = hashlib.sha256(b"WIDTH = 1\n").hexdigest()
    files = {"mechanism": SourceFile(name="mine.py", sha256=digest)}
    assert errors_of(changed(records, 0, source_files=files), tmp_path) == []


def test_changed_recipe_is_an_error(records, tmp_path):
    overrides = {"training.steps": records[0].config.training.steps}
    (message, *_) = errors_of(changed(records, 0, overrides=overrides), tmp_path)
    assert "training.steps" in message


def test_damaged_record_is_named_once(records, tmp_path):
    errors_of(records, tmp_path)
    path = next(tmp_path.rglob("*.json"))
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 7', 1))
    damaged = [x for x in validate_contribution(tmp_path).of("error") if x.file == str(path)]
    assert [x.field for x in damaged] == ["the whole file"]


def test_command_refuses_paths_beside_a_contribution(cli, tmp_path):
    code, _, message = cli("results", "check", "results", "--contribution", tmp_path)
    assert code
    assert "--contribution checks its own folder, got results" in message
