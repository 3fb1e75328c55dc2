"""Configurations of runs, validated on construction; importable without torch."""

from longspan.config.base import Length, NumExamples, help_of, setting, settings
from longspan.config.budget import Budget, parse_budget
from longspan.config.decoding import DecodingConfig
from longspan.config.model import ModelConfig
from longspan.config.run import (
    EvaluationConfig,
    MechanismConfig,
    RunConfig,
    TaskConfig,
    flatten,
    replace_fields,
)
from longspan.config.stages import StageConfig, StartConfig
from longspan.config.training import TrainingConfig

__all__ = [
    "Budget",
    "DecodingConfig",
    "EvaluationConfig",
    "Length",
    "MechanismConfig",
    "ModelConfig",
    "NumExamples",
    "RunConfig",
    "StageConfig",
    "StartConfig",
    "TaskConfig",
    "TrainingConfig",
    "flatten",
    "help_of",
    "parse_budget",
    "replace_fields",
    "setting",
    "settings",
]
