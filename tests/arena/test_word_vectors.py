"""Initial embeddings by latent semantic analysis: against a dense decomposition, and in runs."""

import numpy as np
import pytest
import torch

from aan_files import write_by_id
from longspan.arena import get
from longspan.arena.documents import word_vectors as module
from longspan.arena.documents.word_vectors import set_word_vectors, word_vectors
from longspan.arena.grid import find_refusal
from longspan.data.store import Ragged
from longspan.models import LongspanConfig, LongspanForSequenceClassification
from longspan.tasks import build

TEXTS = [[3, 4, 4, 5], [3, 4, 5, 5], [6, 7], [6, 7, 7, 3], [8, 8, 8, 6]]


def ragged(texts):
    return Ragged.pack([np.array(text) for text in texts], np.uint16)


def dense_vectors(texts, vocabulary, rank):
    """Compute the formula of the module with dense matrices, in float64."""
    counts = np.array([[text.count(word) for word in range(vocabulary)] for text in texts], float)
    idf = 1 + np.log((1 + len(texts)) / (1 + (counts > 0).sum(0)))
    x = np.where(counts > 0, 1 + np.log(np.maximum(counts, 1)), 0) * idf
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    v = np.linalg.svd(x)[2][:rank].T * (counts.sum(0) > 0)[:, None]
    return v / np.maximum(np.linalg.norm(v, axis=1, keepdims=True), 1e-9)


@pytest.mark.parametrize("width", [2, 3, 64])
def test_vectors_are_those_of_the_dense_decomposition(width):
    found = word_vectors([ragged(TEXTS)], 10, width, seed=0)
    expected = dense_vectors(TEXTS, 10, min(width, len(TEXTS) - 1))
    assert found.shape == expected.shape
    # Singular vectors have no sign, so products of words are compared.
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=1e-5)
    assert not found[[0, 1, 2, 9]].any()


def test_words_of_the_same_texts_are_near():
    found = word_vectors([ragged(TEXTS)], 10, 3, seed=0)
    assert found[4] @ found[5] > 0.95 > 0.5 > abs(found[4] @ found[8])


def test_second_texts_of_pairs_are_texts_too():
    pair = [ragged(TEXTS[:2]), ragged(TEXTS[2:])]
    both = word_vectors(pair, 10, 3, seed=0)
    one = word_vectors([ragged(TEXTS)], 10, 3, seed=0)
    np.testing.assert_allclose(both @ both.T, one @ one.T, atol=1e-5)


def test_texts_are_a_sample_of_many(monkeypatch):
    monkeypatch.setattr(module, "MOST_TEXTS", 3)
    found = word_vectors([ragged(TEXTS)], 10, 8, seed=0)
    expected = dense_vectors([TEXTS[0], TEXTS[2], TEXTS[4]], 10, 2)
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=1e-5)


@pytest.mark.parametrize("texts", [[[3]], [[3, 3], [3]], [[], []], [[3, 4], [3, 4]]])
def test_too_little_text_leaves_finite_embeddings(texts):
    model = LongspanForSequenceClassification(tiny_config())
    set_word_vectors(model, [ragged(texts)], 10, seed=0)
    assert torch.isfinite(model.get_input_embeddings().weight).all()


def tiny_config():
    return LongspanConfig(
        vocab_size=12, hidden_size=8, num_attention_heads=2, intermediate_size=8, attention="local"
    )


def test_only_words_of_the_texts_change_and_keep_their_mean_length():
    model = LongspanForSequenceClassification(tiny_config())
    table = model.get_input_embeddings().weight
    before = table.detach().clone()
    set_word_vectors(model, [ragged(TEXTS)], 10, seed=0)
    seen = list(range(3, 9))
    others = [x for x in range(12) if x not in seen]
    assert torch.equal(table[others], before[others])
    assert torch.equal(table[:, 4:], before[:, 4:])  # five texts have four vectors
    lengths = table[seen, :4].norm(dim=1)
    assert torch.allclose(lengths, before[:10, :4].norm(dim=1).mean().expand(len(seen)), rtol=1e-4)
    assert table.requires_grad


@pytest.mark.parametrize(
    ("protocol", "task", "changes", "reason"),
    [
        ("lra-scaled", "image", {"task.pixels": "continuous"}, "inputs of image are numbers"),
        ("self-pretraining-scaled", "text", {}, "starts from a checkpoint"),
        (
            "compressive-transformer",
            "wikitext_103",
            {},
            "model.adaptive_cutoffs give words several tables",
        ),
    ],
)
def test_runs_without_a_table_of_their_own_are_refused(protocol, task, changes, reason):
    changes = {**changes, "training.word_vectors": "lsa"}
    refusal = find_refusal(get(protocol).row(task, "full", 0, changes))
    assert reason in refusal
    assert refusal.endswith("set training.word_vectors=random")


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("in_context_recall", None),
        ("aan_retrieval", lambda splits: splits["documents"].tokens),
        ("retrieval", lambda splits: splits["train"].second),
    ],
)
def test_targets_and_numbers_of_documents_are_no_texts(tmp_path, name, other):
    sizes = {"train": 4, "validation": 1, "test": 1, "length": 9}
    task = build(name, sizes if other is None else None)
    task.open(tmp_path / "cache", None if other is None else write_by_id(tmp_path / "data"))
    splits, found = task.dataset.splits, module.training_texts(task)
    expected = [splits["train"].tokens, *([] if other is None else [other(splits)])]
    assert [x.values.tolist() for x in found] == [x.values.tolist() for x in expected]
    assert np.isfinite(word_vectors(found, task.vocab_size, 4, seed=0)).all()


def test_runs_of_token_ids_take_them():
    assert (
        find_refusal(get("quick").row("needle", "full", 0, {"training.word_vectors": "lsa"}))
        is None
    )
