"""Pretraining and finetuning of Xiong et al. 2022 at the size of two CPU cores."""

import dataclasses
from typing import Any

from longspan.arena.protocols.base import (
    GENERIC,
    MechanismOptions,
    Protocol,
    Recipe,
    ReferenceRow,
    Variant,
)
from longspan.arena.protocols.stages import CORPUS, corpus_imports, known_tasks
from longspan.arena.protocols.starts import RunStart
from longspan.config import ModelConfig, TrainingConfig

NAME = "xiong-small"
LENGTH, SHORT = 1_024, 256
SHORT_STEPS = 2_500
ENCODED = {"length": LENGTH, "vocabulary": f"tokenizer:corpus:{CORPUS}"}
# Tasks after pretraining, with their options: the first token is global, or those of the question.
DOWNSTREAM: dict[str, dict[str, Any]] = {
    "aan_retrieval": {
        **ENCODED,
        "query_length": LENGTH,
        "global_tokens": "first",
        "metric": "mrr@10",
    },
    "hyperpartisan": {**ENCODED, "global_tokens": "first"},
    "newsgroups": {**ENCODED, "global_tokens": "first"},
    "text": {**ENCODED, "global_tokens": "first", "validation": 500, "test": 2_000},
    "squad": dict(ENCODED),
    "xquad": dict(ENCODED),
    "triviaqa": dict(ENCODED),
}
MODEL = ModelConfig(
    hidden_size=128,
    num_hidden_layers=4,
    num_attention_heads=4,
    intermediate_size=512,
    classifier_hidden_size=128,
    pooling="first",
    norm="pre",
    position="rotary",
    hidden_dropout_prob=0.0,
    attention_dropout=0.0,
    initializer_range=0.02,
)
# Finetuning sees its few examples often. Pretraining teaches the first token nothing: with it as
# the summary, 200 updates of 8 documents teach no classification.
FINETUNED = dataclasses.replace(MODEL, hidden_dropout_prob=0.1, pooling="mean")
PRETRAINING = TrainingConfig(
    steps=600,
    batch_size=2,
    learning_rate=1e-3,
    warmup_steps=60,
    schedule="linear",
    evaluate_every=200,
    weight_decay=0.01,
    adam_betas=(0.9, 0.98),
    max_grad_norm=1.0,
    eval_batch_size=16,
)
# Few tokens in many updates: with four times as many in an update, models still predict single
# words after a million tokens.
SHORT_STAGE = {
    "start.task": None,
    "training.steps": SHORT_STEPS,
    "training.batch_size": PRETRAINING.batch_size * LENGTH // SHORT,
    "training.learning_rate": 2e-3,
    "training.warmup_steps": 100,
    "training.evaluate_every": 250,
    "training.eval_batch_size": PRETRAINING.eval_batch_size * LENGTH // SHORT,
}
FINETUNING = TrainingConfig(
    steps=400,
    batch_size=8,
    learning_rate=1e-3,
    warmup_steps=20,
    schedule="linear",
    evaluate_every=100,
    weight_decay=0.01,
    max_grad_norm=1.0,
    eval_batch_size=16,
)
# An evaluation ranks all papers.
TRAIN = {"aan_retrieval": dataclasses.replace(FINETUNING, evaluate_every=200)}
# A quarter of the paper's sizes at a quarter of its length; ratios to the length are the paper's.
OPTIONS: MechanismOptions = {
    "local": {"window": 32},
    "longformer": {"window": 32, "global_projections": True},
    "blockwise": {"block": 32},
    "disjoint": {"block": 64},
    "bigbird": {"block": 32, "num_random_blocks": 3},
    "sinkhorn": {"block": 32, "iterations": 7, "temperature": 0.7},
    "reformer": {"chunk": 16, "hashes": 4},
    "linformer": {"rank": 128},
    "nystrom": {"landmarks": 64, "conv_kernel_size": 35},
    "performer": {"features": 256},
    "long_short": {"window": 24, "rank": 32, "variant": "xiong"},
    "dilated": {"window": 32, "dilation": 2},
    "strided_local": {"block": 32},
    "synthesizer": {"scores": "dense"},
    "transformer_xl": {"segment": 128, "memory": 128, "backprop_through_memory": True},
    "compressive": {
        "segment": 128,
        "memory": 128,
        "compressed_memory": 64,
        "backprop_through_memory": True,
    },
    "position_infused": {"segment": 128, "memory": 128, "backprop_through_memory": True},
}


SHORT_ROW = ReferenceRow(
    name="full-short",
    # A citing paper has as many tokens as the papers it is compared with.
    tasks=(CORPUS, *(task for task, own in DOWNSTREAM.items() if "query_length" not in own)),
    changes={"task.length": SHORT},
    task_changes={CORPUS: SHORT_STAGE},
    source="Beltagy et al. 2020, Longformer: RoBERTa on short inputs",
)
# Updates of both stages, of equally many tokens each, from drawn weights.
FROM_SCRATCH = tuple(
    Variant(
        name=f"{mechanism}-from-scratch",
        tasks=(CORPUS, *DOWNSTREAM),
        changes={},
        task_changes={
            CORPUS: {
                **{x: SHORT_STAGE[x] for x in ("start.task", "training.learning_rate")},
                "training.steps": SHORT_STEPS + PRETRAINING.steps,
                "training.warmup_steps": SHORT_STAGE["training.warmup_steps"],
            }
        },
        source="Xiong et al. 2022: initialization from a short checkpoint against drawn weights",
        mechanism=mechanism,
    )
    for mechanism in ("full", "local", "blockwise", "disjoint")
)


def recipe(task: str) -> Recipe:
    """Return the recipe of the corpus, or of a task that starts from it."""
    if task == CORPUS:
        return Recipe(
            task_options={"length": LENGTH, "held_out_windows": 2},
            model=MODEL,
            training=PRETRAINING,
            start=RunStart(CORPUS, SHORT_ROW.name, "tile"),
        )
    return Recipe(
        task_options=DOWNSTREAM[task],
        model=FINETUNED,
        training=TRAIN.get(task, FINETUNING),
        start=CORPUS,
    )


def make_xiong_small() -> Protocol:
    """Return the protocol of the corpus and of the known downstream tasks."""
    return Protocol(
        name=NAME,
        summary=(
            "Masked language modeling, then document tasks, with one small model for every "
            "mechanism: hours on two CPU cores."
        ),
        source="longspan",
        tasks=(CORPUS, *known_tasks(DOWNSTREAM)),
        differs=(
            "Not a published recipe: the experiment of Xiong et al. 2022, scaled down. A model of "
            "4 layers and width 128 in place of 24 and 1,024, with rotary positions (learned ones "
            "take more text than a CPU reads); 1,024 tokens in place of 4,096; no dropout. Every "
            "row starts from full-short, full attention on 256 tokens (2,500 updates of 2,048 "
            "tokens), and continues with its mechanism on 1,024 (600 updates). "
            "NAME-from-scratch has as many updates of 1,024 tokens from drawn weights. Windows, "
            "blocks and ranks are a quarter of the paper's, at least. Global tokens are those of "
            "the tasks; a corpus has none. Words are those of the corpus's own tokenizer, of 2,048 "
            "ids. Of each held-out document two windows are scored. full attends over all 1,024 "
            "tokens; the reference row full-short reads 256 of them, in pretraining and after it. "
            "A budget of seconds or FLOPs holds for each run, that of full-short included."
        ),
        recipe=recipe,
        mechanism_options=OPTIONS,
        references=(SHORT_ROW,),
        variants=FROM_SCRATCH,
        imports=corpus_imports("FOLDER --vocab-size 2048"),
    )


GENERIC[NAME] = make_xiong_small
