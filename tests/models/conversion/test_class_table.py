"""The table of classes in the recipe, against the families."""

import re
from pathlib import Path

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
