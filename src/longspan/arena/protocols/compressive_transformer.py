"""Language models with compressed memories, as the Compressive Transformer is trained.

Rae et al. 2020, "Compressive Transformers" (https://arxiv.org/abs/1911.05507), section 5. Its code
is not public but for the layer.
"""

from typing import Any

from longspan.arena.protocols._language import ADAM, causal_options, choose, decoder, no_pooling
from longspan.arena.protocols.base import (
    Choice,
    MechanismOptions,
    Protocol,
    Recipe,
    Variant,
    register,
)
from longspan.config import TrainingConfig

PAPER = "Rae et al. 2020, Compressive Transformers"
XL = "kimiyoung/transformer-xl"
TASKS = ("enwik8", "wikitext_103", "pg19")
LENGTH = {"enwik8": 768, "wikitext_103": 512, "pg19": 512}
MODELS = {
    "enwik8": decoder(24, 1_024, 8, 3_072, norm="post", dropout=0.15, attention_dropout=0.15),
    "wikitext_103": decoder(
        18,
        1_024,
        16,
        4_096,
        norm="post",
        dropout=0.2,
        attention_dropout=0.2,
        cutoffs=(20_000, 40_000, 200_000),
        factor=4,
    ),
    "pg19": decoder(36, 1_024, 16, 4_096, norm="post", dropout=0.1, attention_dropout=0.1),
}


def _training(warmup: int, decay: int, batch: int, accumulation: int) -> TrainingConfig:
    return TrainingConfig(
        steps=warmup + decay,
        batch_size=batch,
        learning_rate=3e-4,
        warmup_steps=warmup,
        schedule="cosine",
        evaluate_every=4_000,
        adam_epsilon=1e-8,
        max_grad_norm=0.1,
        gradient_accumulation_steps=accumulation,
        eval_batch_size=16,
        train_eval_examples=0,
    )


TRAIN = {
    "enwik8": _training(4_000, 100_000, 64, 4),
    "wikitext_103": _training(16_000, 500_000, 128, 32),
    "pg19": _training(16_000, 500_000, 512, 32),
}


def _options(segment: int, compressed: int, ratio: int, memory: int) -> MechanismOptions:
    """Return options by mechanism; `memory` is that of Transformer-XL in comparison."""
    return {
        **causal_options(segment // 2, segment, segment),
        "compressive": {
            "segment": segment,
            "memory": segment,
            "compressed_memory": compressed,
            "ratio": ratio,
            "compression": "conv",
        },
        "transformer_xl": {"segment": segment, "memory": memory},
    }


OPTIONS = {
    "enwik8": _options(768, 1_152, 3, 2_304),
    "wikitext_103": _options(512, 512, 4, 1_024),
    "pg19": _options(512, 512, 2, 1_024),
}

# Section 5: trained with shorter memories; the best ones on validation.
EVALUATION = {
    "enwik8": {
        "compressive": {"compressed_memory": 3_072},
        "transformer_xl": {"memory": 4_096},
    },
    "wikitext_103": {"compressive": {"memory": 500, "compressed_memory": 1_500}},
}


def _compressed(name: str, row: str, changes: dict[str, Any]) -> Variant:
    return Variant(
        name=name,
        tasks=("enwik8",),
        changes={f"mechanism.{option}": x for option, x in changes.items()},
        source=f"{PAPER}, table 5: {row}",
        mechanism="compressive",
    )


VARIANTS = (
    _compressed("max-pooling", "max pooling", {"compression": "max"}),
    _compressed("mean-pooling", "mean pooling", {"compression": "mean"}),
    _compressed("most-used", "most-used", {"compression": "most_used"}),
    _compressed("dilated-conv", "dilated conv, attention", {"compression": "dilated"}),
    _compressed("conv-autoencoding", "conv, auto-encoding", {"autoencoder": True}),
)


def recipe(task: str) -> Recipe:
    """Return the recipe of one task."""
    return Recipe(task_options={"length": LENGTH[task]}, model=MODELS[task], training=TRAIN[task])


SILENT = "the paper does not say"
CHOICES = (
    *choose(
        ("pg19",),
        {"mechanism.transformer_xl.memory": 1_024},
        f"{PAPER}, section 5.1: an attention window of 1,024",
        "as many keys of the past as memory and compressed memory have",
    ),
    *choose(
        ("enwik8",),
        {
            "training.batch_size": 64,
            "model.hidden_dropout_prob": 0.15,
            "model.attention_dropout": 0.15,
        },
        f"{XL}, tf/scripts/enwik8_tpu.sh, a model of the same size",
        SILENT,
    ),
    *choose(
        ("wikitext_103",),
        {
            "model.hidden_dropout_prob": 0.2,
            "model.attention_dropout": 0.2,
            "model.adaptive_cutoffs": [20_000, 40_000, 200_000],
            "model.adaptive_factor": 4,
        },
        f"{XL}, pytorch/run_wt103_large.sh, a model of the same size",
        SILENT,
    ),
    *choose(
        ("pg19",),
        {
            "model.hidden_size": 1_024,
            "model.num_attention_heads": 16,
            "model.attention_head_size": None,
            "model.intermediate_size": 4_096,
        },
        "that of WikiText-103",
        SILENT,
    ),
    *choose(
        ("pg19",),
        {"model.hidden_dropout_prob": 0.1, "model.attention_dropout": 0.1},
        "longspan",
        SILENT,
    ),
    Choice(
        tasks=("pg19",),
        field="training.steps",
        value=516_000,
        source=f"{PAPER}, section 5: its schedule of models of words",
        instead=((381_470, f"{PAPER}, section 5.1: about 100 billion subwords, of 512 x 512"),),
        why="the schedule has this length; the model of subwords had converged earlier",
    ),
    Choice(
        tasks=TASKS,
        field="model.position",
        value="rotary",
        source="longspan",
        instead=(("relative", f"{PAPER}, section 3"),),
        why="for mechanisms without positions of their own; compressive has the paper's",
    ),
    *choose(TASKS, ADAM, "longspan, torch's defaults of Adam", SILENT),
    *choose(
        TASKS,
        {
            "training.weight_decay": 0.0,
            "training.precision": "no",
            "training.selection": "best validation",
        },
        "longspan",
        SILENT,
    ),
    *no_pooling(TASKS),
)

register(
    Protocol(
        name="compressive-transformer",
        summary="Memories and compressed memories, by characters, words and books.",
        source=f"{PAPER}, section 5",
        tasks=TASKS,
        differs=(
            "As in the paper, compressed memories are longer in evaluation than in training "
            "(3,072 on enwik8, 1,500 on WikiText-103); here for the rows of table 5 too. It "
            "updates weights every fourth step after 60,000; here every step is an update, "
            "throughout. Rates rise from 0 and end at 0 (1e-6). Steps are its warmup and decay; "
            "the batch size of enwik8 and dropout are those of Transformer-XL at the same size. "
            "PG-19 is read as bytes, where the paper has 32,000 subwords: 512 bytes are fewer "
            "words, and perplexity per word compares all the same. Adaptive embeddings and "
            "softmax have the clusters of Transformer-XL. Feed-forward layers have GELU. "
            "Articles and books begin with empty memories. What is compressed are keys and "
            "values, by a convolution that learns from the attention-reconstruction loss. Rows of "
            "table 5 compress otherwise, on enwik8 at rate 3; the paper has the best of rates 2 "
            "to 4, and a row without that loss, which is left out. Mechanisms without a memory "
            "read the segments of training, each anew."
        ),
        recipe=recipe,
        mechanism_options={},
        task_mechanism_options=OPTIONS,
        evaluation_options=EVALUATION,
        choices=CHOICES,
        variants=VARIANTS,
    )
)
