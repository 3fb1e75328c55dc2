"""Keys selected by an indexer: scores of transformers, and training by its own loss."""

import pytest
import torch
from contract import (
    HEAD_DIM,
    HEADS,
    assert_near,
    check_contract,
    full_and_causal,
    key_masks,
    qkv,
    run_steps,
    weights_of,
)
from torch.utils.checkpoint import checkpoint

from longspan import build
from longspan.attention import Inputs, LayerInput
from longspan.attention.mechanisms import indexed as module
from longspan.errors import InputError

WIDTH = HEADS * HEAD_DIM
OPTIONS = [
    {"num_selected_keys": 1, "index_heads": 1, "index_dim": 1},
    {"num_selected_keys": 9, "index_dim": 6, "trained_on": "selected"},
    {"num_selected_keys": 100},
]


def indexed(causal=True, **options):
    torch.manual_seed(0)
    small = {"num_selected_keys": 6, "index_heads": 2, "index_dim": 8}
    sizes = {"heads": HEADS, "head_dim": HEAD_DIM}
    return build("indexed", causal=causal, **sizes, **small | options).double()


def layer_input(T, B=3, seed=1):
    g = torch.Generator().manual_seed(seed)
    states = torch.randn(B, T, WIDTH, generator=g, dtype=torch.float64)
    return LayerInput(states, lambda p: p, lambda p: p)


@full_and_causal
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_form_obeys_the_contract(options, causal):
    check_contract(indexed(causal, **options), lengths=(1, 9, 33), first_step=23 if causal else 1)


def transformers_indexer(attention):
    """Return the indexer of transformers with the weights of a mechanism, and its rotary table."""
    deepseek = pytest.importorskip("transformers.models.deepseek_v32")
    ours = attention.indexer
    config = deepseek.DeepseekV32Config(
        hidden_size=WIDTH,
        q_lora_rank=WIDTH,
        qk_rope_head_dim=ours.dim // 2,
        index_n_heads=ours.heads,
        index_head_dim=ours.dim,
        index_topk=attention.num_selected_keys,
        num_attention_heads=HEADS,
        num_hidden_layers=1,
    )
    theirs = deepseek.modeling_deepseek_v32.DeepseekV32Indexer(config, 0).double()
    with torch.no_grad():
        for one, other in (
            (theirs.wq_b, ours.query),
            (theirs.wk, ours.key),
            (theirs.k_norm, ours.norm),
            (theirs.weights_proj, ours.head_weights),
        ):
            one.load_state_dict(other.state_dict())
    return theirs, deepseek.modeling_deepseek_v32.DeepseekV32RotaryEmbedding(config)


@pytest.mark.parametrize("options", [{}, {"index_heads": 5, "index_dim": 16}])
def test_selection_is_that_of_transformers_with_copied_weights(options):
    """Its scores are in float32, so keys whose scores nearly agree could be exchanged."""
    attention, T, source = indexed(**options), 50, layer_input(50)
    with torch.no_grad():
        attention.indexer.norm.weight.normal_()
        attention.indexer.norm.bias.normal_()
    theirs, rotary = transformers_indexer(attention)
    positions = torch.arange(T)[None]
    table = tuple(x.double() for x in rotary(source.states, positions))
    past = torch.ones(T, T, dtype=torch.bool).tril().expand(3, T, T)
    index = theirs(source.states, source.states, table, past, positions).long()
    expected = torch.zeros(3, T, T, dtype=torch.bool).scatter(2, index, True) & past
    q, k, _ = qkv(T)
    seen = weights_of(attention, q, k, layer_input=source) > 0
    # Where many keys have a score of zero, transformers selects any of them.
    a, w, b = attention.indexer(source.states, source.states, 0)
    scores = module.index_scores(a, w, b).masked_fill(~past, -torch.inf)
    least = scores.topk(attention.num_selected_keys).values[..., -1:]
    unique = (scores == least).sum(2) == 1
    assert unique[:, 20:].float().mean() > 0.5
    assert torch.equal(seen[:, 0][unique], expected[unique])


@full_and_causal
def test_enough_keys_equal_full_attention(causal):
    inputs, mask = qkv(40), key_masks(40)["holes"]
    out = indexed(causal, num_selected_keys=40)(*inputs, mask)
    assert_near(out, build("full", causal=causal)(*inputs, mask), "output")


@full_and_causal
def test_all_heads_share_as_many_keys_as_asked_for(causal):
    seen = weights_of(indexed(causal), *qkv(40)[:2]) > 0
    assert torch.equal(seen[:, 0], seen[:, 1])
    counts = torch.arange(1, 41).clamp(max=6) if causal else torch.full((40,), 6)
    assert (seen[:, 0].sum(2) == counts).all()


def test_later_keys_win_among_equal_scores():
    """Every score is zero: relu hides products of one sign."""
    attention = indexed()
    with torch.no_grad():
        attention.indexer.query.weight.zero_()
    seen = weights_of(attention, *qkv(40)[:2])[0, 0] > 0
    key, query = torch.arange(40), torch.arange(40)[:, None]
    assert torch.equal(seen, (key <= query) & (key > query - 6))


def test_the_indexer_sees_distances():
    """Equal tokens have equal scores without the rotation, and the last keys would be selected."""
    attention, states = indexed(index_heads=8), torch.ones(1, 40, WIDTH).double()
    with torch.no_grad():
        attention.indexer.head_weights.weight.abs_()
    a, w, b = attention.indexer(states, states, 0)
    scores = module.index_scores(a, w, b)[0]
    assert scores[39].max() - scores[39].min() > 1e-3
    assert_near(scores[39, 10:30], scores[35, 6:26], "scores of equal distances")


def test_a_long_row_gathers_the_keys_of_a_step(monkeypatch):
    attention, inputs = indexed(num_selected_keys=2), qkv(60)
    expected = attention(*inputs)
    _, cache = run_steps(attention, [x[:, :, :59] for x in inputs], (59,))
    monkeypatch.setattr(module, "softmax_attention", None)
    out, _ = run_steps(attention, inputs, (1,), cache=cache)
    assert_near(out, expected[:, :, 59:], "output")


@full_and_causal
def test_rows_in_pieces_equal_those_at_once(monkeypatch, causal):
    attention, inputs, mask = indexed(causal), qkv(60), key_masks(60)["ragged"]
    expected = attention(*inputs, mask)
    for rows in (7, 32):
        monkeypatch.setattr(module, "ROWS", rows)
        assert_near(attention(*inputs, mask), expected, f"{rows} rows")


def loss_of(attention, q, k, mask=None, source=None, cache=None):
    return attention.auxiliary_loss(Inputs(q, k, k, mask=mask, layer_input=source, cache=cache))


def expected_loss(attention, q, k, mask, source):
    """Return the loss from all pairs, query by query."""
    T, losses = q.shape[2], []
    real = torch.ones(3, T, dtype=torch.bool) if mask is None else mask
    a, w, b = attention.indexer(source.states * real[..., None], source.states * real[..., None], 0)
    for row in range(3):
        for t in range(T):
            keys = [s for s in range(t + 1 if attention.causal else T) if real[row, s]]
            if not real[row, t]:
                continue
            dots = (a[row, :, t] @ b[row, keys].T / attention.indexer.dim**0.5).relu()
            scores = w[row, t] @ dots / attention.indexer.heads**0.5
            if attention.trained_on == "selected":
                best = scores.argsort()[-attention.num_selected_keys :]
                scores, keys = scores[best], [keys[i] for i in best]
            p = torch.stack(
                [
                    (q[row, h, t] @ k[row, h, keys].T / HEAD_DIM**0.5).softmax(0)
                    for h in range(HEADS)
                ]
            ).mean(0)
            losses.append((p * (p.log() - scores.log_softmax(0))).sum())
    return torch.stack(losses).mean()


@full_and_causal
@pytest.mark.parametrize("trained_on", ["all", "selected"])
@pytest.mark.parametrize("kind", ["none", "holes"])
def test_loss_is_the_divergence_of_each_query(causal, trained_on, kind):
    """With many heads no score is exactly zero, so no two are equal."""
    attention = indexed(causal, trained_on=trained_on, index_heads=8)
    (q, k, _), mask, source = qkv(20), key_masks(20)[kind], layer_input(20)
    expected = expected_loss(attention, q, k, mask, source)
    assert_near(loss_of(attention, q, k, mask, source), expected, "loss")


@full_and_causal
@pytest.mark.parametrize("trained_on", ["all", "selected"])
def test_loss_of_rows_in_pieces_is_that_at_once(monkeypatch, causal, trained_on):
    attention, mask, source = indexed(causal, trained_on=trained_on), key_masks(60)["holes"], None
    q, k, _ = qkv(60)
    derivatives = []
    for rows in (1024, 7, 32):
        monkeypatch.setattr(module, "ROWS", rows)
        loss = loss_of(attention, q, k, mask, source)
        parameters = tuple(attention.parameters())
        first = torch.autograd.grad(loss, parameters, create_graph=True)
        second = torch.autograd.grad(sum((x**2).sum() for x in first), parameters)
        with torch.no_grad():
            alone = loss_of(attention, q, k, mask, source)
        plain = torch.autograd.grad(loss_of(attention, q, k, mask, source), parameters)
        derivatives.append((loss, alone, *first, *plain, *second))
    for found in derivatives[1:]:
        for x, y in zip(found, derivatives[0], strict=True):
            assert_near(x, y, "loss or derivative")


def test_loss_of_rows_in_pieces_is_checkpointed(monkeypatch):
    """The layer is recomputed once, in the backward pass."""
    attention, (q, k, _), count = indexed(), qkv(60), []
    monkeypatch.setattr(module, "ROWS", 7)

    def loss(q):
        count.append(1)
        return loss_of(attention, q, k)

    parameters = tuple(attention.parameters())
    expected = torch.autograd.grad(loss(q), parameters)
    found = checkpoint(loss, q, use_reentrant=False)
    assert_near(torch.autograd.grad(found, parameters), expected, "gradient")
    assert len(count) == 3


def test_only_the_indexer_learns_from_the_loss_and_from_nothing_else():
    attention, source = indexed(), layer_input(20)
    q, k, v = (x.requires_grad_() for x in qkv(20))
    source.states.requires_grad_()
    out = attention(q, k, v, layer_input=source)
    out.sum().backward()
    assert source.states.grad is None
    assert all(x.grad is None for x in attention.parameters())
    q.grad = k.grad = None
    loss_of(attention, q, k, None, source).backward()
    assert q.grad is None
    assert k.grad is None
    assert source.states.grad is None
    assert all(x.grad.any() for x in attention.parameters())


def test_padding_has_no_part_in_the_loss():
    attention, (q, k, _), source = indexed(), qkv(20), layer_input(30)
    short = LayerInput(source.states[:, :20], source.query, source.key)
    expected = loss_of(attention, q, k, None, short)
    q, k = (torch.cat([x, torch.full_like(x[:, :, :10], torch.nan)], 2) for x in (q, k))
    source.states[:, 20:] = torch.nan
    mask = (torch.arange(30) < 20).expand(3, -1)
    loss = loss_of(attention, q, k, mask, source)
    assert_near(loss, expected, "loss")
    loss.backward()
    assert all(x.grad.isfinite().all() for x in attention.parameters())
    assert loss_of(attention, q, k, torch.zeros_like(mask), source) == 0


def test_loss_of_steps_is_that_of_the_whole():
    attention, (q, k, v), source = indexed(), qkv(20), layer_input(20)
    whole, losses, cache = loss_of(attention, q, k, None, source), [], None
    for rows in (slice(0, 12), slice(12, 20)):
        own = LayerInput(source.states[:, rows], source.query, source.key)
        q_part, k_part, v_part = (x[:, :, rows] for x in (q, k, v))
        losses.append(loss_of(attention, q_part, k_part, None, own, cache) * q_part.shape[2])
        cache = attention.step(q_part, k_part, v_part, cache, layer_input=own)[1]
    assert_near(sum(losses) / 20, whole, "loss")


def test_loss_takes_grouped_heads():
    attention, (q, k, _) = indexed(), qkv(20)
    few = loss_of(attention, q, k[:, :1])
    assert_near(few, loss_of(attention, q, k[:, :1].expand_as(k)), "loss")


def test_loss_refuses_other_inputs():
    attention, (q, k, _) = indexed(), qkv(6)
    wrong = LayerInput(torch.zeros(3, 6, 5).double(), lambda p: p, lambda p: p)
    with pytest.raises(InputError, match=r"indexed does not .*24 wide, as built; got 5"):
        loss_of(attention, q, k, None, wrong)
