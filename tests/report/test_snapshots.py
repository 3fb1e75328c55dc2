"""A snapshot names what was there, byte by byte, and is never made anew with other content."""

import dataclasses
import hashlib
import json
import os

import pytest
from report_records import failure
from report_records import record as run_of

import synthetic
from longspan.errors import DataError, OptionError, RunError
from longspan.report.snapshots import below, place, read, take
from longspan.results import load_all, load_failures


@pytest.fixture(scope="module")
def drawn():
    return list(synthetic.records("quick", 2, ["local", "full"]))


@pytest.fixture
def runs(drawn, tmp_path):
    for record in drawn:
        record.save(tmp_path / "runs")
    return tmp_path / "runs"


def files(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_records_are_copied_and_named_with_their_bytes(runs, tmp_path, drawn):
    made, new = take("v1", [runs], tmp_path / "results")
    assert new
    assert read(place(tmp_path / "results", "v1")) == made
    assert {one.path for one in made.records} == {str(p) for p in files(runs)}
    for one in made.records:
        content = (tmp_path / "results" / one.path).read_bytes()
        assert content == (runs / one.path).read_bytes()
        assert hashlib.sha256(content).hexdigest() == one.sha256
    bare = [dataclasses.replace(record, curve=[]) for record in load_all([runs])]
    assert made.results == bare
    # the folder of versions holds no records to report
    assert load_all([tmp_path / "results"]) == load_all([runs])


def test_the_page_beside_it_has_the_leaderboards(runs, tmp_path):
    take("v1", [runs], tmp_path / "results")
    page = place(tmp_path / "results", "v1").with_suffix(".md").read_text()
    assert "# Results, version v1" in page
    assert all(word in page for word in ("### Leaderboard of quick", "| full ", "8 records"))


def test_the_same_again_changes_nothing(runs, tmp_path):
    first, _ = take("v1", [runs], tmp_path / "results")
    before = files(tmp_path / "results")
    assert take("v1", [runs], tmp_path / "results") == (first, False)
    # also from where the records lie now
    assert take("v1", [tmp_path / "results"], tmp_path / "results") == (first, False)
    assert files(tmp_path / "results") == before


def test_other_content_under_the_same_name_is_refused(runs, tmp_path, drawn):
    take("v1", [runs], tmp_path / "results")
    before = files(tmp_path / "results")
    dataclasses.replace(drawn[0], seed=7).save(runs)
    (runs / "quick" / "text" / drawn[-1].filename).unlink()
    with pytest.raises(OptionError, match=r"v1 is there since .* \(1 new, 1 gone, 0 changed\)"):
        take("v1", [runs], tmp_path / "results")
    assert files(tmp_path / "results") == before
    assert take("v2", [runs], tmp_path / "results")[1]
    assert [version.version for version in below(tmp_path / "results")] == ["v1", "v2"]


def test_a_record_is_not_written_over(runs, tmp_path, drawn):
    take("v1", [runs], tmp_path / "results")
    dataclasses.replace(drawn[0], seconds=1.5).save(runs)
    dataclasses.replace(drawn[1], seed=7).save(runs)
    before = files(tmp_path / "results")
    with pytest.raises(RunError, match=r"is another record of the same run as .*remove it first"):
        take("v2", [runs], tmp_path / "results")
    assert files(tmp_path / "results") == before
    (tmp_path / "results" / "quick" / drawn[0].task / drawn[0].filename).unlink()
    made, _ = take("v2", [runs], tmp_path / "results")
    assert 1.5 in [record.seconds for record in made.results]
    # and the first version says what it said
    assert 1.5 not in [r.seconds for r in read(place(tmp_path / "results", "v1")).results]


def test_a_refused_snapshot_copies_nothing(runs, tmp_path, drawn):
    """The record in the way is the last of them."""
    last = max(drawn, key=lambda record: (record.task, record.filename))
    dataclasses.replace(last, seconds=1.5).save(tmp_path / "results")
    before = files(tmp_path / "results")
    with pytest.raises(RunError, match="is another record of the same run"):
        take("v1", [runs], tmp_path / "results")
    assert files(tmp_path / "results") == before


def test_failures_are_kept_and_leave_the_hole_that_the_page_shows(runs, tmp_path, drawn):
    lost = failure("local", "text", seed=9, protocol="quick", config_hash=drawn[0].config_hash)
    lost.save(runs)
    ended = failure("full", "text", seed=8, protocol="quick")
    ended.save(tmp_path / "more")
    since = run_of("full", "text", seed=8, protocol="quick", config_hash=ended.config_hash)
    since.save(tmp_path / "more" / "again")
    made, _ = take("v1", [runs, tmp_path / "more"], tmp_path / "results")
    assert [one.record for one in made.failures] == [lost]
    assert read(place(tmp_path / "results", "v1")) == made
    assert load_failures([tmp_path / "results"]) == [lost]
    (shown,) = [row for row in made.tables[0].rows if row.mechanism == "local"]
    assert shown.mean is None
    page = place(tmp_path / "results", "v1").with_suffix(".md").read_text()
    assert "9 records and 1 failures" in page
    assert "| memory 1 of 3 seeds |" in page
    assert take("v1", [tmp_path / "results"], tmp_path / "results") == (made, False)


def test_snapshots_without_failures_are_read(runs, tmp_path):
    made, _ = take("v1", [runs], tmp_path)
    path = place(tmp_path, "v1")
    found = json.loads(path.read_text())
    del found["failures"]
    path.write_text(json.dumps({**found, "snapshot": 1}))
    assert read(path) == made


def test_files_are_as_readable_as_the_user_has_it(runs, tmp_path):
    before = os.umask(0o077)
    try:
        take("v1", [runs], tmp_path / "results")
    finally:
        os.umask(before)
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "results").rglob("*.*")}
    assert modes == {0o600}


def test_of_two_records_of_a_run_the_newer_is_frozen(runs, tmp_path, drawn):
    newer = dataclasses.replace(drawn[0], date="2026-09-01T00:00:00+00:00")
    newer.save(tmp_path / "more")
    made, _ = take("v1", [runs, tmp_path / "more"], tmp_path / "results")
    assert len(made.records) == len(drawn)
    assert newer.date in [record.date for record in made.results]


@pytest.mark.parametrize("name", ["", "../v1", "a/b", ".v1", "now", "v 1"])
def test_a_version_is_the_name_of_a_file(runs, tmp_path, name):
    with pytest.raises(OptionError, match="a snapshot is named by letters"):
        take(name, [runs], tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_a_foreign_record_is_not_copied_elsewhere(runs, tmp_path, drawn):
    path = runs / "quick" / drawn[0].task / drawn[0].filename
    path.write_text(path.read_text().replace('"protocol": "quick"', '"protocol": "../../x"'))
    with pytest.raises(DataError, match="cannot be the name of a folder"):
        take("v1", [runs], tmp_path / "a" / "b" / "results")
    assert not (tmp_path / "a").exists()


BROKEN = {
    "torn": lambda found: json.dumps(found)[:-5],
    "foreign": lambda found: "{}",
    "later": lambda found: json.dumps({**found, "snapshot": 3}),
    "no list": lambda found: json.dumps({**found, "records": 3}),
    "no path": lambda found: json.dumps({**found, "records": [{"sha256": "x"}]}),
    "no record": lambda found: json.dumps(
        {**found, "records": [{"path": "x", "sha256": "x", "record": {}}]}
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_snapshot_is_refused_by_name(runs, tmp_path, case):
    take("v1", [runs], tmp_path)
    path = place(tmp_path, "v1")
    path.write_text(BROKEN[case](json.loads(path.read_text())))
    with pytest.raises(DataError, match=r"v1\.json"):
        below(tmp_path)
