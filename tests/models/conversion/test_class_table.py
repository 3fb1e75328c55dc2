"""The table of classes in the recipe, against the families."""

import re
from pathlib import Path

import pytest
from transformers import CONFIG_MAPPING

from longspan.models.conversion.families import FAMILIES

RECIPE = Path(__file__).parents[3] / "docs" / "recipes" / "longify-a-checkpoint.md"
NAMES = {
    "LongspanModel": "base",
    "LongspanEncoderDecoderModel": "base",
    "LongspanForMaskedLM": "masked tokens",
    "LongspanForCausalLM": "next tokens",
    "LongspanForConditionalGeneration": "text to text",
    "LongspanForSequenceClassification": "sequences",
    "LongspanForTokenClassification": "tokens",
    "LongspanForQuestionAnswering": "questions",
    "LongspanForMultipleChoice": "choices",
}


def read_rows():
    """Return the classes of each model type, and whether they go both ways."""
    section = RECIPE.read_text().partition("\n## Classes\n")[2].partition("\n## ")[0]
    rows = {}
    for types, classes, both in re.findall(
        r"^\| (`[^|]*) \| ([^|]*\)) \| ([^|]*) \|", section, re.M
    ):
        found, _, count = classes.rpartition(" (")
        assert int(count.rstrip(")")) == len(found.split(", "))
        for name in types.split(", "):
            rows[name.strip("`")] = (set(found.split(", ")), both)
    return rows


def test_every_family_has_its_classes():
    rows = read_rows()
    assert rows.keys() == FAMILIES.keys()
    for kind, family in FAMILIES.items():
        classes, both = rows[kind]
        assert both == ("yes" if family.architectures else "no"), kind
        assert NAMES[family.base.__name__] in classes, kind
        if family.architectures:
            assert classes == {NAMES[cls.__name__] for cls in family.architectures}, kind


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_family_reads_a_configuration_of_defaults(kind):
    """Fields of `config.json` that a class of transformers does not declare may be missing."""
    family, config = FAMILIES[kind], CONFIG_MAPPING[kind]()
    fields = family.own_fields(config)
    assert fields["vocab_size"] == config.vocab_size
    given = CONFIG_MAPPING[kind](bos_token_id=7)
    assert family.own_fields(given).get("bos_token_id", 7) == 7
