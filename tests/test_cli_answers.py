"""`longspan answers`: refusals."""

import pytest

from test_cli_errors import check_rejected


@pytest.fixture
def record(finished):
    """Return the record of a run on a task without questions."""
    return next((finished / "smoke" / "listops").glob("local-*.json"))


def test_a_task_without_questions_is_refused(cli, record, tiny_cache, tmp_path):
    output = tmp_path / "answers.json"
    arguments = ["--output", output, "--cache", tiny_cache, "--device", "cpu"]
    check_rejected(cli("answers", record, *arguments), "listops, which asks no questions")
    check_rejected(cli("answers", record, *arguments, "--split", "tst"), "did you mean test")
    check_rejected(cli("answers", record, *arguments, "--batch-size", "0"), "at least 1, got 0")
    assert not output.exists()
