"""The common tests of transformers for every model class.

They are not part of the package that pip installs. `tests/get_transformers_tests.sh FOLDER` fetches
them; `LONGSPAN_TRANSFORMERS_TESTS=FOLDER/tests pytest -m slow` with the name of this file runs
them. The source distribution on PyPI holds all but those of export and generation.
"""

import importlib
import os
import sys
import types
import unittest
from pathlib import Path

import jaxtyping
import pytest

from longspan.models import (
    LongspanConfig,
    LongspanForCausalLM,
    LongspanForMaskedLM,
    LongspanForMultipleChoice,
    LongspanForQuestionAnswering,
    LongspanForSequenceClassification,
    LongspanForTokenClassification,
    LongspanModel,
)

FOLDER = os.environ.get("LONGSPAN_TRANSFORMERS_TESTS", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FOLDER, reason="LONGSPAN_TRANSFORMERS_TESTS is not set"),
]
# Files that the source distribution lacks, and the mixin of each.
OPTIONAL = {
    "exporters.test_export": "ExportTesterMixin",
    "generation.test_utils": "GenerationTesterMixin",
}
# By these tables the tests choose labels and skip models without a loss.
CLASSES = {
    "MODEL_MAPPING_NAMES": "LongspanModel",
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES": "LongspanForMaskedLM",
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES": "LongspanForCausalLM",
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES": "LongspanForSequenceClassification",
    "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES": "LongspanForTokenClassification",
    "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES": "LongspanForQuestionAnswering",
    "MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES": "LongspanForMultipleChoice",
}


def common_mixins():
    """Return the mixins of models and generation; None for one that the folder does not hold."""
    folder = Path(FOLDER).resolve()
    package = types.ModuleType("transformers_tests")
    package.__path__ = [str(folder)]
    sys.modules[package.__name__] = package
    for name, mixin in OPTIONAL.items():
        if not (folder / name.replace(".", "/")).with_suffix(".py").exists():
            parent = types.ModuleType(f"{package.__name__}.{name.partition('.')[0]}")
            parent.__path__ = []
            module = types.ModuleType(f"{package.__name__}.{name}")
            setattr(module, mixin, type(mixin, (), {}))
            sys.modules[parent.__name__], sys.modules[module.__name__] = parent, module
    models = importlib.import_module(f"{package.__name__}.test_modeling_common")
    for mapping, name in CLASSES.items():
        getattr(models, mapping)["longspan"] = name
    return models.ModelTesterMixin, models.GenerationTesterMixin, models.ids_tensor


class Settings:
    """Configuration and inputs for the common tests."""

    batch_size, seq_length, num_hidden_layers, num_attention_heads = 3, 12, 2, 2
    hidden_size, vocab_size, num_choices, is_training = 32, 99, 3, True

    def __init__(self, parent, ids_tensor, **changes):
        self.parent, self.ids_tensor, self.changes = parent, ids_tensor, changes

    def get_config(self):
        """Return a small configuration."""
        fields = {
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "intermediate_size": 48,
            "classifier_hidden_size": 24,
            "max_position_embeddings": 64,
            "attention_options": {},
        }
        return LongspanConfig(**fields | self.changes)

    def prepare_config_and_inputs_for_common(self):
        """Return the configuration, token ids and a mask with padding."""
        ids = self.ids_tensor([self.batch_size, self.seq_length], self.vocab_size)
        mask = ids.new_ones(ids.shape)
        mask[0, -3:] = 0
        return self.get_config(), {"input_ids": ids, "attention_mask": mask}


if FOLDER:
    ModelTesterMixin, GenerationTesterMixin, ids_tensor = common_mixins()

    class Common(ModelTesterMixin, GenerationTesterMixin):
        """Tests of all classes with one mechanism."""

        all_model_classes = (
            LongspanModel,
            LongspanForMaskedLM,
            LongspanForCausalLM,
            LongspanForSequenceClassification,
            LongspanForTokenClassification,
            LongspanForQuestionAnswering,
            LongspanForMultipleChoice,
        )
        changes = {}

        def setUp(self):
            self.model_tester = Settings(self, ids_tensor, **self.changes)
            jaxtyping.config.update("jaxtyping_disable", True)

        @unittest.skip("weights are read off the mechanism, not parts of the graph of the output")
        def test_retain_grad_hidden_states_attentions(self):
            """Gradients of weights."""

        def tearDown(self):
            jaxtyping.config.update("jaxtyping_disable", False)

    class TestFull(Common, unittest.TestCase):
        """Attention to all tokens."""

    class TestLocal(Common, unittest.TestCase):
        """Windows."""

        changes = {"attention": "local", "attention_options": {"window": 4}}
