"""Summarization of arXiv with the settings of LED, a part of the protocol `documents`.

Beltagy et al. 2020 (https://arxiv.org/abs/2004.05150), section 7; allenai/longformer,
scripts/summarization.py at f5a798d. The settings are those of LED-large, which starts from BART:
start from a checkpoint.
"""

from typing import Any

from longspan.arena.protocols.base import Choice, MechanismOptions, Recipe
from longspan.config import ModelConfig, TrainingConfig

PAPER = "Beltagy et al. 2020, Longformer, section 7"
SCRIPT = "allenai/longformer, scripts/summarization.py at f5a798d"
CLASSIFIERS = "Longformer's classifiers, in the same paper"

TASK = "arxiv_summarization"
PAPERS, EPOCHS, BATCH = 203_037, 5, 16
MODEL = ModelConfig(
    hidden_size=1_024,
    num_hidden_layers=12,
    num_attention_heads=16,
    intermediate_size=4_096,
    classifier_hidden_size=1_024,
    norm="post",
    initializer_range=0.02,
)
OPTIONS: dict[str, Any] = {
    "length": 16_384,
    "target_length": 256,
    "global_tokens": "first",
    "beams": 4,
}


def recipe(vocabulary: int) -> Recipe:
    """Return the recipe, with so many word ids."""
    epoch = PAPERS // BATCH
    training = TrainingConfig(
        steps=EPOCHS * epoch,
        batch_size=BATCH,
        learning_rate=3e-5,
        warmup_steps=1_000,
        schedule="linear",
        evaluate_every=epoch,
        adam_epsilon=1e-8,
        gradient_accumulation_steps=BATCH,
        gradient_checkpointing=True,
        eval_batch_size=4,
        train_eval_examples=100,
    )
    options = {**OPTIONS, "vocabulary": vocabulary}
    return Recipe(task_options=options, model=MODEL, training=training)


def settings(longformer: dict[str, Any]) -> MechanismOptions:
    """Return the mechanism options of LED: a window of 1,024 tokens."""
    return {"longformer": {**longformer, "window": 512}}


CHOICES = (
    Choice(
        tasks=(TASK,),
        field="training.steps",
        value=EPOCHS * (PAPERS // BATCH),
        source=f"{SCRIPT}: {EPOCHS} epochs in batches of {BATCH}, its defaults",
        why="the paper does not say",
    ),
    Choice(
        tasks=(TASK,),
        field="training.selection",
        value="best validation",
        source=f"{SCRIPT}: the lowest loss on validation",
        why="the paper does not say",
    ),
    Choice(
        tasks=(TASK,),
        field="task.target_length",
        value=256,
        source=f"{SCRIPT}, its default, in training and generation",
        why="the paper does not say",
    ),
    Choice(
        tasks=(TASK,),
        field="task.beams",
        value=4,
        source="longspan",
        instead=((1, f"{SCRIPT}, in validation"),),
        why="the number of the paper is not at hand",
    ),
    Choice(
        tasks=(TASK,),
        field="task.no_repeat_ngram_size",
        value=3,
        source="longspan",
        instead=((0, SCRIPT),),
        why="the paper does not say; as in the summaries of BART",
    ),
    Choice(
        tasks=(TASK,),
        field="mechanism.longformer.window",
        value=512,
        source=f"{PAPER}: 1,024 tokens, half of them on each side",
        instead=((256, f"{CLASSIFIERS}: 512 tokens"),),
        why="the classifiers of the same paper have 512",
    ),
    *(
        Choice(
            tasks=(TASK,),
            field=field,
            value=value,
            source="longspan",
            instead=instead,
            why="the sources are silent; it has no effect",
        )
        for field, value, instead in (
            ("task.length_penalty", 1.0, ()),
            ("task.min_tokens", 0, ()),
            ("model.pooling", MODEL.pooling, (("first", CLASSIFIERS),)),
            ("model.classifier_hidden_size", MODEL.classifier_hidden_size, ((768, CLASSIFIERS),)),
        )
    ),
    Choice(
        tasks=(TASK,),
        field="training.train_eval_examples",
        value=100,
        source="longspan",
        why="the sources are silent; summaries of thousands of training papers would be generated",
    ),
)
