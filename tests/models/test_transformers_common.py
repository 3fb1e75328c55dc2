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
    LongspanDualEncoder,
    LongspanEncoderDecoderModel,
    LongspanForCausalLM,
    LongspanForConditionalGeneration,
    LongspanForMaskedLM,
    LongspanForMultipleChoice,
    LongspanForPairClassification,
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
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES": "LongspanForMaskedLM",
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES": "LongspanForCausalLM",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES": "LongspanForConditionalGeneration",
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES": (
        "LongspanForSequenceClassification",
        "LongspanForPairClassification",
    ),
    "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES": "LongspanForTokenClassification",
    "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES": "LongspanForQuestionAnswering",
    "MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES": "LongspanForMultipleChoice",
}


def common_tests():
    """Return the module of the tests, with tables that contain our classes."""
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
    return models


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

    def second_ids(self):
        """Return ids of a second text, which a smaller vocabulary has as well."""
        return self.ids_tensor([self.batch_size, self.seq_length], self.vocab_size // 2)


class EncoderDecoderSettings(Settings):
    """Configuration and inputs of an encoder-decoder."""

    def get_config(self):
        """Return a small configuration."""
        config = super().get_config()
        config.is_encoder_decoder, config.decoder_start_token_id = True, 1
        return config

    def prepare_config_and_inputs_for_common(self):
        """Return the configuration, and ids and a mask of both parts."""
        config, inputs = super().prepare_config_and_inputs_for_common()
        return config, inputs | {"decoder_input_ids": self.second_ids()}


class PairSettings(Settings):
    """Configuration and inputs of a classifier of pairs."""

    def prepare_config_and_inputs_for_common(self):
        """Return the configuration, and ids and a mask of both texts."""
        config, inputs = super().prepare_config_and_inputs_for_common()
        return config, inputs | {"input_ids_b": self.second_ids()}


class DualEncoderSettings(Settings):
    """Configuration and inputs of a dual encoder."""

    def prepare_config_and_inputs_for_common(self):
        """Return the configuration, and ids and a mask of queries and documents."""
        config, inputs = super().prepare_config_and_inputs_for_common()
        queries = {f"query_{name}": x for name, x in inputs.items()}
        return config, queries | {"document_input_ids": self.second_ids()}


if FOLDER:
    tests = common_tests()

    class Common(tests.ModelTesterMixin):
        """Tests of model classes."""

        # Class without a head, by which transformers tells heads from their base.
        base_class = LongspanModel
        changes = {}
        settings = Settings

        def setUp(self):
            self.model_tester = self.settings(self, tests.ids_tensor, **self.changes)
            tests.MODEL_MAPPING_NAMES["longspan"] = self.base_class.__name__
            jaxtyping.config.update("jaxtyping_disable", True)

        @unittest.skip("weights are read off the mechanism, not parts of the graph of the output")
        def test_retain_grad_hidden_states_attentions(self):
            """Gradients of weights."""

        def tearDown(self):
            jaxtyping.config.update("jaxtyping_disable", False)

    class TransformerCommon(Common, tests.GenerationTesterMixin):
        """Tests of the classes with one Transformer that reads one text."""

        all_model_classes = (
            LongspanModel,
            LongspanForMaskedLM,
            LongspanForCausalLM,
            LongspanForSequenceClassification,
            LongspanForTokenClassification,
            LongspanForQuestionAnswering,
            LongspanForMultipleChoice,
        )

    class TestFull(TransformerCommon, unittest.TestCase):
        """Attention to all tokens."""

    class TestLocal(TransformerCommon, unittest.TestCase):
        """Windows."""

        changes = {"attention": "local", "attention_options": {"window": 4}}

    class EncoderDecoderCommon(Common, tests.GenerationTesterMixin):
        """Tests of encoder-decoders."""

        is_encoder_decoder = True
        base_class = LongspanEncoderDecoderModel
        settings = EncoderDecoderSettings
        all_model_classes = (LongspanEncoderDecoderModel, LongspanForConditionalGeneration)

    class TestEncoderDecoderFull(EncoderDecoderCommon, unittest.TestCase):
        """Full attention in the encoder."""

    class TestEncoderDecoderLongformer(EncoderDecoderCommon, unittest.TestCase):
        """LED."""

        changes = {"attention": "longformer", "attention_options": {"window": 4}}

    class TestPair(Common, unittest.TestCase):
        """Classification of pairs."""

        settings = PairSettings
        all_model_classes = (LongspanForPairClassification,)

        @unittest.skip("the output has the weights of both texts, the test counts those of one")
        def test_attention_outputs(self):
            """Weights on request."""

        @unittest.skip(
            "the class is none of AutoModelForSequenceClassification, which reads one text"
        )
        def test_load_with_mismatched_shapes(self):
            """Another number of classes."""

    class TestDualEncoder(Common, unittest.TestCase):
        """Embeddings of queries and documents."""

        settings = DualEncoderSettings
        all_model_classes = (LongspanDualEncoder,)
        has_attentions = False

        @unittest.skip("the output has embeddings; the towers return their states")
        def test_hidden_states_output(self):
            """Hidden states on request."""

        @unittest.skip("the test asks for hidden states")
        def test_model_outputs_equivalence(self):
            """Equal tuples and outputs."""

        @unittest.skip("the test needs an input of the name input_ids")
        def test_resize_tokens_embeddings(self):
            """Another vocabulary."""
