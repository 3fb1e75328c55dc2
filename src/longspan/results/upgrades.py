"""Upgrades of records written under older schemas, one function for each step.

Values that an older schema did not record are None or empty.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from longspan.config import (
    Budget,
    MechanismConfig,
    ModelConfig,
    RunConfig,
    TaskConfig,
    TrainingConfig,
)

Content = dict[str, Any]

# Names of schema 3, and those of schema 4.
MODEL_FIELDS = {
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "head_dim": "attention_head_size",
    "feed_forward": "intermediate_size",
    "classifier": "classifier_hidden_size",
    "dropout": "hidden_dropout_prob",
    "initializer": "initializer_range",
}
TRAINING_FIELDS = {
    "batch": "batch_size",
    "warmup": "warmup_steps",
    "betas": "adam_betas",
    "epsilon": "adam_epsilon",
    "clip": "max_grad_norm",
    "accumulate": "gradient_accumulation_steps",
    "evaluation_batch": "eval_batch_size",
}
MECHANISM_OPTIONS: dict[str, dict[str, str]] = {
    "bigbird": {"random": "num_random_blocks", "globals": "global_blocks"},
    "compressive": {"compressed": "compressed_memory", "through": "backprop_through_memory"},
    "long_short": {"convolution": "conv_kernel_size"},
    "nystrom": {"convolution": "conv_kernel_size"},
    "performer": {"map": "feature_map"},
    "position_infused": {"through": "backprop_through_memory"},
    "reformer": {"rounds": "hashes"},
    "sparse_transformer": {"heads_use": "head_patterns"},
    "transformer_xl": {"through": "backprop_through_memory"},
}
TASK_OPTIONS: dict[str, dict[str, str]] = {"image": {"grey": "grayscale"}}
# British spelling in the values of synthesizer's option `scores`, and the American one.
RESPELLED = ("factorised", "factorized")
MEASUREMENTS = {
    "flops_per_step": "flops_per_step",
    "seconds_per_step": "seconds_per_step",
    "bytes": "bytes",
    "searched": "candidates",
}
PARTS = {"train": "training", "options": "mechanism", "model": "model", "task": "task"}


def upgrade(content: Content) -> Content:
    """Return the content of a record under the newest schema."""
    while step := UPGRADES.get(content["schema"]):
        content = step(content)
    return content


def _from_1(content: Content) -> Content:
    """Schema 2 added the time spent waiting for data."""
    return {"waiting": None, **content, "schema": 2}


def _from_2(content: Content) -> Content:
    """Schema 3 added budgets, searches, per-example scores, slices, alarms and parallelism."""
    absent = dict.fromkeys(("full_parameters", "tuning", "selected_step", "answers"))
    single = {"processes": 1, "parallelism": "none"}
    budget = {"kind": "steps", "limit": content.get("steps")}
    empty = {"slices": {}, "alarms": [], "budget": budget}
    return {**absent, **single, **empty, **content, "schema": 3}


def _from_3(content: Content) -> Content:
    """Schema 4 stores one configuration tree, and metrics by name in place of accuracy."""
    budget = dict(content["budget"])
    requested = budget.pop("asked", {})
    config = _config(content, requested, budget)
    record = {
        "protocol": content["protocol"],
        "config": dataclasses.asdict(config),
        "overrides": _dotted(content["overrides"], content["task"], content["mechanism"]),
        "seed": content["seed"],
        "config_hash": config.hash,
        **{name: content[name] for name in ("device", "versions", "git_commit", "date")},
        "schema": 4,
    }
    if "scores" not in content:
        return {**record, **{name: content[name] for name in ("kind", "reason", "step")}}
    return {**record, **_outcome(content, requested, budget)}


def _from_4(content: Content) -> Content:
    """Schema 5 added inference, training scores, families, external sources and checksums."""
    absent: Content = {"external_sources": None}
    if "scores" in content:
        absent |= {"family": None, "inference": None}
    return {**absent, **content, "schema": 5}


def _from_5(content: Content) -> Content:
    """Schema 6 added rules, names of source files, and files that differ from the commit."""
    content = dict(content)
    external = content.pop("external_sources")
    sources = external and {
        part: {"name": None, "sha256": digest} for part, digest in external.items()
    }
    absent: Content = {"source_files": sources, "changed_files": None, "added_files": None}
    if "scores" in content:
        absent |= {"rules": None}
    return {**absent, **content, "schema": 6}


def _config(content: Content, requested: Content, budget: Content) -> RunConfig:
    """Return the requested configuration: the recorded one before its budget changed it."""
    recorded = {"options": dict(content["options"]), "train": dict(content["training"])}
    for name, value in requested.items():
        part, _, field = name.partition(".")
        recorded[part][field] = value
    mechanism, kind = content["mechanism"], budget["kind"]
    options = _mechanism_options(mechanism, recorded["options"])
    return RunConfig(
        task=TaskConfig(
            name=content["task"],
            version=content["task_version"],
            options=_renamed(content["task_options"], TASK_OPTIONS.get(content["task"], {})),
        ),
        # The requested backend was not recorded.
        mechanism=MechanismConfig(name=mechanism, options=options),
        model=ModelConfig(**_renamed(content["model"], MODEL_FIELDS)),
        training=TrainingConfig(**_renamed(recorded["train"], TRAINING_FIELDS)),
        budget=Budget(kind=kind, limit=None if kind == "steps" else budget["limit"]),
    )


def _outcome(content: Content, requested: Content, budget: Content) -> Content:
    """Return the fields of a result that a failure lacks."""
    same = (
        *("data_source", "data_checksum", "chance", "selected_step", "flops", "attended_pairs"),
        *("length", "alarms", "steps", "seconds", "tokens_per_second", "peak_memory"),
        *("parallelism", "dtype"),
    )
    return {
        **{name: content[name] for name in same},
        "metric": "accuracy",
        "selected_on": "test" if "validation is test" in content["selection"] else "validation",
        "resolved_budget": _resolved(content, requested, budget),
        "tuning": content["tuning"] and _tuning(content),
        "backend_used": content["backend"],
        "num_parameters": content["parameters"],
        "full_num_parameters": content["full_parameters"],
        "scores": {split: _score(score) for split, score in content["scores"].items()},
        "example_scores": content["answers"] and _example_scores(content["answers"]),
        "slices": {
            name: [_slice(one) for one in slices] for name, slices in content["slices"].items()
        },
        "curve": [_point(point) for point in content["curve"]],
        "data_wait_seconds": content["waiting"],
        "world_size": content["processes"],
    }


def _resolved(content: Content, requested: Content, budget: Content) -> Content | None:
    if budget["kind"] == "steps":
        return None
    parts = {"options": content["options"], "train": content["training"]}
    names = dict.fromkeys(requested)
    if budget.get("option"):
        names[f"options.{budget['option']}"] = None
    effective = {name: parts[name.partition(".")[0]][name.partition(".")[2]] for name in names}
    return {
        "changes": _dotted(effective, content["task"], content["mechanism"]),
        "measurements": {new: budget[old] for old, new in MEASUREMENTS.items() if old in budget},
    }


def _tuning(content: Content) -> Content:
    tuning, task, mechanism = (content[name] for name in ("tuning", "task", "mechanism"))

    def trial(old: Content) -> Content:
        accuracy = old["validation_accuracy"]
        return {
            "changes": _dotted(old["changes"], task, mechanism),
            "seed": old["seed"],
            "config_hash": old["config_hash"],
            "metrics": None if accuracy is None else {"accuracy": accuracy},
            "loss": old["validation_loss"],
            "failure": old["failed"],
        }

    return {
        "rule": tuning["rule"],
        "grid": _dotted(tuning["grid"], task, mechanism),
        "chosen": _dotted(tuning["chosen"], task, mechanism),
        "trials": [trial(old) for old in tuning["trials"]],
    }


def _score(old: Content) -> Content:
    return {
        "metrics": {"accuracy": old["accuracy"]},
        "loss": old["loss"],
        "num_examples": old["examples"],
        "num_targets": old["examples"],
        "majority_baseline": old["majority"],
    }


def _example_scores(packed: Any) -> Content:
    return {"metric": "accuracy", "dtype": "uint16", "columns": 2, "data": packed}


def _slice(old: Content) -> Content:
    return {"label": old["label"], "value": old["accuracy"], "num_targets": old["examples"]}


def _point(old: Content) -> Content:
    def metrics(accuracy: float | None) -> Content:
        return {} if accuracy is None else {"accuracy": accuracy}

    kept = ("step", "seconds", "learning_rate", "train_loss", "validation_loss")
    return {
        **{name: old[name] for name in kept},
        "train_metrics": metrics(old["train_accuracy"]),
        "validation_metrics": metrics(old["validation_accuracy"]),
    }


def _mechanism_options(mechanism: str, options: Mapping[str, Any]) -> Content:
    renamed = _renamed(options, MECHANISM_OPTIONS.get(mechanism, {}))
    return {name: _respelled(value) for name, value in renamed.items()}


def _respelled(value: Any) -> Any:
    if isinstance(value, list):
        return [_respelled(one) for one in value]
    return value.replace(*RESPELLED) if isinstance(value, str) else value


def _renamed(fields: Mapping[str, Any], names: Mapping[str, str]) -> Content:
    return {names.get(name, name): value for name, value in fields.items()}


def _dotted(values: Mapping[str, Any], task: str, mechanism: str) -> Content:
    """Rename the keys of a mapping by dotted field."""
    fields = {
        "train": TRAINING_FIELDS,
        "model": MODEL_FIELDS,
        "options": MECHANISM_OPTIONS.get(mechanism, {}),
        "task": TASK_OPTIONS.get(task, {}),
    }
    renamed = {}
    for name, value in values.items():
        part, dot, field = name.partition(".")
        field = fields.get(part, {}).get(field, field)
        renamed[f"{PARTS.get(part, part)}{dot}{field}"] = _respelled(value)
    return renamed


UPGRADES: dict[int, Callable[[Content], Content]] = {
    1: _from_1,
    2: _from_2,
    3: _from_3,
    4: _from_4,
    5: _from_5,
}
