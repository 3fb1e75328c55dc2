"""Options that tasks refuse, and their messages."""

import pytest

from longspan.errors import OptionError
from longspan.tasks import build

# Valid options, to which the cases are changes.
VALID = {
    "copying": {"length": 32, "count": 4, "symbols": 8},
    "recall": {"length": 64, "pairs": 4, "queries": 4, "vocabulary": 64},
    "listops": {"max_depth": 4, "max_args": 5, "min_length": 10, "max_length": 40},
    "pubmed_summarization": {"length": 24, "target_length": 14, "vocabulary": 40},
}
CHARACTERS = {"vocabulary": "characters"}
GRAY_LEVELS = "gray_levels='2026' applies to generated images of 32 x 32; omit it"
CASES = {
    "copying": [
        ({"count": 0}, "count should be greater than 0, got 0"),
        ({"together": "yes"}, "together should be a valid boolean, got 'yes'"),
        ({"depth": -1, "together": True}, r"depth=-1(\.0)?; expected 0"),
        ({"length": 7}, "length=7 is too short for 4 symbols and as many markers; use 8 or more"),
        ({"depth": 1.5, "together": True}, r"depth=1.5; expected 0 \(the start\) to 1, or none"),
        ({"depth": float("nan"), "together": True}, "depth should be a finite number"),
        ({"depth": 0.5}, "depth=0.5 needs adjacent symbols; set together=true"),
        ({"symbols": 65_534}, "65537 token ids; expected at most 65536, lower symbols or noise"),
    ],
    "recall": [
        ({"pairs": 0}, "pairs should be greater than 0, got 0"),
        ({"queries": 0}, "queries should be greater than 0, got 0"),
        ({"noise": 1}, "noise should be a valid boolean, got 1"),
        ({"power": "0.1"}, "power should be a valid number"),
        ({"vocabulary": 63}, "vocabulary=63; half are values, use an even number"),
        ({"vocabulary": 10}, "has 3 keys, 4 pairs need more; use 12 or more"),
        ({"vocabulary": 12, "noise": True}, "has 4 keys, 4 pairs and noise .*use 14 or more"),
        ({"vocabulary": 65_538}, "65538 token ids; expected at most 65536, lower vocabulary"),
        ({"length": 15}, "room for 3 queries after 4 pairs, not for 4; use 16 or more"),
        ({"length": 4}, "room for 0 queries after 4 pairs"),
        ({"power": 1.1}, r"power=1.1; expected 0 \(near slots\) to 1"),
        ({"power": float("nan")}, "power should be a finite number"),
    ],
    "listops": [
        ({"train": 0}, "train should be greater than 0, got 0"),
        ({"seed": -1}, "seed should be greater than or equal to 0, got -1"),
        ({"max_depth": 1}, "max_depth should be greater than or equal to 2, got 1"),
        ({"end": 1}, "end should be a valid boolean, got 1"),
        ({"source": "paper"}, "source should be 'generated' or 'release', got 'paper'"),
        ({"source": "release"}, "min_length=10 applies to generated expressions; omit it"),
        ({"max_length": 11}, "max_length=11 leaves no expression.*use 12 or more"),
    ],
    "text": [
        ({"length": 0}, "length should be greater than 0, got 0"),
        ({"validation": 1}, "validation should be greater than or equal to 2, or 'test', got 1"),
        ({"train": 1}, "train should be greater than or equal to 2, got 1"),
        ({"seed": -1}, "seed should be greater than or equal to 0, got -1"),
        ({"validation": "tset"}, "validation should be a valid integer, or 'test', got 'tset'"),
        ({"minimum": 0}, "minimum should be greater than 0, got 0"),
        (
            {"vocabulary": "words"},
            "vocabulary should be 'bytes' or 'characters', or .* got 'words'",
        ),
        ({"end": 1, "vocabulary": "characters"}, "end should be a valid boolean, got 1"),
        ({"end": True}, "end=True and minimum=15 apply to characters; set vocabulary"),
        ({"minimum": 1}, "end=False and minimum=1 apply to characters"),
        (
            {**CHARACTERS, "end": True, "length": 1, "minimum": 1},
            "length=1 leaves no token before the end",
        ),
        ({"vocabulary": 2}, "or greater than or equal to 3, or a valid string, got 2"),
        ({"vocabulary": 65_537}, "or less than or equal to 65536, or a valid string, got 65537"),
        ({"vocabulary": 100, "minimum": 1}, "minimum=1 apply to characters; set vocabulary"),
        ({"vocabulary": 100, "end": True}, "end=True and minimum=15 apply to characters"),
    ],
    "retrieval": [
        ({"length": 0}, "length should be greater than or equal to 1, got 0"),
        ({"length": 10_001}, "length should be less than or equal to 10000, got 10001"),
        ({"train": 1}, "train should be greater than or equal to 2, got 1"),
        ({"validation": "test"}, "validation should be a valid integer, got 'test'"),
        ({"end": True}, "apply to characters"),
        ({"minimum": 15}, "apply to characters"),
    ],
    "pathfinder": [
        ({"resolution": 128}, "resolution should be 32 or 64, got 128"),
        ({"difficulty": "baseline"}, "difficulty should be 'easy', 'intermed"),
        ({"source": "hub"}, "source should be 'generated' or 'release'"),
        ({"split": "shuffled"}, "split should be 'lra' or 'random'"),
        ({"pixels": "float"}, "pixels should be 'tokens' or 'continuous'"),
        ({"train": 0}, "train should be greater than 0, got 0"),
        ({"seed": -1}, "seed should be greater than or equal to 0, got -1"),
        ({"seed": 3, "source": "release"}, "seed=3 applies to generated images"),
        ({"split_seed": 3}, "split_seed=3 needs split='random'"),
        ({"gray_levels": "2025"}, "gray_levels should be '2019' or '2026'"),
        ({"gray_levels": "2026", "resolution": 64}, GRAY_LEVELS),
        ({"gray_levels": "2026", "source": "release"}, GRAY_LEVELS),
    ],
    "path_x": [
        ({"resolution": 32}, "resolution should be 128 or 256, got 32"),
        ({"split_seed": 3}, "split_seed=3 needs split='random'"),
    ],
    "masked_listops": [
        ({"mask_probability": 1.0}, "mask_probability"),
        ({"replaced": 0.8, "random": 0.3}, r"replaced=0\.8 and random=0\.3 exceed 1"),
        ({"source": "release", "seed": 3}, "seed=3 applies to generated"),
    ],
    "pubmed_summarization": [
        ({"target_length": 1}, "target_length=1 leaves no room"),
        ({"target_length": 8, "min_tokens": 8}, "min_tokens=8"),
        ({"beams": 0}, "beams"),
    ],
}


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        pytest.param(name, *case, id=f"{name} {case[0]}")
        for name, cases in CASES.items()
        for case in cases
    ],
)
def test_invalid_options_are_refused(name, change, message):
    with pytest.raises(OptionError, match=message):
        build(name, {**VALID.get(name, {}), **change})
