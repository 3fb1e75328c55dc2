"""# Summarize papers with a long encoder-decoder

LED reads a whole paper with local and global attention and writes its abstract with a full decoder
(Beltagy et al. 2020, section 7). `LongspanForConditionalGeneration` is that model, and any
mechanism may stand in its encoder. It trains with transformers' `Seq2SeqTrainer`, and `generate`
searches with beams, which share the states of the encoder.

Without `--source` the model is a small one with random weights, so that everything runs on a CPU.
The data are papers in the format of `scientific_papers` (Cohan et al. 2018), one JSON object a line
with `article_text` and `abstract_text`:

    python docs/examples/summarize_papers.py --train train.jsonl.gz --test test.jsonl.gz

The same script on a GPU, with the lengths of LED and a BART that `longspan longify` made long:

    longspan longify facebook/bart-base --mechanism longformer --max-length 16384 \\
        --output led-16384 --set window=512 --set global_projections=true --set first_global=true
    python docs/examples/summarize_papers.py --train train.txt --test val.txt --source led-16384 \\
        --max-length 16384 --summary-length 512 --train-examples 100000 --test-examples 1000 \\
        --epochs 3 --batch-size 2 --learning-rate 3e-5 --beams 4
"""

# %%
import argparse
import gzip
import itertools
import json
import math
import re
import tempfile
from pathlib import Path

from rouge_score.rouge_scorer import RougeScorer
from tokenizers import ByteLevelBPETokenizer
from tokenizers.processors import RobertaProcessing
from transformers import (
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    PreTrainedTokenizerFast,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    set_seed,
)

from longspan.models import LongspanConfig, LongspanForConditionalGeneration

parser = argparse.ArgumentParser(description="Summarize papers with a long encoder-decoder.")
parser.add_argument("--train", type=Path, required=True, help="papers for training")
parser.add_argument("--test", type=Path, required=True, help="held-out papers")
parser.add_argument("--source", help="encoder-decoder of longspan; default: random weights")
parser.add_argument("--max-length", type=int, default=1_024, help="tokens of a paper")
parser.add_argument("--summary-length", type=int, default=64, help="tokens of an abstract")
parser.add_argument("--window", type=int, default=32, help="tokens on each side of a token")
parser.add_argument("--train-examples", type=int, default=80)
parser.add_argument("--test-examples", type=int, default=8)
parser.add_argument("--epochs", type=float, default=5)
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--learning-rate", type=float, default=3e-3)
parser.add_argument("--beams", type=int, default=4)
parser.add_argument("--out", type=Path, default=None, help="folder to write; default: temporary")
settings = parser.parse_args()
out = settings.out or Path(tempfile.mkdtemp())
set_seed(0)

# %% [markdown]
# ## Papers and abstracts
#
# Both are lists of sentences; those of the abstract stand between `<S>` and `</S>`.


# %%
def read_papers(path, count):
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        rows = [json.loads(line) for line in itertools.islice(file, count)]
    return [
        {
            "paper": " ".join(row["article_text"]),
            "abstract": re.sub(r"</?S>", "", " ".join(row["abstract_text"])).strip(),
        }
        for row in rows
    ]


train_papers = read_papers(settings.train, settings.train_examples)
test_papers = read_papers(settings.test, settings.test_examples)

# %% [markdown]
# ## Model and tokenizer
#
# The fields of the configuration describe the encoder; the decoder has the same, but full causal
# attention, and what `decoder_overrides` says. `first_global` makes the first token global, as LED
# does for summaries: `generate` and the collator then need no mask for it. Other global tokens are
# given as `global_attention_mask`.


# %%
def train_tokenizer(texts):
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    pairs = ByteLevelBPETokenizer()
    pairs.train_from_iterator(texts, vocab_size=2_000, special_tokens=special)
    pairs._tokenizer.post_processor = RobertaProcessing(("</s>", 2), ("<s>", 0))
    return PreTrainedTokenizerFast(
        tokenizer_object=pairs._tokenizer,
        model_max_length=settings.max_length,
        **dict(zip(("bos_token", "pad_token", "eos_token", "unk_token"), special, strict=True)),
    )


if settings.source:
    tokenizer = AutoTokenizer.from_pretrained(settings.source)
    model = LongspanForConditionalGeneration.from_pretrained(settings.source)
else:
    tokenizer = train_tokenizer([text for paper in train_papers for text in paper.values()])
    model = LongspanForConditionalGeneration(
        LongspanConfig(
            vocab_size=len(tokenizer),
            max_position_embeddings=settings.max_length,
            attention="longformer",
            attention_options={"window": settings.window, "first_global": True},
            is_encoder_decoder=True,
            decoder_overrides={"max_position_embeddings": settings.summary_length},
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            decoder_start_token_id=tokenizer.eos_token_id,  # as in BART
        )
    )

# %% [markdown]
# ## Train
#
# The collator pads papers and abstracts apart, and makes the decoder's inputs out of the labels.
# Beams like to repeat themselves; as in BART's summaries, no three tokens may occur twice.


# %%
model.generation_config.no_repeat_ngram_size = 3


def encode(paper):
    tokens = tokenizer(paper["paper"], truncation=True, max_length=settings.max_length)
    labels = tokenizer(paper["abstract"], truncation=True, max_length=settings.summary_length)
    return {**tokens, "labels": labels["input_ids"]}


trainer = Seq2SeqTrainer(
    model,
    Seq2SeqTrainingArguments(
        str(out / "training"),
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=settings.batch_size,
        per_device_eval_batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        warmup_steps=0.1,  # a tenth of the steps
        logging_steps=0.1,
        predict_with_generate=True,
        generation_max_length=settings.summary_length,
        generation_num_beams=settings.beams,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    ),
    train_dataset=[encode(paper) for paper in train_papers],
    eval_dataset=[encode(paper) for paper in test_papers],
    data_collator=DataCollatorForSeq2Seq(tokenizer, model),
    processing_class=tokenizer,
)
trainer.train()
losses = [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]

# %% [markdown]
# ## Generate and score
#
# `predict` generates with beams. Beside the ROUGE of the summaries stands that of the first words
# of the papers, a baseline that is hard to beat in short training; the perplexity is that of the
# abstracts' tokens.


# %%
def rouge(texts):
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)
    pairs = zip(test_papers, texts, strict=True)
    found = [scorer.score(paper["abstract"], text) for paper, text in pairs]
    return {
        name: round(100 * sum(scores[name].fmeasure for scores in found) / len(found), 1)
        for name in scorer.rouge_types
    }


predicted = trainer.predict(trainer.eval_dataset, metric_key_prefix="test")
ids = [[x for x in row if x >= 0] for row in predicted.predictions.tolist()]
summaries = tokenizer.batch_decode(ids, skip_special_tokens=True)
words = settings.summary_length // 2
beginnings = [" ".join(paper["paper"].split()[:words]) for paper in test_papers]
perplexity = math.exp(predicted.metrics["test_loss"])
scores, baseline = rouge(summaries), rouge(beginnings)
print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f}, held-out perplexity {perplexity:.0f}")
print("summaries:", scores, "beginnings of the papers:", baseline)
print(summaries[0])

# %% [markdown]
# ## Save

# %%
trainer.save_model(out / "summarizer")
