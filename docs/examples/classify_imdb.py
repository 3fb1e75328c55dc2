"""# Classify movie reviews with a RoBERTa made long

A RoBERTa reads 512 tokens. `longify` gives it the attention of Longformer and positions for 4,096,
and transformers' `Trainer` finetunes the result as any other classifier. This script is the whole
road: a short checkpoint, a long one, training, accuracy on held-out reviews, a pipeline.

Without `--source` it makes a short RoBERTa itself, so small that everything runs on a CPU. The data
are the reviews of Maas et al. 2011 as Parquet files with the columns `text` and `label` (0 or 1),
the format of `stanfordnlp/imdb` on the Hugging Face Hub:

    python docs/examples/classify_imdb.py --train train.parquet --test test.parquet

The same script on a GPU, with the pretrained weights and the lengths of Longformer:

    python docs/examples/classify_imdb.py --train train.parquet --test test.parquet \\
        --source FacebookAI/roberta-base --max-length 4096 --window 256 \\
        --train-examples 25000 --test-examples 25000 --epochs 3 --batch-size 8 --learning-rate 3e-5
"""

# %%
import argparse
import random
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
from tokenizers import ByteLevelBPETokenizer
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    DataCollatorWithPadding,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaTokenizer,
    Trainer,
    TrainingArguments,
    pipeline,
    set_seed,
)

from longspan import longify

parser = argparse.ArgumentParser(description="Classify movie reviews with a RoBERTa made long.")
parser.add_argument("--train", type=Path, required=True, help="Parquet file of training reviews")
parser.add_argument("--test", type=Path, required=True, help="Parquet file of held-out reviews")
parser.add_argument("--source", help="checkpoint to convert; default: a small one is trained")
parser.add_argument("--attention", default="longformer", help="mechanism of the long model")
parser.add_argument("--max-length", type=int, default=256, help="tokens of the long model")
parser.add_argument("--window", type=int, default=16, help="tokens on each side of a token")
parser.add_argument("--pooling", default="mean", help="state to classify: mean or first")
parser.add_argument("--train-examples", type=int, default=800)
parser.add_argument("--test-examples", type=int, default=300)
parser.add_argument("--epochs", type=float, default=3)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--learning-rate", type=float, default=2e-3)
parser.add_argument("--pretraining-steps", type=int, default=30, help="of the small checkpoint")
parser.add_argument("--out", type=Path, default=None, help="folder to write; default: temporary")
settings = parser.parse_args()
out = settings.out or Path(tempfile.mkdtemp())
set_seed(0)

# %% [markdown]
# ## Reviews
#
# The files are sorted by label, so the reviews are shuffled before some of them are taken.


# %%
def read_reviews(path, count):
    rows = pq.read_table(path, columns=["text", "label"]).to_pylist()
    return random.Random(0).sample(rows, min(count, len(rows)))


train_reviews = read_reviews(settings.train, settings.train_examples)
test_reviews = read_reviews(settings.test, settings.test_examples)

# %% [markdown]
# ## A short RoBERTa
#
# Any RoBERTa on the Hub or in a folder will do. This one has two layers and 64 positions, a
# tokenizer learned from the training reviews, and a few steps of masked language modeling behind
# it.

# %%
LABELS = {0: "negative", 1: "positive"}
SHORT = 64


def training_arguments(name, **changes):
    return TrainingArguments(
        str(out / name),
        per_device_train_batch_size=settings.batch_size,
        per_device_eval_batch_size=settings.batch_size,
        warmup_steps=0.1,  # a tenth of the steps
        logging_steps=0.1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **changes,
    )


def train_short_roberta(texts, folder):
    """Train a tokenizer and a small RoBERTa, and write both to a folder."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    pairs = ByteLevelBPETokenizer()
    pairs.train_from_iterator(texts, vocab_size=2_000, special_tokens=special)
    folder.mkdir(parents=True)
    pairs.save_model(str(folder))
    tokenizer = RobertaTokenizer.from_pretrained(folder, model_max_length=SHORT)
    model = RobertaForMaskedLM(
        RobertaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=128,
            initializer_range=0.1,  # narrow layers need larger weights
            max_position_embeddings=SHORT + 2,  # RoBERTa counts from 2
        )
    )
    trainer = Trainer(
        model,
        training_arguments("pretraining", max_steps=settings.pretraining_steps, learning_rate=3e-4),
        train_dataset=[tokenizer(text, truncation=True) for text in texts],
        data_collator=DataCollatorForLanguageModeling(tokenizer),
    )
    trainer.train()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


source = settings.source
if source is None:
    source = out / "short"
    train_short_roberta([review["text"] for review in train_reviews], source)

# %% [markdown]
# ## Make it long
#
# Every weight is copied; the position table is tiled. `global_projections` are Longformer's
# separate projections of global tokens, which start from the local ones. `first_global` lets the
# first token, `<s>`, attend to all others and be attended by them. The new layers classify the mean
# of the tokens' states, or with `--pooling first` the state of `<s>`.

# %%
options = {"window": settings.window}
if settings.attention == "longformer":
    options |= {"global_projections": True, "first_global": True}
converted = longify(
    source,
    attention=settings.attention,
    options=options,
    max_length=settings.max_length,
    out=out / "long",
)
print(next(x.action for x in converted.weights if x.target.endswith("positions.weight")))

# %% [markdown]
# ## Finetune
#
# From here on nothing is particular to long models. The classifier's last two layers are new.


# %%
tokenizer = AutoTokenizer.from_pretrained(out / "long")
model = AutoModelForSequenceClassification.from_pretrained(
    out / "long",
    pooling=settings.pooling,
    id2label=LABELS,
    label2id={name: label for label, name in LABELS.items()},
)


def encode(review):
    return {**tokenizer(review["text"], truncation=True), "labels": review["label"]}


def accuracy(found):
    return {"accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())}


trainer = Trainer(
    model,
    training_arguments(
        "finetuning",
        num_train_epochs=settings.epochs,
        learning_rate=settings.learning_rate,
    ),
    train_dataset=[encode(review) for review in train_reviews],
    eval_dataset=[encode(review) for review in test_reviews],
    data_collator=DataCollatorWithPadding(tokenizer),
    processing_class=tokenizer,
    compute_metrics=accuracy,
)
trainer.train()
losses = [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
scores = trainer.evaluate()
print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f}, accuracy {scores['eval_accuracy']:.1%}")

# %% [markdown]
# ## Use it
#
# The folder holds weights, configuration and tokenizer; `pipeline` loads it.

# %%
trainer.save_model(out / "classifier")
classify = pipeline("text-classification", str(out / "classifier"), truncation=True)
print(classify("A superb film: every scene is wonderful, and I loved the ending."))
