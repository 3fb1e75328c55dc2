"""Models whose mechanisms have sinks: trained, decoded in a bounded cache, saved and loaded."""

import torch

from longspan.models import LongspanConfig, LongspanForCausalLM

CONFIG = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "is_decoder": True,
}
OPTIONS = {"window": 8, "sink_tokens": 2, "sink_logit": True}


def test_causal_model_with_sinks(tmp_path):
    torch.manual_seed(0)
    config = LongspanConfig(**CONFIG, attention="local", attention_options=OPTIONS)
    model, ids = LongspanForCausalLM(config), torch.randint(3, 50, (2, 40))
    sinks = {n: x for n, x in model.named_parameters() if n.endswith("mechanism.sink_logits")}
    assert [tuple(x.shape) for x in sinks.values()] == [(4,), (4,)]
    model(input_ids=ids, labels=ids).loss.backward()
    assert all(x.grad.any() for x in sinks.values())
    for x in sinks.values():
        x.data.normal_(std=2)
    fixed = {"max_new_tokens": 10, "min_new_tokens": 10, "do_sample": False}
    texts = [model.eval().generate(ids, use_cache=cached, **fixed) for cached in (True, False)]
    assert torch.equal(*texts)
    model.save_pretrained(tmp_path)
    loaded = LongspanForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(loaded(input_ids=ids).logits, model(input_ids=ids).logits)
