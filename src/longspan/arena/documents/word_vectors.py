"""Word vectors by latent semantic analysis of the training texts, as initial embeddings.

    X[d, w] = (1 + log n_dw) (1 + log((1 + N) / (1 + N_w))), rows of unit length;  X ~ U S V^T
    the vector of w is V[w] / |V[w]|, as long as a randomly initialized one

n_dw: how often w is in text d, N_w: in how many of the N texts it is. The largest singular values
are kept, as many as an embedding has numbers, or fewer where there are fewer texts or words. So
words of the same texts have similar vectors before the first step, as a new model with few texts
hardly learns. Deerwester et al. 1990, Indexing by latent semantic analysis, JASIS 41(6).
"""

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from scipy import sparse
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.preprocessing import normalize
from torch import nn

from longspan.data.store import Ragged
from longspan.models import LongspanPreTrainedModel
from longspan.tasks.base import HELD_OUT, Task

MOST_TEXTS = 10_000  # of which the vectors are, evenly spaced: memory stays bounded
_LEAST_NORM = 1e-6  # of a word's row of V; below, it is in no text


def word_vectors(texts: Sequence[Ragged], vocabulary: int, width: int, seed: int) -> np.ndarray:
    """Return a vector of length 1 for each word that is in a text, and zeros for the others.

    Args:
        texts: token ids of the texts; of pairs the first and the second ones.
        vocabulary: number of ids.
        width: largest number of dimensions.
        seed: seed of the randomized singular value decomposition.

    Returns:
        Vectors (vocabulary, r), r <= width.
    """
    counts = sparse.vstack([_count_words(x, vocabulary) for x in texts]).tocsr()
    words = np.flatnonzero(np.bincount(counts.indices, minlength=vocabulary))
    rank = min(width, counts.shape[0] - 1, len(words) - 1)
    vectors = np.zeros((vocabulary, max(rank, 0)), np.float32)
    if rank > 0:
        weighted = TfidfTransformer(sublinear_tf=True).fit_transform(counts[:, words])
        found = TruncatedSVD(rank, random_state=seed).fit(weighted).components_.T
        found[np.linalg.norm(found, axis=1) < _LEAST_NORM] = 0
        vectors[words] = normalize(found)
    return vectors


def training_texts(task: Task) -> list[Ragged]:
    """Return the token ids of the training texts of an open task, and of the documents it ranks."""
    splits = task.dataset.splits
    texts = [part.tokens for name, part in splits.items() if name not in HELD_OUT]
    # The second list of a query has the numbers of its documents.
    if (second := splits["train"].second) is not None and not task.head.compares_examples:
        texts.append(second)
    return texts


def _count_words(texts: Ragged, vocabulary: int) -> sparse.csr_matrix:
    """Return how often each word is in each text, (N, vocabulary)."""
    rows = np.unique(np.linspace(0, len(texts) - 1, min(len(texts), MOST_TEXTS)).astype(np.int64))
    chosen = [texts[row] for row in rows]
    ends = np.cumsum([0, *map(len, chosen)])
    ids = np.concatenate(chosen).astype(np.int32)
    shape = (len(rows), vocabulary)
    counts = sparse.csr_matrix((np.ones(len(ids), np.float32), ids, ends), shape)
    counts.sum_duplicates()
    return counts


@torch.no_grad()
def set_word_vectors(
    model: LongspanPreTrainedModel, texts: Sequence[Ragged], vocabulary: int, seed: int
) -> None:
    """Replace the embeddings of words by their vectors, as long as the embeddings were on average.

    Embeddings of ids that are in no text, such as that of a summary token, stay; so do the numbers
    of an embedding that has more of them than there are vectors.

    Args:
        model: randomly initialized model of token ids.
        texts: token ids of the training texts.
        vocabulary: number of ids of the task.
        seed: seed of the decomposition.
    """
    table = cast("nn.Embedding", model.get_input_embeddings()).weight
    vectors = torch.from_numpy(word_vectors(texts, vocabulary, table.shape[1], seed)).to(table)
    seen = vectors.square().sum(1) > 0
    rank = vectors.shape[1]
    length = table[:vocabulary, :rank].norm(dim=1).mean()
    table[:vocabulary, :rank][seen] = vectors[seen] * length
