"""# Answer questions about long documents

Extractive question answering marks the answer in the text: the model scores each token as the first
and the last one of the answer. Here a document is all paragraphs of an article, several times
longer than what a BERT reads, and the question is global: every token of the document attends to
it, however far away it is, and it attends to every token (Beltagy et al. 2020, section 6).

Without `--source` the model is a small one with random weights, so that everything runs on a CPU.
The data are articles in the format of SQuAD v1.1, such as XQuAD in English (Artetxe et al. 2020):

    python docs/examples/answer_questions.py --data xquad.en.json

The same script on a GPU, with pretrained weights that `longspan longify` made long, trained on
SQuAD:

    longspan longify FacebookAI/roberta-base --mechanism longformer --max-length 4096 \\
        --output roberta-4096 --set window=256 --set global_projections=true
    python docs/examples/answer_questions.py --data train-v1.1.json --test xquad.en.json \\
        --source roberta-4096 --max-length 4096 --epochs 3 --batch-size 4 --learning-rate 3e-5
"""

# %%
import argparse
import collections
import gzip
import json
import random
import re
import string
import tempfile
from pathlib import Path

import torch
from tokenizers import ByteLevelBPETokenizer
from tokenizers.processors import RobertaProcessing
from transformers import (
    AutoTokenizer,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)

from longspan.models import LongspanConfig, LongspanForQuestionAnswering, best_spans

parser = argparse.ArgumentParser(description="Answer questions about long documents.")
parser.add_argument("--data", type=Path, required=True, help="articles in SQuAD's format")
parser.add_argument("--test", type=Path, help="held-out articles; default: a fifth of the data")
parser.add_argument("--source", help="checkpoint of longspan; default: random weights")
parser.add_argument("--max-length", type=int, default=2_048, help="tokens of question and document")
parser.add_argument("--window", type=int, default=32, help="tokens on each side of a token")
parser.add_argument("--articles", type=int, default=6, help="articles to read; 0: all")
parser.add_argument("--epochs", type=float, default=5)
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--learning-rate", type=float, default=3e-3)
parser.add_argument("--out", type=Path, default=None, help="folder to write; default: temporary")
settings = parser.parse_args()
out = settings.out or Path(tempfile.mkdtemp())
set_seed(0)

# %% [markdown]
# ## Documents and answers
#
# The paragraphs of an article are joined; the place of an answer moves with its paragraph.


# %%
def read_articles(path):
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        return json.load(file)["data"][: settings.articles or None]


def questions_of(article):
    """Join the paragraphs of an article and return its questions with the answers' places."""
    found, document = [], ""
    for paragraph in article["paragraphs"]:
        for question in paragraph["qas"]:
            answer = question["answers"][0]
            start = len(document) + answer["answer_start"]
            found.append(
                {"question": question["question"], "answer": answer["text"], "start": start}
            )
        document += paragraph["context"] + "\n"
    return [{**question, "document": document} for question in found]


articles = read_articles(settings.data)
if settings.test:
    held_out = read_articles(settings.test)
else:
    count = max(len(articles) // 5, 1)
    articles, held_out = articles[count:], articles[:count]
train_questions = [question for article in articles for question in questions_of(article)]
test_questions = [question for article in held_out for question in questions_of(article)]
print(len(train_questions), "questions for training,", len(test_questions), "held out")

# %% [markdown]
# ## Model and tokenizer
#
# The small model has the attention of Longformer; its tokenizer is learned from the articles.


# %%
def train_tokenizer(texts):
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    pairs = ByteLevelBPETokenizer(trim_offsets=True)
    pairs.train_from_iterator(texts, vocab_size=2_000, special_tokens=special)
    pairs._tokenizer.post_processor = RobertaProcessing(("</s>", 2), ("<s>", 0))
    return PreTrainedTokenizerFast(
        tokenizer_object=pairs._tokenizer,
        model_max_length=settings.max_length,
        **dict(zip(("bos_token", "pad_token", "eos_token", "unk_token"), special, strict=True)),
    )


if settings.source:
    tokenizer = AutoTokenizer.from_pretrained(settings.source)
    model = LongspanForQuestionAnswering.from_pretrained(settings.source)
else:
    tokenizer = train_tokenizer({question["document"] for question in train_questions})
    model = LongspanForQuestionAnswering(
        LongspanConfig(
            vocab_size=len(tokenizer),
            max_position_embeddings=settings.max_length,
            attention="longformer",
            attention_options={"window": settings.window},
            pad_token_id=tokenizer.pad_token_id,
            initializer_range=0.1,  # narrow layers need larger weights
        )
    )

# %% [markdown]
# ## Tokens of a question
#
# The tokenizer's offsets translate places of characters into places of tokens, and back. A document
# that does not fit is cut, and an answer behind the cut has no place: the model ignores labels of
# -100. Global are the question and the special tokens before it.


# %%
def encode(question):
    tokens = tokenizer(
        question["question"],
        question["document"],
        truncation="only_second",
        max_length=settings.max_length,
        return_offsets_mapping=True,
    )
    parts = tokens.sequence_ids()  # 0: question, 1: document, None: special
    first = parts.index(1)
    end = question["start"] + len(question["answer"])
    inside = [
        i
        for i, (begin, after) in enumerate(tokens["offset_mapping"])
        if parts[i] == 1 and begin < end and after > question["start"]
    ]
    complete = inside and tokens["offset_mapping"][inside[-1]][1] >= end
    return {
        "input_ids": tokens["input_ids"],
        "global_attention_mask": [int(i < first) for i in range(len(parts))],
        "start_positions": inside[0] if complete else -100,
        "end_positions": inside[-1] if complete else -100,
        "offsets": tokens["offset_mapping"],
        "in_document": [int(part == 1) for part in parts],
    }


def collate(rows):
    """Pad a batch: ids, masks, and the places of the answers."""
    longest = max(len(row["input_ids"]) for row in rows)

    def pad(name, value):
        padded = [row[name] + [value] * (longest - len(row[name])) for row in rows]
        return torch.tensor(padded)

    batch = {
        "input_ids": pad("input_ids", tokenizer.pad_token_id),
        "global_attention_mask": pad("global_attention_mask", 0),
        "attention_mask": torch.tensor(
            [[1] * len(row["input_ids"]) + [0] * (longest - len(row["input_ids"])) for row in rows]
        ),
    }
    for name in ("start_positions", "end_positions"):
        batch[name] = torch.tensor([row[name] for row in rows])
    return batch


train_rows = [encode(question) for question in train_questions]
test_rows = [encode(question) for question in test_questions]
cut = sum(row["start_positions"] < 0 for row in train_rows + test_rows)
print(f"{cut} of {len(train_rows + test_rows)} answers are behind the cut")

# %% [markdown]
# ## Train

# %%
trainer = Trainer(
    model,
    TrainingArguments(
        str(out / "training"),
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=settings.batch_size,
        per_device_eval_batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        warmup_steps=0.1,  # a tenth of the steps
        logging_steps=0.1,
        remove_unused_columns=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    ),
    train_dataset=train_rows,
    data_collator=collate,
    processing_class=tokenizer,
)
trainer.train()
losses = [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]

# %% [markdown]
# ## From scores to text
#
# `best_spans` finds the pair of tokens with the largest sum of scores. Only tokens of the document
# may be an answer. The offsets of the two tokens cut it out of the document.


# %%
def text_of(question, row, start, end):
    offsets = row["offsets"]
    return question["document"][offsets[start][0] : offsets[end][1]]


@torch.no_grad()
def answer(questions, rows):
    model.eval()
    texts = []
    for begin in range(0, len(rows), settings.batch_size):
        part = rows[begin : begin + settings.batch_size]
        batch = {name: x.to(model.device) for name, x in collate(part).items()}
        scores = model(**batch)
        allowed = torch.zeros_like(batch["input_ids"])
        for i, row in enumerate(part):
            allowed[i, : len(row["in_document"])] = torch.tensor(row["in_document"])
        spans = best_spans(scores.start_logits, scores.end_logits, allowed, max_length=30)
        for i, row in enumerate(part):
            question = questions[begin + i]
            texts.append(text_of(question, row, int(spans.start[i]), int(spans.end[i])))
    return texts


# %% [markdown]
# ## Exact match and F1
#
# As in SQuAD's script: without case, punctuation and articles; F1 is that of the words. The right
# tokens, turned into text, bound what a model can reach: they miss answers behind the cut, and
# those that begin or end within a token.


# %%
def normalize(text):
    text = "".join(x for x in text.lower() if x not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def exact_match(found, expected):
    return float(normalize(found) == normalize(expected))


def f1(found, expected):
    words, truth = normalize(found), normalize(expected)
    common = sum((collections.Counter(words) & collections.Counter(truth)).values())
    return 2 * common / (len(words) + len(truth)) if common else float(words == truth)


def mean_scores(questions, texts):
    pairs = [(text, question["answer"]) for text, question in zip(texts, questions, strict=True)]
    return {
        "exact match": 100 * sum(exact_match(*pair) for pair in pairs) / len(pairs),
        "F1": 100 * sum(f1(*pair) for pair in pairs) / len(pairs),
    }


right = [
    text_of(question, row, row["start_positions"], row["end_positions"])
    if row["start_positions"] >= 0
    else ""
    for question, row in zip(test_questions, test_rows, strict=True)
]
reachable = mean_scores(test_questions, right)
scores = mean_scores(test_questions, answers := answer(test_questions, test_rows))
print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f}")
print("held out:", scores, "reachable:", reachable)
question = random.choice(range(len(answers)))
print(test_questions[question]["question"], "->", answers[question])

# %% [markdown]
# ## Save

# %%
trainer.save_model(out / "reader")
