"""Logs of Every Eval Ever against a transcription of its schema, version 0.2.2."""

import dataclasses
import json

import jsonschema
import pytest

import synthetic
from longspan.publishing import evaluation_log, export_evaluation_logs

TEXT, NUMBER, TEXTS = (
    {"type": "string"},
    {"type": "number"},
    {"additionalProperties": {"type": "string"}},
)


def table(required, closed=False, **properties):
    return {
        "type": "object",
        "required": required.split(),
        "properties": properties,
        "additionalProperties": not closed,
    }


# Required fields and types, from every_eval_ever/schemas/eval.schema.json of its repository.
SCHEMA = table(
    "schema_version evaluation_id retrieved_timestamp source_metadata model_info eval_library "
    "evaluation_results",
    closed=True,
    schema_version={"const": "0.2.2"},
    evaluation_id=TEXT,
    evaluation_timestamp=TEXT,
    retrieved_timestamp={"type": "string", "pattern": r"^\d+(\.\d+)?$"},
    source_metadata=table(
        "source_type source_organization_name evaluator_relationship",
        source_type={"enum": ["documentation", "evaluation_run"]},
        evaluator_relationship={"enum": ["first_party", "third_party", "collaborative", "other"]},
    ),
    eval_library=table("name version", name=TEXT, version=TEXT),
    model_info=table("name id", name=TEXT, id=TEXT, developer=TEXT, additional_details=TEXTS),
    evaluation_results={
        "type": "array",
        "items": table(
            "evaluation_name source_data metric_config score_details",
            evaluation_name=TEXT,
            source_data=table("dataset_name source_type", source_type={"const": "other"}),
            metric_config={
                **table("lower_is_better", lower_is_better={"type": "boolean"}),
                "if": {
                    "required": ["score_type"],
                    "properties": {"score_type": {"const": "continuous"}},
                },
                "then": {"required": ["min_score", "max_score"]},
            },
            score_details=table(
                "score",
                score=NUMBER,
                details=TEXTS,
                uncertainty=table("", num_samples={"type": "integer"}),
            ),
        ),
    },
)


@pytest.fixture(scope="module")
def records():
    return list(synthetic.records("smoke", 1, ["full", "local"]))


def test_logs_follow_the_schema_and_hold_the_scores(records):
    for record in records:
        log = evaluation_log(record)
        jsonschema.validate(json.loads(json.dumps(log)), SCHEMA)
        scores = {
            x["metric_config"]["metric_id"]: x["score_details"]["score"]
            for x in log["evaluation_results"]
        }
        assert scores == record.scores["test"].metrics
        details = log["model_info"]["additional_details"]
        assert json.loads(details["training.steps"]) == record.config.training.steps
        assert json.loads(details["seed"]) == record.seed


def test_runs_that_override_the_protocol_are_models_of_their_own(records):
    one = records[0]
    changed = dataclasses.replace(one, overrides={"model.num_hidden_layers": 0}, config_hash="abc")
    row = dataclasses.replace(one, overrides={"variant": "full-64"})
    ids = [evaluation_log(x)["model_info"]["id"] for x in (one, changed, row)]
    assert ids == ["longspan/smoke-full", "longspan/smoke-full-abc", "longspan/smoke-full-64"]


def test_a_record_has_one_path(records, tmp_path):
    paths = export_evaluation_logs(records, tmp_path)
    assert len(set(paths)) == len(records) == len(list(tmp_path.rglob("*.json")))
    assert export_evaluation_logs(records, tmp_path) == paths
    assert {x.parent.relative_to(tmp_path).parts for x in paths} == {
        ("data", "longspan-smoke", "longspan", row) for row in ("full", "local")
    }


def test_command_writes_logs(cli, records, tmp_path):
    for record in records:
        record.save(tmp_path / "records")
    _, out, _ = cli("results", "export", tmp_path / "records", "--output", tmp_path / "logs")
    assert f"{len(records)} logs in" in out
