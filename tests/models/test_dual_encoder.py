"""Dual encoder: similarities, losses by hand, towers, padding, sentence-transformers' pooling."""

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModel
from transformers.models.clip import modeling_clip

from exactness import assert_bitwise_equal
from longspan.errors import InputError, OptionError
from longspan.models import LongspanDualEncoder, LongspanModel

# transformers renamed it.
clip_loss = getattr(modeling_clip, "image_text_contrastive_loss", None) or modeling_clip.clip_loss
GENERATOR = torch.Generator().manual_seed(1)
QUERIES = torch.randint(1, 50, (4, 6), generator=GENERATOR)
DOCUMENTS = torch.randint(1, 50, (4, 11), generator=GENERATOR)
NEGATIVES = torch.randint(1, 50, (4, 3, 8), generator=GENERATOR)


def build(small, **fields) -> LongspanDualEncoder:
    return LongspanDualEncoder(small(**fields)).double().eval()


def loss_by_hand(model, scale=1.0, cosine=False, negatives=()):
    """Return the mean of -log p(own document | query) over the batch, pair by pair."""
    losses = []
    for i, query in enumerate(QUERIES):
        x = model.model(query[None]).pooler_output[0]
        scores = []
        for text in (*DOCUMENTS, *negatives):
            tower = model.document_model or model.model
            y = tower(text[None]).pooler_output[0]
            similarity = (x * y).sum() / (x.norm() * y.norm() if cosine else 1)
            scores.append(similarity * scale)
        losses.append(torch.stack(scores).logsumexp(0) - scores[i])
    return torch.stack(losses).mean()


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    ("fields", "scale"),
    [
        ({}, 1.0),
        ({"similarity_scale": 0.25}, 0.25),
        ({"similarity": "cosine"}, 20.0),
        ({"similarity": "cosine", "similarity_scale": 3}, 3.0),
    ],
)
def test_loss_is_that_of_negatives_in_the_batch(small, shared, fields, scale):
    model = build(small, shared_towers=shared, **fields)
    cosine = "similarity" in fields
    found = model(QUERIES, DOCUMENTS).loss
    torch.testing.assert_close(found, loss_by_hand(model, scale, cosine))
    found = model(QUERIES, DOCUMENTS, negative_input_ids=NEGATIVES).loss
    others = NEGATIVES.flatten(0, 1)
    torch.testing.assert_close(found, loss_by_hand(model, scale, cosine, others))


def test_symmetric_loss_is_that_of_clip(small):
    """Radford et al. 2021, figure 3; hard negatives count for the queries alone."""
    model = build(small, symmetric_loss=True, similarity="cosine")
    output = model(QUERIES, DOCUMENTS)
    torch.testing.assert_close(output.loss, clip_loss(20 * output.similarities))
    output = model(QUERIES, DOCUMENTS, negative_input_ids=NEGATIVES)
    columns = 20 * output.similarities[:, :4].mT
    backward = F.cross_entropy(columns, torch.arange(4))
    forward = loss_by_hand(model, 20, True, NEGATIVES.flatten(0, 1))
    torch.testing.assert_close(output.loss, (forward + backward) / 2)


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_similarities_are_products_of_the_embeddings(small, similarity):
    model = build(small, similarity=similarity, shared_towers=False)
    output = model(QUERIES, DOCUMENTS, negative_input_ids=NEGATIVES)
    queries, documents = output.query_embeddings, output.document_embeddings
    torch.testing.assert_close(queries, model.encode_query(QUERIES))
    torch.testing.assert_close(documents, model.encode_document(DOCUMENTS))
    negatives = model.encode_document(NEGATIVES.flatten(0, 1))
    torch.testing.assert_close(output.negative_embeddings.flatten(0, 1), negatives)
    everything = torch.cat((documents, negatives))
    torch.testing.assert_close(output.similarities, queries @ everything.mT)
    norms = everything.norm(dim=1)
    assert torch.allclose(norms, torch.ones_like(norms)) is (similarity == "cosine")


def test_padding_of_any_text_is_ignored(small):
    model = build(small, similarity="cosine")
    expected = model(QUERIES, DOCUMENTS, negative_input_ids=NEGATIVES)
    inputs = {}
    for name, ids in (("query", QUERIES), ("document", DOCUMENTS), ("negative", NEGATIVES)):
        inputs[f"{name}_input_ids"] = F.pad(ids, (0, 5), value=7)
        inputs[f"{name}_attention_mask"] = F.pad(torch.ones_like(ids), (0, 5))
    torch.testing.assert_close(model(**inputs).to_tuple(), expected.to_tuple())


@pytest.mark.usefixtures("unchecked")
def test_negatives_without_tokens_are_no_negatives(small):
    model = build(small, similarity="cosine", symmetric_loss=True)
    mask = torch.ones_like(NEGATIVES)
    mask[0, 1:], mask[2], mask[3, 0] = 0, 0, 0
    output = model(QUERIES, DOCUMENTS, negative_input_ids=NEGATIVES, negative_attention_mask=mask)
    real = mask.bool().any(-1)
    excluded = output.similarities[:, 4:] == torch.finfo(torch.float64).min
    assert excluded.equal(~real.flatten().expand(4, -1))
    expected = model(QUERIES, DOCUMENTS, negative_input_ids=NEGATIVES[real][None])
    torch.testing.assert_close(output.loss, expected.loss)
    output.loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_empty_texts_have_finite_cosines_in_float16(small):
    model = build(small, similarity="cosine").half()
    embedding = model.encode_query(QUERIES, torch.zeros_like(QUERIES))
    assert embedding.dtype == torch.float16
    assert not embedding.any()


def test_auxiliary_losses_of_hard_negatives_are_added_in_training(small):
    options = {"segment": 2, "memory": 2, "compressed_memory": 2, "ratio": 2, "compression": "conv"}
    fields = {"attention": "compressive", "attention_options": options, "is_decoder": True}
    model = build(small, **fields)
    expected = model(QUERIES, DOCUMENTS, negative_input_ids=NEGATIVES).loss
    model.train()
    for ids in (QUERIES, DOCUMENTS, NEGATIVES.flatten(0, 1)):
        expected = expected + model.model(ids).auxiliary_loss
    found = model(QUERIES, DOCUMENTS, negative_input_ids=NEGATIVES).loss
    torch.testing.assert_close(found, expected)


def test_documents_without_queries_are_ranked(small):
    model = build(small)
    output = model(QUERIES[:2], DOCUMENTS, return_loss=False)
    assert output.loss is None
    torch.testing.assert_close(output.similarities, model(QUERIES, DOCUMENTS).similarities[:2])
    with pytest.raises(InputError, match="got 2 queries and 4 documents; pass return_loss=False"):
        model(QUERIES[:2], DOCUMENTS)


def test_masks_of_negatives_need_negatives(small):
    with pytest.raises(InputError, match=r"attention_mask must have one shape \(B, C, T\)"):
        build(small)(QUERIES, DOCUMENTS, negative_attention_mask=torch.ones_like(NEGATIVES))


def test_towers_are_shared_or_independent(small):
    shared, two = build(small), build(small, shared_towers=False)
    assert two.num_parameters() == 2 * shared.num_parameters()
    torch.testing.assert_close(shared.encode_query(QUERIES), shared.encode_document(QUERIES))
    assert not torch.allclose(two.encode_query(QUERIES), two.encode_document(QUERIES))
    two.copy_query_tower()
    torch.testing.assert_close(two.encode_query(QUERIES), two.encode_document(QUERIES))
    before = two.encode_document(QUERIES)
    with torch.no_grad():
        two.model.embeddings.words.weight.add_(torch.randn(50, 16))
    assert_bitwise_equal(two.encode_document(QUERIES), before, "rerun")
    assert not torch.allclose(two.encode_query(QUERIES), before)
    with pytest.raises(OptionError, match="shared_towers=True has one tower"):
        shared.copy_query_tower()


@pytest.mark.parametrize("attention", ["performer", "longformer"])
def test_both_towers_load_as_saved(small, tmp_path, attention):
    model = LongspanDualEncoder(small(shared_towers=False, attention=attention)).eval()
    model.save_pretrained(tmp_path / "dual")
    loaded = LongspanDualEncoder.from_pretrained(tmp_path / "dual")
    expected = model(QUERIES, DOCUMENTS).to_tuple()
    torch.testing.assert_close(loaded(QUERIES, DOCUMENTS).to_tuple(), expected)
    model.model.save_pretrained(tmp_path / "one")
    started = LongspanDualEncoder.from_pretrained(tmp_path / "one", shared_towers=False).eval()
    started.copy_query_tower()
    for encode in (started.encode_query, started.encode_document):
        torch.testing.assert_close(encode(QUERIES), model.encode_query(QUERIES))


@pytest.mark.parametrize("pooling", ["mean", "max", "first", "last"])
def test_saved_tower_gives_the_embeddings_to_sentence_transformers(small, tmp_path, pooling):
    """Its `Pooling` reads the states of `AutoModel` and the mask; computed here by its formulas."""
    model = LongspanDualEncoder(small(pooling=pooling, shared_towers=False)).eval()
    model.document_model.save_pretrained(tmp_path)
    tower = AutoModel.from_pretrained(tmp_path)
    assert type(tower) is LongspanModel
    lengths = torch.tensor([11, 3, 7, 1])
    mask = (torch.arange(11) < lengths[:, None]).long()
    states = tower(input_ids=DOCUMENTS, attention_mask=mask, return_dict=False)[0]
    pooled = {
        "mean": (states * mask[..., None]).sum(1) / lengths[:, None],
        "max": states.masked_fill(mask[..., None] == 0, -1e9).amax(1),
        "first": states[:, 0],
        "last": states[torch.arange(4), lengths - 1],
    }
    torch.testing.assert_close(model.encode_document(DOCUMENTS, mask), pooled[pooling])


def test_similarities_and_scales_are_checked(small):
    with pytest.raises(KeyError, match="no similarity called 'euclidean'"):
        small(similarity="euclidean")
    for scale in (0, -1.0, float("nan")):
        with pytest.raises(OptionError, match=r"similarity_scale must be in \(0, 1e\+38\]"):
            small(similarity_scale=scale)


def test_documents_that_answer_other_queries_are_no_negatives(small):
    """Document 2 answers query 0 too, and hard negative 1 of query 3 answers query 1."""
    model = build(small, similarity="cosine", symmetric_loss=True)
    numbers = {
        "document_numbers": torch.tensor([7, 8, 9, 6]),
        "negative_numbers": torch.arange(12).reshape(4, 3) + 20,
        "answer_numbers": torch.tensor([[7, 9, -1], [30, 8, 99], [9, -1, -1], [6, -1, -1]]),
    }
    output = model(QUERIES, DOCUMENTS, negative_input_ids=NEGATIVES, **numbers)
    plain = model(QUERIES, DOCUMENTS, negative_input_ids=NEGATIVES).similarities
    others = torch.zeros(4, 16, dtype=torch.bool)
    others[0, 2] = others[1, 4 + 10] = True
    lowest = torch.finfo(torch.float64).min
    assert output.similarities.equal(plain.masked_fill(others, lowest))
    scores = 20 * plain.masked_fill(others, -torch.inf)
    forward = F.cross_entropy(scores, torch.arange(4))
    backward = F.cross_entropy(scores[:, :4].mT, torch.arange(4))
    torch.testing.assert_close(output.loss, (forward + backward) / 2)
    output.loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_answers_need_the_numbers_of_all_documents(small):
    model, answers = build(small), torch.zeros(4, 1, dtype=torch.int64)
    expected = (
        r"needs document_numbers \(and negative_numbers\) of all 16 documents and negatives, got"
    )
    with pytest.raises(InputError, match=f"{expected} 4"):
        model(
            QUERIES,
            DOCUMENTS,
            negative_input_ids=NEGATIVES,
            document_numbers=torch.arange(4),
            answer_numbers=answers,
        )
    with pytest.raises(InputError, match="got 0"):
        model(QUERIES, DOCUMENTS, answer_numbers=answers)


@pytest.mark.parametrize("shared", [True, False])
def test_texts_of_one_side_are_embedded_without_a_loss(small, shared):
    model = build(small, shared_towers=shared)
    queries = model(query_input_ids=QUERIES, return_loss=False)
    documents = model(document_input_ids=DOCUMENTS, return_loss=False)
    torch.testing.assert_close(queries.query_embeddings, model.encode_query(QUERIES))
    torch.testing.assert_close(documents.document_embeddings, model.encode_document(DOCUMENTS))
    assert queries.document_embeddings is documents.query_embeddings is queries.similarities is None
    for side in ({"query_input_ids": QUERIES}, {"document_input_ids": DOCUMENTS}, {}):
        with pytest.raises(InputError, match="to rank documents or to embed texts"):
            model(**side)


@pytest.mark.parametrize("mixed", [True, False])
@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_half_precision_compares_the_embeddings_as_a_ranking_does(small, similarity, mixed):
    """Near documents have other similarities in float32, and often one in bfloat16."""
    model = LongspanDualEncoder(small(similarity=similarity))
    model = model if mixed else model.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        output = model(QUERIES, DOCUMENTS, negative_input_ids=NEGATIVES)
    texts = output.document_embeddings, output.negative_embeddings.flatten(0, 1)
    expected = output.query_embeddings.float() @ torch.cat(texts).float().mT
    torch.testing.assert_close(output.similarities, expected)
