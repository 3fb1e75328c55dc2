"""Coreference: scores and loss by hand, kept spans, padding, windows, training."""

import itertools

import pytest
import torch

from longspan.errors import InputError, OptionError
from longspan.models import LongspanForCoreference, decode_clusters
from longspan.models.heads.coreference_head import bucket, head_vectors, select_spans

L = 12
GENERATOR = torch.Generator().manual_seed(5)
IDS = torch.randint(1, 50, (2, L), generator=GENERATOR)
SENTENCES = torch.tensor([[0] * 5 + [1] * 4 + [2] * 3, [-1] + [0] * 6 + [1] * 4 + [-1]])
WORDS = torch.tensor([[0, 0, 1, 2, 3, 4, 4, 4, 5, 6, 7, 8], [-1, *range(10), -1]])
SPEAKERS = torch.tensor([[0] * 5 + [1] * 7, [0] * L])
GENRES = torch.tensor([1, 0])
FEATURES = {
    "sentence_ids": SENTENCES,
    "word_ids": WORDS,
    "speaker_ids": SPEAKERS,
    "genre_ids": GENRES,
}
LABELS = torch.tensor(
    [[[0, 1, 0], [3, 3, 1], [8, 8, 0], [9, 10, 1]], [[0, 0, 0], [4, 5, 0], [8, 8, 0], [-100] * 3]]
)
SMALL = {"span_width": 3, "antecedents": 4, "spans_per_token": 0.6, "feature_size": 3}
ALL = {**SMALL, "speakers": True, "genres": 2}
LOWEST = torch.finfo(torch.float64).min


def build(small, options=None, **fields):
    config = small(coreference=options or ALL, **fields)
    return LongspanForCoreference(config).double().eval()


def rows_of(x, row):
    return {name: y[row : row + 1] for name, y in x.items()}


def spans_by_hand(row, width):
    """Return the spans of whole words in one sentence, counted over the document's tokens."""
    kept = [i for i in range(L) if SENTENCES[row, i] >= 0]
    sentence, word = SENTENCES[row, kept].tolist(), WORDS[row, kept].tolist()
    found = []
    for a, b in itertools.combinations_with_replacement(range(len(kept)), 2):
        whole = (a == 0 or word[a - 1] != word[a]) and (
            b + 1 == len(kept) or word[b + 1] != word[b]
        )
        if b - a < width and sentence[a] == sentence[b] and whole:
            found.append((a, b))
    return kept, found


def span_by_hand(head, states, a, b):
    """Return the features of a span of a document's states."""
    weights = torch.stack([head.token_scores(states[t])[0] for t in range(a, b + 1)]).softmax(0)
    mean = sum(w * states[t] for w, t in zip(weights, range(a, b + 1), strict=True))
    return torch.cat((states[a], states[b], head.width_features.weight[b - a], mean))


def distance_range(distance):
    return max(i for i, first in enumerate((0, 1, 2, 3, 4, 5, 8, 16, 32, 64)) if first <= distance)


def scores_by_hand(model, row, kept_spans, depth):
    """Return mention scores and the scores of all pairs of kept spans, by loops."""
    head = model.coreference
    tokens, _ = spans_by_hand(row, 3)
    states = model.model(IDS[row : row + 1]).last_hidden_state[0, tokens]
    speakers = SPEAKERS[row, tokens]
    features = [span_by_hand(head, states, a, b) for a, b in kept_spans]
    mentions = [
        head.mention_scores(x)[0] + head.width_scores(head.width_priors.weight[b - a])[0]
        for x, (a, b) in zip(features, kept_spans, strict=True)
    ]
    coarse, extra = {}, {}
    for i, j in itertools.product(range(len(features)), repeat=2):
        if j < i:
            far = distance_range(i - j)
            prior = head.distance_scores(head.distance_priors.weight[far])[0]
            own = head.coarse(features[i]) @ features[j]
            coarse[i, j] = mentions[i] + mentions[j] + own + prior
            same = int(speakers[kept_spans[i][0]] == speakers[kept_spans[j][0]])
            extra[i, j] = torch.cat(
                (head.distances.weight[far], head.same_speaker.weight[same],
                 head.genres.weight[GENRES[row]])
            )  # fmt: skip
    chosen = {
        i: sorted((j for a, j in coarse if a == i), key=lambda j: -coarse[i, j].item())[:4]
        for i in range(len(features))
    }
    for number in range(depth):
        scores = {}
        for i, others in chosen.items():
            for j in others:
                pair = (features[i], features[j], features[i] * features[j], extra[i, j])
                scores[i, j] = coarse[i, j] + head.pair_scores(torch.cat(pair))[0]
        if number + 1 < depth:
            mixed = []
            for i, others in chosen.items():
                logits = torch.stack([mentions[0] * 0, *(scores[i, j] for j in others)])
                options = torch.stack([features[i], *(features[j] for j in others)])
                expected = (logits.softmax(0)[:, None] * options).sum(0)
                gate = torch.sigmoid(head.gate(torch.cat((features[i], expected))))
                mixed.append(gate * features[i] + (1 - gate) * expected)
            features = mixed
    return mentions, chosen, scores


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_scores_and_loss_are_those_computed_by_hand(small, depth):
    model = build(small, {**ALL, "depth": depth})
    output = model(IDS, **FEATURES, labels=LABELS)
    losses = []
    for row in range(2):
        spans = [tuple(x) for x in output.spans[row].tolist() if x[0] >= 0]
        mentions, chosen, scores = scores_by_hand(model, row, spans, depth)
        K = len(spans)
        torch.testing.assert_close(output.mention_scores[row, :K], torch.stack(mentions))
        cluster = {(a, b): c for a, b, c in LABELS[row].tolist()}
        for i, others in chosen.items():
            assert [j for j in output.antecedents[row, i].tolist() if j >= 0] == others
            expected = [0.0, *(scores[i, j].item() for j in others)]
            found = output.antecedent_scores[row, i]
            torch.testing.assert_close(found[: len(expected)], torch.tensor(expected).double())
            assert (found[len(expected) :] == LOWEST).all()
            right = [0] * len(expected)
            for place, j in enumerate(others, 1):
                own = cluster.get(spans[i])
                right[place] = own is not None and own == cluster.get(spans[j])
            right[0] = not any(right)
            odds = torch.tensor(expected).double().exp()
            losses.append(-(odds[torch.tensor(right)].sum() / odds.sum()).log())
    torch.testing.assert_close(output.loss, torch.stack(losses).sum() / 2)


def test_best_spans_of_whole_words_within_sentences_are_kept(small):
    """Every span can be kept; without crossing ones, as many as the share allows."""
    model = build(small, {**ALL, "spans_per_token": 9.0})
    output = model(IDS, **FEATURES)
    for row in range(2):
        _, allowed = spans_by_hand(row, 3)
        found = [tuple(x) for x in output.spans[row].tolist() if x[0] >= 0]
        assert set(found) <= set(allowed)
        assert found == sorted(found)
        assert not any(a < c <= b < d for (a, b), (c, d) in itertools.permutations(found, 2))
        for span in set(allowed) - set(found):
            assert any(crosses(span, other) for other in found)
    few = build(small, ALL)(IDS, **FEATURES)
    assert (few.spans[..., 0] >= 0).sum(1).tolist() == [7, 6]  # of 12 and 10 tokens


def crosses(one, other):
    (a, b), (c, d) = sorted((one, other))
    return a < c <= b < d


def test_selection_is_greedy():
    drawn = torch.Generator().manual_seed(3)
    spans = torch.tensor(list(itertools.combinations_with_replacement(range(9), 2)))
    for _ in range(20):
        scores = torch.rand(len(spans), generator=drawn)
        expected = []
        for number in scores.argsort(descending=True).tolist():
            span = tuple(spans[number].tolist())
            if len(expected) < 8 and not any(crosses(span, other) for other in expected):
                expected.append(span)
        found = [tuple(x) for x in spans[select_spans(spans, scores, 8)].tolist()]
        assert found == sorted(expected)


@pytest.mark.parametrize("length", [1, 2, 7])
def test_head_vectors_are_weighted_means(length):
    states = torch.randn(length, 4, dtype=torch.float64)
    scores = 9 * torch.randn(length, dtype=torch.float64)
    found = head_vectors(states, scores, 5)
    assert found.shape == (length, 5, 4)
    for start, width in itertools.product(range(length), range(5)):
        part = slice(start, start + width + 1)
        if start + width < length:
            expected = (scores[part].softmax(0)[:, None] * states[part]).sum(0)
            torch.testing.assert_close(found[start, width], expected)


def test_distances_are_in_the_ranges_of_the_paper():
    numbers = bucket(torch.arange(100)).tolist()
    assert numbers[:9] == [0, 1, 2, 3, 4, 5, 5, 5, 6]
    assert [numbers[i] for i in (15, 16, 31, 32, 63, 64, 99)] == [6, 7, 7, 8, 8, 9, 9]


def test_padding_and_other_documents_have_no_effect(small):
    model = build(small)
    both = model(IDS, **FEATURES, labels=LABELS)
    alone = [model(IDS[[row]], **rows_of(FEATURES, row), labels=LABELS[[row]]) for row in range(2)]
    torch.testing.assert_close(both.loss, (alone[0].loss + alone[1].loss) / 2)
    for row, own in enumerate(alone):
        K, A = own.antecedents.shape[1:]
        assert own.spans[0].equal(both.spans[row, :K])
        scores = both.antecedent_scores[row, :K, : 1 + A]
        torch.testing.assert_close(scores, own.antecedent_scores[0])
    padded = {x: torch.nn.functional.pad(y, (0, 4), value=1) for x, y in FEATURES.items()
              if x != "genre_ids"}  # fmt: skip
    mask = torch.nn.functional.pad(torch.ones_like(IDS), (0, 4))
    ids = torch.nn.functional.pad(IDS, (0, 4), value=7)
    found = model(ids, mask, **padded, genre_ids=GENRES, labels=LABELS)
    torch.testing.assert_close(found.to_tuple(), both.to_tuple())


def test_windows_are_independent_texts_of_one_document(small):
    """Antecedents are sought in all windows; an empty window has no effect."""
    model = build(small)
    halves = {x: y.view(2, 2, 6) for x, y in FEATURES.items() if x != "genre_ids"}
    found = model(IDS.view(2, 2, 6), **halves, genre_ids=GENRES, labels=LABELS)
    assert found.spans.max() == 11
    assert (found.spans[:, :, 1] > 6).any()
    far = found.spans[0, found.antecedents[0, -1].clamp(min=0), 0]
    assert (far < 6).any()
    empty = torch.zeros(2, 1, 6, dtype=torch.long)
    more = {x: torch.cat((y, empty), 1) for x, y in halves.items()}
    mask = torch.cat((torch.ones(2, 2, 6), empty), 1).long()
    ids = torch.cat((IDS.view(2, 2, 6), empty), 1)
    again = model(ids, mask, **more, genre_ids=GENRES, labels=LABELS)
    torch.testing.assert_close(again.to_tuple(), found.to_tuple())


def test_clusters_follow_the_links():
    spans = torch.tensor([[0, 0], [1, 2], [3, 3], [4, 4], [5, 5], [-1, -1]])
    antecedents = torch.tensor([[-1, -1], [0, -1], [1, 0], [0, 2], [2, 3], [-1, -1]])
    scores = torch.tensor(
        [[0, -9, -9], [0, -1, -9], [0, 2, 1], [0, -3, -1], [0, 1, 5], [0, -9, -9]]
    ).float()
    found = decode_clusters(spans, antecedents, scores)
    assert found == [[(1, 2), (3, 3)], [(4, 4), (5, 5)]]


def test_documents_without_mentions_have_a_loss(small):
    model = build(small)
    none = torch.full((2, 1, 3), -100)
    loss = model(IDS, **FEATURES, labels=none).loss
    assert loss.isfinite()
    empty = LABELS[:, :0]
    torch.testing.assert_close(model(IDS, **FEATURES, labels=empty).loss, loss)


def test_checkpoints_keep_the_options(small, tmp_path):
    model = LongspanForCoreference(small(coreference=ALL)).eval()
    model.save_pretrained(tmp_path)
    loaded = LongspanForCoreference.from_pretrained(tmp_path)
    models = (model.double(), loaded.double())
    expected, found = (x(IDS, **FEATURES).antecedent_scores for x in models)
    torch.testing.assert_close(found, expected)


def test_documents_without_a_span_have_no_clusters(small):
    """One word of twelve tokens is wider than any span."""
    model = build(small, SMALL)
    output = model(IDS, word_ids=torch.zeros_like(IDS), labels=LABELS)
    assert output.spans.shape == (2, 0, 2)
    assert output.loss == 0
    assert (
        decode_clusters(output.spans[0], output.antecedents[0], output.antecedent_scores[0]) == []
    )


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"sentence_ids": SENTENCES[:, :3]}, InputError, r"sentence_ids must have .* got \(2, 3\)"),
        ({"sentence_ids": SENTENCES - 9}, InputError, "must have a token with a sentence"),
        ({"speaker_ids": None}, OptionError, "feature of speaker_ids, which are missing"),
        ({"genre_ids": None}, OptionError, "feature of genre_ids, which are missing"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_malformed_documents_are_refused(small, changes, error, message):
    with pytest.raises(error, match=message):
        build(small)(IDS, **{**FEATURES, **changes})


@pytest.mark.parametrize(
    ("options", "message"),
    [({"span_width": 0}, "span_width must be positive, got 0"), ({"genres": -1}, "genres must be")],
)
def test_options_are_checked(small, options, message):
    with pytest.raises(OptionError, match=message):
        LongspanForCoreference(small(coreference=options))
