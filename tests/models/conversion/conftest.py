"""Sources of `longify`, saved."""

from pathlib import Path

import pytest
from transformers import PreTrainedModel

import short_sources


@pytest.fixture(params=short_sources.SOURCES)
def source(request, tmp_path) -> tuple[PreTrainedModel, Path]:
    """Every kind of source, and its folder."""
    model = short_sources.make(request.param)
    model.save_pretrained(tmp_path / "source")
    return model, tmp_path / "source"


@pytest.fixture
def roberta(tmp_path) -> tuple[PreTrainedModel, Path]:
    """RoBERTa with a tokenizer, and its folder."""
    model = short_sources.make("roberta")
    model.save_pretrained(tmp_path / "source")
    short_sources.save_tokenizer(tmp_path / "source")
    return model, tmp_path / "source"
