"""Adaptive embeddings and softmax, against torch's module and the formula word by word."""

import json

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from flop_counter import flop_counter
from longspan.analysis.embedding_similarity import token_similarity
from longspan.config import DecodingConfig
from longspan.errors import InputError, OptionError
from longspan.models import (
    Continuation,
    LongspanConfig,
    LongspanForCausalLM,
    LongspanForConditionalGeneration,
    LongspanForMaskedLM,
    lengthen,
)
from longspan.models.adaptive import AdaptiveSoftmax

V, W, CUTOFFS = 60, 32, [10, 25, 41]
FACTORS = pytest.mark.parametrize("factor", [1, 2, 3])
TIES = pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])


def make_config(factor=2, tied=True, **fields):
    return LongspanConfig(
        **{
            "vocab_size": V,
            "hidden_size": W,
            "intermediate_size": 24,
            "num_hidden_layers": 1,
            "max_position_embeddings": 40,
            "position": "rotary",
            "hidden_dropout_prob": 0.0,
            "attention_dropout": 0.0,
            "initializer_range": 0.3,
            "adaptive_cutoffs": CUTOFFS,
            "adaptive_factor": factor,
            "tie_word_embeddings": tied,
            "is_decoder": True,
            **fields,
        }
    )


def make_model(factor=2, tied=True, **fields):
    torch.manual_seed(1)
    return LongspanForCausalLM(make_config(factor, tied, **fields)).double().eval()


def tokens(rows=2, length=17):
    return torch.randint(1, V, (rows, length), generator=torch.Generator().manual_seed(2))


def torch_softmax(head: AdaptiveSoftmax, factor):
    """Return torch's module with the weights of ours."""
    made = nn.AdaptiveLogSoftmaxWithLoss(W, V, CUTOFFS, div_value=factor).double()
    with torch.no_grad():
        made.head.weight.copy_(torch.cat((head.words[0].weight, head.cluster_scores.weight)))
        for number, (project, words) in enumerate(made.tail):
            words.weight.copy_(head.words[number + 1].weight)
            # torch projects to the full width too.
            narrow = head.projections[number].weight if factor > 1 else torch.eye(W)
            project.weight.copy_(narrow)
    return made


@FACTORS
@TIES
def test_probabilities_and_losses_are_those_of_torch(factor, tied):
    head = make_model(factor, tied).lm_head
    truth = torch_softmax(head, factor)
    states = torch.randn(3, 50, W, dtype=torch.float64)
    labels = torch.randint(0, V, (3, 50))
    assert len({int(torch.bucketize(x, torch.tensor(CUTOFFS), right=True)) for x in labels[0]}) == 4
    torch.testing.assert_close(head(states).flatten(0, 1), truth.log_prob(states.flatten(0, 1)))
    expected = truth(states.flatten(0, 1), labels.flatten()).output
    torch.testing.assert_close(head(states, labels).flatten(), -expected)


@FACTORS
def test_gradients_of_losses_are_those_of_torch(factor):
    head = make_model(factor, tied=False).lm_head
    truth = torch_softmax(head, factor)
    ours, theirs = (torch.ones(1, V, W).double().cumsum(1).sin() for _ in range(2))
    labels = torch.arange(V)[None]
    head(ours.requires_grad_(), labels).sum().backward()
    (-truth(theirs.requires_grad_()[0], labels[0]).output).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
    first = torch.cat((head.words[0].weight.grad, head.cluster_scores.weight.grad))
    torch.testing.assert_close(first, truth.head.weight.grad)
    for number, (project, words) in enumerate(truth.tail):
        torch.testing.assert_close(head.words[number + 1].weight.grad, words.weight.grad)
        if factor > 1:
            torch.testing.assert_close(head.projections[number].weight.grad, project.weight.grad)


@FACTORS
def test_embeddings_are_projected_rows_of_their_table(factor):
    words = make_model(factor).model.embeddings.words
    ends = [0, *CUTOFFS, V]
    expected = []
    for token in range(V):
        number = sum(token >= cutoff for cutoff in CUTOFFS)
        vector = words.tables[number].weight[token - ends[number]]
        assert len(vector) == W // factor**number
        expected.append(vector @ words.projections[number].weight if factor > 1 else vector)
    truth = torch.stack(expected)
    torch.testing.assert_close(words(torch.arange(V)), truth)
    torch.testing.assert_close(words.weight, truth)


@FACTORS
def test_tied_model_has_the_parameters_of_the_formula(factor):
    sizes = [(end - start, W // factor**i) for i, (start, end) in
             enumerate(zip([0, *CUTOFFS], [*CUTOFFS, V], strict=True))]  # fmt: skip
    tables = sum(words * width for words, width in sizes)
    projections = sum(width * W for _, width in sizes) if factor > 1 else 0
    plain = make_model(adaptive_cutoffs=[]).num_parameters() - V * W
    clusters = len(CUTOFFS) * W
    assert make_model(factor).num_parameters() == plain + tables + projections + clusters
    untied = make_model(factor, tied=False).num_parameters()
    copied = tables + (projections - W * W if factor > 1 else 0)
    assert untied == plain + tables + projections + clusters + copied


def test_loss_is_the_cross_entropy_of_the_logits():
    model, ids = make_model(), tokens()
    labels = ids.masked_fill(ids % 5 == 0, -100)
    output = model(ids, labels=labels)
    logits = model(ids).logits
    torch.testing.assert_close(logits.exp().sum(-1), torch.ones(ids.shape).double())
    expected = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    torch.testing.assert_close(output.loss, expected)
    assert output.logits is None
    shifted = F.pad(labels[:, 1:], (0, 1), value=-100)
    assert ((output.token_losses == 0) == (shifted == -100)).all()
    torch.testing.assert_close(model(ids, shift_labels=shifted).token_losses, output.token_losses)


class LargestColumns(TorchDispatchMode):
    """Mode that keeps the largest tensor with a row for every position."""

    def __init__(self, positions):
        super().__init__()
        self.positions, self.columns = positions, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run an operator and look at its outputs."""
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor):
                self.columns = max(self.columns, x.numel() // self.positions)
        return out


def test_training_makes_no_logits_of_rare_words():
    """Of 2,000 words 1,960 are in clusters of few labels; a pass makes the first 40 everywhere."""
    vocabulary, cutoffs = 2_000, [40, 200]
    fields = {"vocab_size": vocabulary, "adaptive_cutoffs": cutoffs, "tie_word_embeddings": False}
    model = make_model(**fields).train()
    ids = torch.randint(1, 40, (4, 40), generator=torch.Generator().manual_seed(0))
    ids[0, 5], ids[2, 7] = 100, 1_500
    with LargestColumns(ids.numel()) as trained:
        model(ids, labels=ids).loss.backward()
    with LargestColumns(ids.numel()) as whole:
        model(ids).logits.sum().backward()
    # Parameters and their gradients have the words once, not for each of 160 positions.
    assert trained.columns < 4 * W < vocabulary <= whole.columns


def test_clusters_without_labels_have_gradients_of_zero():
    """Processes that share a batch wait for the gradient of every parameter."""
    model = make_model(tied=False).train()
    ids = torch.full((1, 6), 3)
    model(ids, labels=ids).loss.backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in model.parameters())
    assert model.lm_head.words[2].weight.grad.abs().max() == 0
    assert model.lm_head.words[0].weight.grad.abs().max() > 0


def test_labels_that_are_all_ignored_have_no_loss():
    model, ids = make_model().train(), tokens()
    output = model(ids, labels=torch.full_like(ids, -100))
    output.loss.backward()
    assert output.loss == 0
    assert all(x.grad.isfinite().all() for x in model.parameters())


def test_mixed_precision_trains_with_losses_in_float32():
    model, ids = make_model().float(), tokens()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(ids, labels=ids)
    output.loss.backward()
    assert output.token_losses.dtype == torch.float32
    torch.testing.assert_close(output.loss, model(ids, labels=ids).loss, rtol=0.03, atol=0.03)


@FACTORS
@TIES
def test_checkpoint_has_tied_weights_once_and_the_same_outputs(factor, tied, tmp_path):
    model, ids = make_model(factor, tied), tokens()
    model.save_pretrained(tmp_path)
    names = set(load_file(tmp_path / "model.safetensors"))
    of_head = {name for name in names if name.startswith("lm_head")}
    assert (of_head == {"lm_head.cluster_scores.weight"}) == tied
    content = json.loads((tmp_path / "config.json").read_text())
    assert (content["adaptive_cutoffs"], content["adaptive_factor"]) == (CUTOFFS, factor)
    loaded = LongspanForCausalLM.from_pretrained(tmp_path).double().eval()
    torch.testing.assert_close(loaded(ids).logits, model(ids).logits)
    shared = loaded.lm_head.words[1].weight is loaded.model.embeddings.words.tables[1].weight
    assert shared == tied


def test_generation_takes_the_most_likely_words():
    model, ids = make_model(), tokens(rows=1, length=5)
    expected = ids
    for _ in range(6):
        following = model(expected).logits[:, -1].argmax(-1, keepdim=True)
        expected = torch.cat((expected, following), 1)
    made = model.generate(ids, max_new_tokens=6, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert made.tolist() == expected.tolist()
    drawn = Continuation(model, ids[0].tolist(), DecodingConfig(max_new_tokens=6, greedy=True))
    assert list(drawn) == expected[0, 5:].tolist()


def counted(**fields):
    """Return the FLOPs of a model by our count and by torch's."""
    model, counter = make_model(**fields), flop_counter()
    with torch.no_grad(), counter:
        model(tokens(rows=1))
    return model.flops(model.config, {"input_ids": (17,)}), counter.get_total_flops()


@pytest.mark.parametrize(
    "fields", [{}, {"embedding_size": 16}, {"residual": "reversible"}], ids=str
)
@FACTORS
@TIES
def test_flops_differ_from_those_of_one_softmax_as_torch_counts(fields, factor, tied):
    """Torch counts attention to later tokens too, and we no map to wider embeddings."""
    if fields.get("embedding_size") and factor == 3:
        fields = {"embedding_size": 30}
    plain, adaptive = (
        counted(factor=factor, tied=tied, adaptive_cutoffs=x, **fields) for x in ([], CUTOFFS)
    )
    assert adaptive[0] - plain[0] == adaptive[1] - plain[1]


@pytest.mark.parametrize("fields", [{"embedding_size": 16}, {"residual": "reversible"}], ids=str)
@TIES
def test_other_widths_of_embeddings_and_states(fields, tied):
    model, ids = make_model(tied=tied, **fields), tokens()
    logits = model(ids).logits
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    torch.testing.assert_close(model(ids, labels=ids).loss, loss)


def test_projected_embeddings_begin_with_the_deviation_of_others():
    config = make_config(vocab_size=3_000, adaptive_cutoffs=[1_000, 2_000], hidden_size=64)
    weight = LongspanForCausalLM(config).model.embeddings.words.weight.detach()
    for part in weight.split(1_000):
        assert float(part.std()) == pytest.approx(0.3, rel=0.1)


def test_lengthened_models_keep_their_words():
    model, ids = make_model(), tokens()
    longer = lengthen(model, 80)
    torch.testing.assert_close(longer(ids).logits, model(ids).logits)
    assert longer(tokens(length=70)).logits.shape == (2, 70, V)


def test_similarity_of_words_is_that_of_their_embeddings():
    found = token_similarity(make_model().model)
    assert (found.count, found.dimensions) == (V, W)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"adaptive_cutoffs": [10, 10]}, r"ascending ids from 1 to 59.* got \[10, 10\]"),
        ({"adaptive_cutoffs": [20, 10]}, "ascending"),
        ({"adaptive_cutoffs": [0, 10]}, "ascending"),
        ({"adaptive_cutoffs": [-3, 10]}, "ascending"),
        ({"adaptive_cutoffs": [10, 60]}, "below vocab_size=60"),
        ({"adaptive_factor": 4, "adaptive_cutoffs": [10, 20, 30]}, "leaves no dimension of 32"),
        ({"lm_head_bias": True}, "an adaptive softmax has no bias"),
        ({"embedding_size": 4}, "leaves no dimension of 4 to the last of 4 clusters"),
        ({"adaptive_factor": 0}, "adaptive_factor must be at least 1"),
        ({"input_features": 3}, "require token ids, got input_features=3"),
    ],
)
def test_clusters_that_do_not_fit_are_refused(fields, reason):
    with pytest.raises(OptionError, match=reason):
        make_config(**fields)


def test_other_heads_refuse_clusters():
    config = make_config(is_decoder=False)
    with pytest.raises(OptionError, match="use LongspanForCausalLM"):
        LongspanForMaskedLM(config)
    with pytest.raises(OptionError, match="does not support adaptive_cutoffs"):
        LongspanForConditionalGeneration(make_config(is_decoder=False, is_encoder_decoder=True))


def test_ids_and_labels_outside_the_vocabulary_are_refused():
    model, ids = make_model(), tokens()
    for wrong in (V, -1):
        bad = ids.clone()
        bad[0, 3] = wrong
        with pytest.raises(InputError, match=r"token ids must be in 0\.\.59"):
            model(bad)
        with pytest.raises(InputError, match=r"labels must be in 0\.\.59"):
            model(ids, shift_labels=bad)


def test_labels_of_another_shape_are_refused(unchecked):
    with pytest.raises(InputError, match="labels must have the shape"):
        make_model()(tokens(), shift_labels=tokens()[:, 1:])
