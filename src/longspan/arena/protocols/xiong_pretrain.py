"""Pretraining and finetuning of "Simple Local Attentions Remain Competitive", at its sizes.

Xiong et al. (Wenhan), NAACL 2022, table 2. Its code for this part was not released: what the text
states is kept, and every other value is a choice with its reason.
"""

import dataclasses
from typing import Any

from longspan.arena.protocols.base import GENERIC, Choice, MechanismOptions, Protocol, Recipe
from longspan.arena.protocols.stages import CORPUS, corpus_imports, known_tasks
from longspan.config import ModelConfig, TrainingConfig

NAME = "xiong-pretrain"
ROBERTA = "Liu et al. 2019, RoBERTa, table 9, RoBERTa-large"
LONGFORMER = "allenai/longformer, scripts/cheatsheet.txt, TriviaQA"
BERT = "Devlin et al. 2019, appendix A.3"
MISSING = "the paper's table of these hyperparameters was not available"
LENGTH = 4_096
ENCODED = {"length": LENGTH, "vocabulary": f"tokenizer:corpus:{CORPUS}"}
DOWNSTREAM: dict[str, dict[str, Any]] = {
    "triviaqa": dict(ENCODED),
    "aan_retrieval": {
        **ENCODED,
        "query_length": LENGTH,
        "global_tokens": "first",
        "metric": "mrr@10",
    },
    "hyperpartisan": {**ENCODED, "global_tokens": "first"},
}
MODEL = ModelConfig(
    hidden_size=1_024,
    num_hidden_layers=24,
    num_attention_heads=16,
    intermediate_size=4_096,
    classifier_hidden_size=1_024,
    norm="pre",
    pooling="first",
    hidden_dropout_prob=0.1,
    attention_dropout=0.1,
    initializer_range=0.02,
)
PRETRAINING = TrainingConfig(
    steps=100_000,
    batch_size=256,
    learning_rate=4e-4,
    warmup_steps=6_000,
    schedule="linear",
    evaluate_every=5_000,
    weight_decay=0.01,
    adam_betas=(0.9, 0.98),
    adam_epsilon=1e-6,
    precision="bf16",
    eval_batch_size=64,
)
FINETUNING = TrainingConfig(
    steps=4_000,
    batch_size=32,
    learning_rate=3e-5,
    warmup_steps=400,
    schedule="linear",
    evaluate_every=200,
    weight_decay=0.01,
    precision="bf16",
    eval_batch_size=64,
)
TRAIN = {
    CORPUS: PRETRAINING,
    "triviaqa": dataclasses.replace(
        FINETUNING, steps=28_000, batch_size=8, warmup_steps=1_000, evaluate_every=2_000
    ),
    "aan_retrieval": FINETUNING,
    "hyperpartisan": dataclasses.replace(
        FINETUNING, steps=200, batch_size=16, warmup_steps=20, evaluate_every=20
    ),
}
SETTINGS: MechanismOptions = {
    "local": {"window": 128},
    "longformer": {"window": 128, "first_global": True, "global_projections": True},
    "blockwise": {"block": 128},
    "disjoint": {"block": 256},
    "sinkhorn": {"block": 128, "iterations": 7, "temperature": 0.7},
    "reformer": {"hashes": 4, "chunk": 16},
    "linformer": {"rank": 512},
    "nystrom": {"landmarks": 256, "conv_kernel_size": 35},
    "performer": {"features": 256},
    "long_short": {"window": 96, "rank": 32, "variant": "xiong"},
    "bigbird": {"block": 64, "num_random_blocks": 3},
}


def recipe(task: str) -> Recipe:
    """Return the recipe of the corpus, or of a task that starts from it."""
    if task == CORPUS:
        return Recipe(
            task_options={"length": LENGTH, "pack": "documents"}, model=MODEL, training=PRETRAINING
        )
    return Recipe(task_options=DOWNSTREAM[task], model=MODEL, training=TRAIN[task], start=CORPUS)


def _choice(task: str, field: str, source: str, why: str) -> Choice:
    """Return the choice of a value of training."""
    value = getattr(TRAIN[task], field)
    return Choice(tasks=(task,), field=f"training.{field}", value=value, source=source, why=why)


CHOICES = (
    *(
        _choice(CORPUS, field, ROBERTA, MISSING)
        for field in ("learning_rate", "schedule", "weight_decay", "adam_betas", "adam_epsilon")
    ),
    _choice(CORPUS, "warmup_steps", ROBERTA, f"its share of the updates, 6 %; {MISSING}"),
    _choice(CORPUS, "precision", "longspan", "half precision without loss scaling"),
    _choice(CORPUS, "selection", "longspan", "the best of the evaluations on validation"),
    *(
        _choice(task, field, LONGFORMER if task == "triviaqa" else BERT, MISSING)
        for task in DOWNSTREAM
        for field in ("learning_rate", "batch_size", "warmup_steps", "steps", "schedule")
    ),
    *(
        _choice(task, field, BERT, MISSING)
        for task in DOWNSTREAM
        for field in ("weight_decay", "adam_betas", "adam_epsilon")
    ),
    *(
        _choice(task, "precision", "longspan", "half precision without loss scaling")
        for task in DOWNSTREAM
    ),
    *(
        Choice(
            tasks=(CORPUS, *DOWNSTREAM),
            field=f"model.{field}",
            value=getattr(MODEL, field),
            source=ROBERTA,
            why="the model has the shape of RoBERTa-large",
        )
        for field in ("hidden_dropout_prob", "attention_dropout", "position", "pooling")
    ),
)


def make_xiong_pretrain() -> Protocol:
    """Return the protocol of the corpus and of the known downstream tasks."""
    tasks = (CORPUS, *known_tasks(DOWNSTREAM))
    return Protocol(
        name=NAME,
        summary="Pretraining and finetuning of Simple Local Attentions Remain Competitive.",
        source="Xiong et al. 2022, NAACL",
        tasks=tasks,
        differs=(
            "For a cluster: the source trained on 32 A100 for two days a mechanism. The corpus is "
            "what is imported under its name; the source's is Stories, RealNews, Books and "
            "Wikipedia with the tokenizer of RoBERTa: --tokenizer roberta-base. Validation selects "
            "the checkpoint. Its document retrieval is another data set. Hyperpartisan has clean "
            "splits unless task.split says otherwise. Hyperparameters that its text does not state "
            "are those of RoBERTa, Longformer and BERT, and its settings of mechanisms are the "
            "defaults of its code at that time, which its runs may have changed. Corpora have no "
            "global tokens but those of longformer."
        ),
        recipe=recipe,
        mechanism_options=SETTINGS,
        choices=tuple(
            dataclasses.replace(choice, tasks=tuple(x for x in choice.tasks if x in tasks))
            for choice in CHOICES
            if set(choice.tasks) & set(tasks)
        ),
        imports=corpus_imports("FOLDER --tokenizer roberta-base"),
    )


GENERIC[NAME] = make_xiong_pretrain
