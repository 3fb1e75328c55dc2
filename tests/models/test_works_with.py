"""Tools around transformers: Trainer, collators, pipelines, accelerate, LoRA; on real text."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments, pipeline

from longspan.attention import MECHANISMS
from longspan.data.tokenizers import ByteTokenizer
from longspan.models import (
    LongspanConfig,
    LongspanForCausalLM,
    LongspanForConditionalGeneration,
    LongspanForMaskedLM,
    LongspanForSequenceClassification,
    LongspanForTokenClassification,
    LongspanModel,
)
from longspan.models.attention_layer import SelfAttention
from longspan.tokenizers import make_fast_tokenizer

TEXT = (Path(__file__).parents[2] / "docs/development/decisions.md").read_text(encoding="utf-8")
LENGTH = 64
LAUNCHED = """
import sys
import torch
from accelerate import Accelerator
from longspan.models import LongspanConfig, LongspanForSequenceClassification

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
model = LongspanForSequenceClassification(LongspanConfig(attention="local", vocab_size=50))
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=3e-3))
ids = torch.arange(1, 41).view(4, 10)[accelerator.process_index * 2 :][:2]
losses = []
for _ in range(6):
    loss = model(ids, labels=torch.tensor([0, 1])).loss
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(accelerator.reduce(loss.detach(), "mean").item())
processes = int(sys.argv[1])
assert accelerator.num_processes == processes
assert losses[-1] < losses[0], losses
weights = accelerator.gather(next(model.parameters()).flatten()[None]).view(processes, -1)
assert weights[0].equal(weights[-1])
"""


def tokenizer(*special_tokens):
    return make_fast_tokenizer(ByteTokenizer(), max_length=LENGTH, special_tokens=special_tokens)


def config(vocabulary, **fields):
    torch.manual_seed(0)
    fields = {"attention": "local", "attention_options": {"window": 8}} | fields
    size = {"vocab_size": len(vocabulary), "max_position_embeddings": LENGTH}
    return LongspanConfig(**size, **fields)


def pieces(vocabulary, count=64):
    starts = range(0, count * LENGTH, LENGTH)
    return [vocabulary(TEXT[i : i + LENGTH], truncation=True) for i in starts]


def train(model, data, collator, folder, steps=24):
    """Train and return the first and the last logged loss."""
    arguments = TrainingArguments(
        str(folder),
        per_device_train_batch_size=8,
        max_steps=steps,
        learning_rate=5e-3,
        logging_steps=steps // 4,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model, arguments, data_collator=collator, train_dataset=data)
    trainer.train()
    losses = [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    return losses[0], losses[-1]


@pytest.mark.parametrize("masked", [True, False])
def test_trainer_and_collator_train_language_models(masked, tmp_path):
    vocabulary = tokenizer("unk", "cls", "sep", "mask") if masked else tokenizer()
    cls = LongspanForMaskedLM if masked else LongspanForCausalLM
    collator = DataCollatorForLanguageModeling(vocabulary, mlm=masked)
    first, last = train(cls(config(vocabulary)), pieces(vocabulary), collator, tmp_path)
    assert last < 0.85 * first


def test_pipelines_run():
    vocabulary = tokenizer("unk", "cls", "sep", "mask")
    made = config(vocabulary, id2label={0: "no", 1: "yes"}, label2id={"no": 0, "yes": 1})
    filled = pipeline("fill-mask", LongspanForMaskedLM(made), tokenizer=vocabulary)
    assert len(filled(f"the m{vocabulary.mask_token}trix")) == 5
    label = pipeline(
        "text-classification", LongspanForSequenceClassification(made), tokenizer=vocabulary
    )
    assert label("a text")[0]["label"] in ("no", "yes")
    tokens = pipeline(
        "token-classification", LongspanForTokenClassification(made), tokenizer=vocabulary
    )
    assert len(tokens("abc")) >= 3
    features = pipeline("feature-extraction", LongspanModel(made), tokenizer=vocabulary)
    assert torch.tensor(features("abc")).shape == (1, 5, made.hidden_size)
    plain = tokenizer("eos")
    generator = pipeline("text-generation", LongspanForCausalLM(config(plain)), tokenizer=plain)
    text = generator("abc", max_new_tokens=3, do_sample=False)[0]["generated_text"]
    assert text.startswith("abc")


@pytest.mark.parametrize("cls", [LongspanForCausalLM, LongspanForConditionalGeneration])
def test_generation_ends_at_a_stop_string(cls):
    """transformers passes the tokenizer, which finds the string, on to the model."""
    vocabulary = tokenizer()
    fields = {"initializer_range": 0.5, "decoder_start_token_id": 5, "pad_token_id": 0}
    model = cls(config(vocabulary, **fields)).eval()
    ids, mask = torch.tensor([[70, 75, 80]]), torch.ones(1, 3)
    unreadable = [*range(50), *range(100, len(vocabulary))]
    options = {"attention_mask": mask, "max_new_tokens": 8, "do_sample": False}
    options["suppress_tokens"] = unreadable
    whole = model.generate(ids, **options)
    stop = vocabulary.decode(whole[0, -4])
    assert stop.isascii()
    found = model.generate(ids, **options, stop_strings=[stop], tokenizer=vocabulary)
    assert vocabulary.decode(found[0]).endswith(stop)
    assert found.equal(whole[:, : found.shape[1]])


@pytest.mark.skipif(not importlib.util.find_spec("peft"), reason="peft is not installed")
def test_lora_trains_the_adapters_only(tmp_path):
    from peft import LoraConfig, PeftModel, get_peft_model

    vocabulary = tokenizer()
    base = LongspanForCausalLM(config(vocabulary))
    before = {name: x.clone() for name, x in base.state_dict().items()}
    adapters = LoraConfig(target_modules=["query", "value"], r=4, task_type="CAUSAL_LM")
    model = get_peft_model(base, adapters)
    collator = DataCollatorForLanguageModeling(vocabulary, mlm=False)
    first, last = train(model, pieces(vocabulary, 8), collator, tmp_path / "run", steps=40)
    assert last < first
    for name, x in before.items():
        kept = name.replace("query.", "query.base_layer.").replace("value.", "value.base_layer.")
        assert base.state_dict()[kept].equal(x), name
    model.save_pretrained(tmp_path / "adapters")
    ids = torch.arange(1, 21)[None]
    expected = model.eval()(ids).logits
    torch.manual_seed(0)
    fresh = LongspanForCausalLM(config(vocabulary))
    fresh.load_state_dict(before)
    loaded = PeftModel.from_pretrained(fresh, tmp_path / "adapters").eval()
    torch.testing.assert_close(loaded(ids).logits, expected)


def test_adapters_reach_mechanisms_that_project_by_themselves():
    """A position is projected as the tokens are."""
    layer = SelfAttention(
        config(tokenizer(), attention="position_infused", attention_options={}), 0
    )
    x = torch.randn(3, layer.config.hidden_size)
    plain = layer._layer_input(x[None]).query(x)
    layer.query = Adapted(layer.query)
    adapted = layer._layer_input(x[None]).query(x)
    expected = plain.transpose(0, 1).flatten(1) + x @ layer.query.added.T
    torch.testing.assert_close(adapted.transpose(0, 1).flatten(1), expected)


# Options of mechanisms with further linear maps.
MAPS = {"longformer": {"global_projections": True}, "native_sparse": {"compression": "mlp"}}


def with_added(name, merges):
    """Return a model whose linear maps have added matrices, merged into weights or as adapters."""
    torch.manual_seed(0)
    options = {**MECHANISMS[name].small_options, **MAPS.get(name, {})}
    fields = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LongspanModel(
        LongspanConfig(attention=name, attention_options=options, vocab_size=50, **fields)
    ).double()
    for module in list(model.modules()):
        for part, layer in list(module.named_children()):
            if type(layer) is torch.nn.Linear:
                adapted = Adapted(layer)
                setattr(module, part, layer if merges else adapted)
                layer.weight.data += adapted.added if merges else 0
    return model.eval()


@torch.no_grad()
@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_adapters_of_every_map_equal_merged_weights(name):
    """No mechanism reads the weights of a map past what stands in its place."""
    ids, marked = torch.randint(1, 50, (2, 30)), torch.zeros(2, 30, dtype=torch.bool)
    marked[:, 0] = True
    masks = {"global_attention_mask": marked} if MECHANISMS[name].traits.global_tokens else {}
    merged, adapted = (with_added(name, x)(ids, **masks) for x in (True, False))
    torch.testing.assert_close(adapted.last_hidden_state, merged.last_hidden_state)


class Adapted(torch.nn.Module):
    """Projection with an added matrix."""

    def __init__(self, base):
        super().__init__()
        self.base, self.added = base, 0.2 * torch.randn_like(base.weight)
        self.in_features, self.bias = base.in_features, base.bias

    @property
    def weight(self):
        return self.base.weight

    def forward(self, x):
        return self.base(x) + x @ self.added.T


# accelerate starts several processes on a CPU through MPI only; torchrun needs none.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "processes"),
    [
        (["accelerate.commands.launch", "--cpu", "--num_processes", "1"], 1),
        (["torch.distributed.run", "--standalone", "--nproc_per_node", "2"], 2),
    ],
)
def test_launchers_train(launcher, processes, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(LAUNCHED)
    command = [sys.executable, "-m", *launcher, str(script), str(processes)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.skipif(
    not importlib.util.find_spec("sentence_transformers"),
    reason="sentence-transformers is not installed",
)
def test_sentence_transformers_trains_the_encoder_of_passages(tmp_path):
    from sentence_transformers import SentenceTransformer, losses
    from sentence_transformers.models import Pooling, Transformer

    vocabulary = tokenizer()
    LongspanModel(config(vocabulary, hidden_dropout_prob=0.0)).save_pretrained(tmp_path)
    vocabulary.save_pretrained(tmp_path)
    encoder = Transformer(str(tmp_path))
    model = SentenceTransformer(modules=[encoder, Pooling(64)], device="cpu")
    texts = ["a text", "another, longer text"]
    inputs = vocabulary(texts, padding=True, return_tensors="pt")
    expected = LongspanModel.from_pretrained(tmp_path).eval()(**inputs).pooler_output
    torch.testing.assert_close(torch.tensor(model.encode(texts)), expected.detach())
    # A passage is the positive of the one that it follows.
    first, second = (
        vocabulary.pad(pieces(vocabulary, 16)[start::2], return_tensors="pt") for start in (0, 1)
    )
    loss_of = losses.MultipleNegativesRankingLoss(model)
    optimizer, found = torch.optim.AdamW(model.parameters(), lr=3e-3), []
    for _ in range(15):
        loss = loss_of([dict(first), dict(second)], None)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    assert found[-1] < 0.7 * found[0]
