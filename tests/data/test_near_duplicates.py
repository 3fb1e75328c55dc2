"""Near duplicates: the exact search against all pairs, and splits that keep them together."""

import random

import numpy as np
import pytest

from longspan.data.near_duplicates import find_leaks, group_duplicates, split_runs
from longspan.tasks.documents.documents import hold_out

WORDS = [f"w{n}" for n in range(60)]


def documents(count, seed=0):
    """Return texts of which many are changed copies of another one."""
    draws = random.Random(seed)
    texts = []
    for _ in range(count):
        words = [draws.choice(WORDS) for _ in range(draws.randint(1, 60))]
        if texts and draws.random() < 0.6:
            words = draws.choice(texts).split()
            for _ in range(draws.randint(0, 2)):
                words[draws.randrange(len(words))] = draws.choice(WORDS)
        texts.append(" ".join(words))
    return [text.encode() for text in texts]


def similarity(a, b):
    """Return the Jaccard index of the runs of five words, computed from the words themselves."""
    sets = []
    for text in (a, b):
        words = text.decode().split()
        sets.append({tuple(words[i : i + 5]) for i in range(max(1, len(words) - 4))})
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


@pytest.mark.parametrize("threshold", [0.2, 0.5, 0.55, 0.8, 1.0])
def test_leaks_are_those_of_comparing_all_pairs(threshold):
    texts, training = documents(40, seed=1), documents(60, seed=1)[10:]
    expected = []
    for row, text in enumerate(texts):
        found = [similarity(text, other) for other in training]
        if max(found) >= threshold:
            expected.append((row, int(np.argmax(found)), max(found)))
    assert find_leaks(texts, training, threshold) == expected
    assert len(expected) > 0


def test_case_punctuation_and_spaces_make_no_difference():
    text = "One, two -- three; four five (six)."
    (leak,) = find_leaks(
        [text.encode()], [b"other words", text.upper().replace(" ", "\n").encode()]
    )
    assert leak == (0, 1, 1)
    assert len(split_runs(b"a b c d e f")) == 2
    assert split_runs(b"a b") != split_runs(b"a b c")


def test_groups_are_the_connected_components():
    texts = documents(80, seed=2)
    groups = group_duplicates(texts)
    linked = np.array([[similarity(a, b) >= 0.8 for b in texts] for a in texts])
    for _ in range(7):  # 2**7 steps reach every row
        linked = linked @ linked
    assert groups.tolist() == linked.argmax(1).tolist()
    assert len(set(groups.tolist())) < len(texts)


def test_held_out_texts_have_no_near_duplicate_in_training():
    texts = documents(300, seed=3)
    labels = np.array([group % 3 for group in group_duplicates(texts)])
    rows = hold_out(texts, labels, {"validation": 0.1, "test": 0.2})
    assert sorted(x for own in rows.values() for x in own.tolist()) == list(range(300))
    for one, other in (("test", "train"), ("validation", "train"), ("test", "validation")):
        assert not find_leaks([texts[x] for x in rows[one]], [texts[x] for x in rows[other]])
    for label in range(3):
        count = (labels == label).sum()
        for split, share in (("validation", 0.1), ("test", 0.2)):
            assert (labels[rows[split]] == label).sum() == round(share * count)


def test_splits_do_not_depend_on_the_order_of_the_texts():
    texts = documents(100, seed=4)
    labels = np.array([group % 2 for group in group_duplicates(texts)])
    order = np.random.default_rng(0).permutation(100)
    rows = hold_out(texts, labels, {"test": 0.2})
    others = hold_out([texts[x] for x in order], labels[order], {"test": 0.2})
    for split, own in rows.items():
        assert sorted(texts[x] for x in own) == sorted(texts[order[x]] for x in others[split])
