"""Mechanisms with parameters inside models of transformers."""

import copy
import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_transformers import MODELS, SIZES
from transformers import (
    CONFIG_MAPPING,
    AutoModel,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    BartConfig,
    BartModel,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    DebertaV2Config,
    DebertaV2Model,
    ElectraConfig,
    ElectraModel,
    GPT2Config,
    GPT2Model,
    RobertaConfig,
    RobertaModel,
    T5Config,
    T5EncoderModel,
    ViTConfig,
    ViTModel,
)

import longspan
from longspan.attention import MECHANISMS, Attention, build
from longspan.errors import DataError, InputError, OptionError, UnknownNameError
from longspan.training.distributed.sharding import recompute_activations

IDS = torch.randint(3, 40, (2, 20), generator=torch.Generator().manual_seed(1))
PADDED = torch.ones_like(IDS).index_fill(1, torch.arange(16, 20), 0)
OTHERS = {
    "roberta": (RobertaModel, RobertaConfig(**SIZES, pad_token_id=0)),
    "electra": (ElectraModel, ElectraConfig(**SIZES, embedding_size=16)),
    "gpt2": (GPT2Model, GPT2Config(vocab_size=40, n_embd=32, n_layer=2, n_head=4, n_positions=64)),
}


def make(name, dtype=torch.float64, **fields):
    cls, config = (MODELS | OTHERS)[name]
    config = copy.deepcopy(config)
    config.update(fields)
    torch.manual_seed(0)
    return cls._from_config(config, dtype=dtype).eval()


def mechanisms(model):
    return [x for x in model.modules() if isinstance(x, Attention)]


@pytest.mark.parametrize("name", [*MODELS, *OTHERS])
@torch.no_grad()
def test_full_computes_what_the_model_computed(name):
    model = make(name)
    expected = model(IDS, attention_mask=PADDED)[0]
    report = longspan.swap(model, "full")
    assert len(report.swapped) == len(mechanisms(model)) == (1 if name == "modernbert" else 2)
    out = model(IDS, attention_mask=PADDED)[0]
    torch.testing.assert_close(out[PADDED.bool()], expected[PADDED.bool()])
    assert all(x.backend_used for x in mechanisms(model))


TRAINED = [
    *(("bert", name) for name in MECHANISMS),
    *(("llama", name) for name, cls in MECHANISMS.items() if cls.traits.causal),
    *(("modernbert", name) for name, cls in MECHANISMS.items() if cls.traits.needs_layer_input),
]


@pytest.mark.parametrize(("model_name", "name"), TRAINED)
def test_every_mechanism_trains_and_is_saved(tmp_path, model_name, name):
    cls, model = MECHANISMS[name], make(model_name, torch.float32)
    options = {"window": 5} if name == "longformer" else cls.small_options
    longspan.swap(model, name, **options)
    out = model.train()(IDS, attention_mask=PADDED)[0]
    out[PADDED.bool()].square().mean().backward()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.grad is not None], lr=0.01)
    optimizer.step()
    expected = model.eval()(IDS, attention_mask=PADDED)[0]
    model.save_pretrained(tmp_path)
    again = longspan.load_swapped(tmp_path).eval()
    assert type(again) is type(model)
    assert len(mechanisms(again)) == len(mechanisms(model))
    # Equal weights at other addresses are rounded in another way in every layer.
    found = again(IDS, attention_mask=PADDED)[0]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", MECHANISMS)
@torch.no_grad()
def test_padding_and_later_tokens_change_nothing(name):
    causal = MECHANISMS[name].traits.causal
    model = make("llama" if causal else "bert")
    options = {"window": 5} if name == "longformer" else MECHANISMS[name].small_options
    longspan.swap(model, name, **options)
    out = model(IDS, attention_mask=PADDED)[0][:, :16]
    other = torch.where(PADDED == 0, 7, IDS)
    assert torch.equal(model(other, attention_mask=PADDED)[0][:, :16], out)
    if causal:
        later = torch.where(torch.arange(20) >= 10, 7, IDS)
        kept = model(later, attention_mask=PADDED)[0][:, :10]
        torch.testing.assert_close(kept, out[:, :10])


@torch.no_grad()
def test_mechanism_receives_rotated_queries_and_grouped_keys():
    model = make("llama")
    longspan.swap(model, "performer", features=16)
    calls = []
    for x in mechanisms(model):
        x.register_forward_pre_hook(lambda module, inputs: calls.append(inputs))
    model(IDS)
    assert [tuple(x.shape) for x in calls[0][:3]] == [(2, 4, 20, 8), (2, 2, 20, 8), (2, 2, 20, 8)]
    layer = model.model.layers[0]
    states = layer.input_layernorm(model.model.embed_tokens(IDS))
    plain = layer.self_attn.q_proj(states).unflatten(-1, (4, 8)).transpose(1, 2)
    torch.testing.assert_close(calls[0][0][:, :, 0], plain[:, :, 0])
    assert not torch.allclose(calls[0][0][:, :, 1], plain[:, :, 1])


@pytest.mark.parametrize("name", ["bert", "modernbert", "llama"])
@torch.no_grad()
def test_global_projections_start_as_those_of_the_model(name):
    """Every token is global, so the rows of Longformer are those of exact attention."""
    model = make(name)
    expected = model(IDS, attention_mask=PADDED)[0]
    if name == "bert":
        report = longspan.swap(
            model,
            "longformer",
            window=2,
            global_projections=True,
            global_positions=tuple(range(20)),
        )
        assert set(report.swapped.values()) == {3 * (32 * 32 + 32)}
        out = model(IDS, attention_mask=PADDED)[0][PADDED.bool()]
        torch.testing.assert_close(out, expected[PADDED.bool()])
    longspan.swap(model, "longformer", window=2, global_projections=True)
    found = [x.projections for x in mechanisms(model)]
    module = next(x for n, x in model.named_modules() if n.endswith(("self", "attn")))
    rows = {
        "bert": lambda: [module.query.weight, module.key.weight, module.value.weight],
        "modernbert": lambda: module.Wqkv.weight.chunk(3),
        "llama": lambda: [
            module.q_proj.weight,
            *(
                x.weight.unflatten(0, (2, 8)).repeat_interleave(2, 0).flatten(0, 1)
                for x in (module.k_proj, module.v_proj)
            ),
        ],
    }[name]()
    for own, expected in zip((found[0].query, found[0].key, found[0].value), rows, strict=True):
        assert torch.equal(own.weight, expected)


@torch.no_grad()
def test_layer_input_is_projected_as_the_model_does():
    """Position-infused attention adds p W to q and k, as if p were part of the layer's input."""
    model = make("bert")
    longspan.swap(model, "position_infused", segment=8, memory=8)
    seen = {}
    mechanism = mechanisms(model)[0]
    mechanism.register_forward_pre_hook(
        lambda module, inputs, named: seen.update(named), with_kwargs=True
    )
    before = {}
    attention = model.encoder.layer[0].attention.self
    attention.query.register_forward_hook(lambda m, i, o: before.update(x=i[0], q=o))
    model(IDS)
    layer_input = seen["layer_input"]
    assert torch.equal(layer_input.states, before["x"])
    heads = layer_input.query(layer_input.states[0]) + attention.query.bias.view(4, 1, 8)
    torch.testing.assert_close(heads, before["q"][0].unflatten(-1, (4, 8)).transpose(0, 1))
    twin = copy.deepcopy(model)
    torch.testing.assert_close(twin(IDS)[0], model(IDS)[0])
    hooked = twin.encoder.layer[0].attention.self
    assert hooked.longspan.recorder in hooked.query._forward_pre_hooks.values()


@torch.no_grad()
def test_positions_pass_through_what_replaces_a_projection():
    """An adapter of the query projection changes what a mechanism adds to the queries, too."""
    merged = make("bert")
    longspan.swap(merged, "position_infused", segment=8, memory=8)
    adapted = copy.deepcopy(merged)
    for model in (merged, adapted):
        query = model.encoder.layer[0].attention.self.query
        added = torch.full_like(query.weight, 0.1)
        if model is merged:
            query.weight += added
        else:
            model.encoder.layer[0].attention.self.query = Adapted(query, added)
    torch.testing.assert_close(adapted(IDS)[0], merged(IDS)[0])


class Adapted(torch.nn.Module):
    """Projection with an added matrix."""

    def __init__(self, base, added):
        super().__init__()
        self.base, self.added, self.weight = base, added, base.weight

    def forward(self, x):
        return self.base(x) + x @ self.added.T


@pytest.mark.parametrize("name", ["gated_linear", "gated_delta", "kimi_delta"])
def test_gates_have_the_width_of_the_model_where_heads_are_wider(name):
    model = make("llama", head_dim=16)
    longspan.swap(model, name)
    model(IDS)[0].square().mean().backward()
    assert all(x.built_for["width"] == SIZES["hidden_size"] == 32 for x in mechanisms(model))
    gates = [p for x in mechanisms(model) for p in x.parameters()]
    assert all(p.grad.abs().sum() > 0 for p in gates)


@torch.no_grad()
def test_swapped_model_generates_as_without_cache():
    model = make("llama")
    longspan.swap(model, "transformer_xl", segment=8, memory=8)
    fixed = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    fixed["attention_mask"] = PADDED.flip(1)
    assert torch.equal(
        model.generate(IDS, use_cache=True, **fixed), model.generate(IDS, use_cache=False, **fixed)
    )


@torch.no_grad()
def test_layers_and_reswap(tmp_path):
    model = make("bert")
    expected = model(IDS)[0]
    longspan.swap(model, "linformer", layers=[0])
    report = longspan.swap(model, "synthesizer", layers=[1])
    assert report.kept == {"encoder.layer.0.attention.self": "not in layers"}
    assert [x.name for x in mechanisms(model)] == ["linformer", "synthesizer"]
    unused = model.encoder.layer[1].attention.self.query.weight
    assert not unused.requires_grad
    assert "frozen" in str(report)
    model.save_pretrained(tmp_path)
    assert [x.name for x in mechanisms(longspan.load_swapped(tmp_path))] == [
        "linformer",
        "synthesizer",
    ]
    longspan.swap(model, "position_infused", layers=[0])
    longspan.swap(model, "full")
    assert unused.requires_grad
    assert not any(x._forward_pre_hooks for x in model.modules())
    torch.testing.assert_close(model(IDS)[0], expected)
    longspan.swap(model, "linformer")
    assert (model(IDS)[0] - expected).abs().max() > 1e-3
    model.set_attn_implementation("sdpa")
    assert torch.equal(model(IDS)[0], expected)


@pytest.mark.parametrize(
    ("name", "options", "lost"),
    [
        ("indexed", {}, True),
        ("linear", {"feature_map": "hedgehog", "distillation": True}, True),
        ("linear", {"feature_map": "hedgehog"}, False),
    ],
)
def test_a_loss_that_the_model_does_not_add_is_reported(name, options, lost):
    report = longspan.swap(make("bert"), name, **options)
    assert ("the auxiliary loss is added in longspan's models only" in str(report)) == lost


def test_models_of_one_configuration_object_record_their_own_swaps(tmp_path):
    config = copy.deepcopy(MODELS["bert"][1])
    models = [BertModel(config).eval() for _ in range(3)]
    longspan.swap(models[0], "local", window=3)
    longspan.swap(models[1], "linear", layers=[0])
    for model, names in zip(models, (["local"] * 2, ["linear"]), strict=False):
        model.save_pretrained(tmp_path / names[0])
        loaded = longspan.load_swapped(tmp_path / names[0]).eval()
        assert [x.name for x in mechanisms(loaded)] == names
        torch.testing.assert_close(loaded(IDS)[0], model(IDS)[0])
        assert all(x.config is model.config for x in model.modules() if hasattr(x, "config"))
    assert models[2].config._attn_implementation == "sdpa"
    models[2].save_pretrained(tmp_path / "exact")
    with pytest.raises(DataError, match="records no swap"):
        longspan.load_swapped(tmp_path / "exact")


def test_model_of_other_inputs_than_tokens_is_refused():
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    model = ViTModel(ViTConfig(**sizes, intermediate_size=24, image_size=32, patch_size=8))
    with pytest.raises(InputError, match="ViTModel cannot run on transformers' dummy inputs"):
        longspan.swap(model, "full")
    assert model.config._attn_implementation == "sdpa"


def test_random_features_are_those_of_the_layer_and_are_saved(tmp_path):
    model = make("bert", torch.float32)
    report = longspan.swap(model, "performer", features=16)
    assert "attention dropout" not in str(report)
    first, second = (x.projection for x in mechanisms(model))
    assert torch.equal(
        second, build("performer", heads=4, head_dim=8, layer=1, features=16).projection
    )
    assert not torch.equal(first, second)
    for x in mechanisms(model):
        x.redraw(5)
    model.save_pretrained(tmp_path)
    again = mechanisms(longspan.load_swapped(tmp_path))
    assert all(
        torch.equal(a.projection, b.projection)
        for a, b in zip(again, mechanisms(model), strict=True)
    )


def test_tensors_that_a_checkpoint_lacks_have_initial_values(tmp_path):
    model = make("bert", torch.float32)
    longspan.swap(model, "performer", features=16)
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    kept = {name: x for name, x in load_file(file).items() if "longspan" not in name}
    save_file(kept, file, metadata={"format": "pt"})
    again = longspan.load_swapped(tmp_path).eval()
    torch.testing.assert_close(again(IDS)[0], model(IDS)[0])


def test_checkpoint_of_one_head_loads_into_another(tmp_path):
    torch.manual_seed(0)
    model = BertForMaskedLM(BertConfig(**SIZES))
    report = longspan.swap(model, "linformer")
    assert "attention dropout of 0.1 is not applied" in str(report)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["BertForMaskedLM"]
    tensors = load_file(tmp_path / "model.safetensors")
    names = [name for name in tensors if ".longspan.mechanism." in name]
    assert len(names) == 2
    assert isinstance(longspan.load_swapped(tmp_path), BertForMaskedLM)
    classifier = longspan.load_swapped(tmp_path, BertForSequenceClassification, num_labels=3)
    assert classifier.num_labels == 3
    for name in names:
        assert torch.equal(classifier.state_dict()[name], tensors[name])
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert not mechanisms(plain)
    plain.config.longspan_swap = None
    plain.save_pretrained(tmp_path / "plain")
    with pytest.raises(DataError, match="records no swap"):
        longspan.load_swapped(tmp_path / "plain")


@pytest.mark.parametrize("other", [torch.nn.Linear(2, 2), "bert-base-uncased"])
def test_other_models_are_refused_with_the_module_to_replace(other):
    with pytest.raises(InputError, match=r"model of transformers, got .*MultiheadAttention"):
        longspan.swap(other, "local")


def test_bad_requests_leave_the_model_unchanged():
    model = make("llama")
    with pytest.raises(OptionError, match="causal=True is not supported"):
        longspan.swap(model, "nystrom")
    with pytest.raises(OptionError, match=r"layers must be.*0 and 1, got \[2\]"):
        longspan.swap(model, "full", layers=[2])
    with pytest.raises(OptionError, match=r"layers must be a list of integers.*got 1"):
        longspan.swap(model, "full", layers=1)
    with pytest.raises(UnknownNameError, match="did you mean performer"):
        longspan.swap(model, "performr")
    with pytest.raises(UnknownNameError, match="no option of 'local'"):
        longspan.swap(model, "local", windows=3)
    with pytest.raises(InputError, match="global_positions is not supported"):
        longspan.swap(model, "linear", global_positions=(0,))
    with pytest.raises(InputError, match="shares a parameter among all layers"):
        longspan.swap(make("bert"), "linformer", sharing="layerwise")
    with pytest.raises(InputError, match="not in layers"):
        longspan.swap(model, "full", layers=[])
    assert model.config._attn_implementation == "sdpa"
    assert not mechanisms(model)
    assert not hasattr(model.config, "longspan_swap")


def test_model_without_interface_is_refused():
    model = DebertaV2Model(DebertaV2Config(**SIZES))
    with pytest.raises(InputError, match="AttentionInterface"):
        longspan.swap(model, "full")


@torch.no_grad()
def test_cross_attention_and_bias_of_the_model():
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 32, "vocab_size": 40}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    tokens = {"pad_token_id": 0, "decoder_start_token_id": 2, "forced_eos_token_id": None}
    torch.manual_seed(0)
    bart = BartModel(BartConfig(**sizes, **heads, **tokens, eos_token_id=None)).eval()
    report = longspan.swap(bart, "local", window=2)
    assert report.kept == {
        "decoder.layers.0.encoder_attn": "cross-attention is not supported (traits.cross)"
    }
    assert len(report.swapped) == 2
    early, late = (bart(IDS, decoder_input_ids=x)[0] for x in (IDS, IDS.flip(1)))
    assert early.shape == late.shape
    assert len(longspan.swap(bart, "linear").swapped) == 3
    config = T5Config(vocab_size=40, d_model=32, d_kv=8, d_ff=24, num_layers=1, num_heads=4)
    t5 = T5EncoderModel(config).eval()
    expected = t5(IDS)[0]
    with pytest.raises(InputError, match="has a scale of its scores, which linear"):
        longspan.swap(t5, "linear")
    with pytest.raises(InputError, match="has a bias of its scores, which performer"):
        longspan.swap(t5, "performer")
    longspan.swap(t5, "local", window=20)
    torch.testing.assert_close(t5(IDS)[0], expected)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["bart", "m2m_100", "marian", "mbart", "pegasus", "t5", "umt5"])
@pytest.mark.parametrize("auto", [AutoModel, AutoModelForSeq2SeqLM])
def test_encoder_decoders_are_swapped(kind, auto):
    """Dummy inputs of some classes, such as that of NLLB, have none of the decoder."""
    sizes = {"num_layers": 1, "num_decoder_layers": 1, "num_heads": 4, "d_kv": 8, "d_ff": 24}
    if not kind.endswith("t5"):
        each = {"layers": 1, "attention_heads": 4, "ffn_dim": 24}
        sizes = {f"{part}_{x}": y for part in ("encoder", "decoder") for x, y in each.items()}
    tokens = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 2}
    config = CONFIG_MAPPING[kind](vocab_size=40, d_model=32, **sizes, **tokens)
    torch.manual_seed(0)
    model = auto.from_config(config).eval()
    if kind == "umt5":
        reason = "UMT5 of transformers 5.17 calls its attention in a way that is refused"
        pytest.importorskip("transformers", minversion="5.23", reason=reason)
    expected = model(IDS, decoder_input_ids=IDS.flip(1))[0]
    report = longspan.swap(model, "full")
    assert len(report.swapped) == 3
    torch.testing.assert_close(model(IDS, decoder_input_ids=IDS.flip(1))[0], expected)
    if auto is AutoModel:
        assert len(longspan.swap(model.get_encoder(), "full").swapped) == 1


def test_dropout_of_the_model_drops_weights_of_the_mechanism():
    model = make("bert", attention_probs_dropout_prob=0.5)
    longspan.swap(model, "full")
    expected = model(IDS)[0]
    assert torch.equal(model(IDS)[0], expected)
    assert (model.train()(IDS)[0] - expected).abs().max() > 1e-3
    longspan.swap(model, "linear")
    assert model.training
    assert mechanisms(model)[0].training
    assert torch.equal(model(IDS)[0], model(IDS)[0])


def test_checkpointed_activations_have_the_same_gradients():
    gradients = []
    for checkpointing in (False, True):
        model = make("bert").train()
        longspan.swap(model, "longformer", window=2, global_projections=True, global_positions=(0,))
        if checkpointing:
            recompute_activations(model)
        model(IDS)[0].square().mean().backward()
        found = mechanisms(model)[0].projections.query.weight.grad
        assert found.abs().max() > 0
        gradients.append(found)
    torch.testing.assert_close(*gradients)


@torch.no_grad()
def test_unknown_projections_are_refused_only_where_they_are_needed():
    model = make("qwen3")
    with pytest.raises(InputError, match=r"projections to \['k', 'q'\].*were not found"):
        longspan.swap(model, "longformer", window=2)
    longspan.swap(model, "local", window=2)
