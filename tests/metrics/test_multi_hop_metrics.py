"""Metrics of multi-hop questions, compared with cases of the official evaluation by hand."""

import pytest

from longspan.metrics.multi_hop import Agreement, answer_agreement, support_agreement

FACTS = [("Ada Lovelace", 0), ("Charles Babbage", 2)]


@pytest.mark.parametrize(
    ("answer", "reference", "match", "precision", "recall", "f1"),
    [
        ("The Chief of Protocol", "Chief of Protocol", 1, 1, 1, 1),
        ("protocol", "Chief of Protocol", 0, 1, 1 / 3, 1 / 2),
        ("Chief of State of Protocol", "Chief of Protocol", 0, 3 / 5, 1, 3 / 4),
        ("Paris", "Chief of Protocol", 0, 0, 0, 0),
        ("Yes.", "yes", 1, 1, 1, 1),
        # yes, no and noanswer are right as a whole only
        ("yes", "no", 0, 0, 0, 0),
        ("yes it is", "yes", 0, 0, 0, 0),
        ("no", "no man's land", 0, 0, 0, 0),
        ("noanswer", "noanswer given", 0, 0, 0, 0),
        ("yes man", "yes prime minister", 0, 1 / 2, 1 / 3, 2 / 5),
        # without tokens both are equal, and share none
        ("The", "a", 1, 0, 0, 0),
    ],
)
def test_answers_agree_as_in_the_official_evaluation(
    answer, reference, match, precision, recall, f1
):
    found = answer_agreement(answer, reference)
    assert found == pytest.approx((match, precision, recall))
    assert found.f1 == pytest.approx(f1)


@pytest.mark.parametrize(
    ("facts", "match", "precision", "recall", "f1"),
    [
        (FACTS, 1, 1, 1, 1),
        ([*reversed(FACTS), FACTS[0]], 1, 1, 1, 1),
        (FACTS[:1], 0, 1, 1 / 2, 2 / 3),
        ([*FACTS, ("Ada Lovelace", 1), ("London", 0)], 0, 1 / 2, 1, 2 / 3),
        ([("Ada Lovelace", 1)], 0, 0, 0, 0),
        ([], 0, 0, 0, 0),
    ],
)
def test_supporting_facts_agree_as_sets(facts, match, precision, recall, f1):
    found = support_agreement(facts, FACTS)
    assert found == pytest.approx((match, precision, recall))
    assert found.f1 == pytest.approx(f1)


def test_no_facts_at_all_match():
    assert support_agreement([], []) == (1, 0, 0)


def test_joint_precision_and_recall_are_products():
    answer = answer_agreement("Chief of State of Protocol", "Chief of Protocol")  # 3/5, 1
    support = support_agreement(FACTS[:1], FACTS)  # 1, 1/2
    joint = answer.join(support)
    assert joint == pytest.approx((0, 3 / 5, 1 / 2))
    # 2 * 3/5 * 1/2 / (3/5 + 1/2) = 6/11, which is no product of the F1 scores
    assert joint.f1 == pytest.approx(6 / 11)
    whole = answer_agreement("yes", "yes").join(support_agreement(FACTS, FACTS))
    assert whole == (1, 1, 1)
    assert answer_agreement("yes", "yes").join(support).exact_match == 0
    assert Agreement(0.0, 0.0, 0.0).join(whole).f1 == 0
