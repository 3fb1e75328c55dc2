"""Language models with a memory of the segment before, as Transformer-XL trains them.

Dai et al. 2019, "Transformer-XL" (https://arxiv.org/abs/1901.02860), section 4, with the scripts of
kimiyoung/transformer-xl.
"""

from typing import Any

from longspan.arena.protocols._language import causal_options, decoder, no_pooling
from longspan.arena.protocols.base import (
    Choice,
    Protocol,
    Recipe,
    Variant,
    register,
)
from longspan.config import TrainingConfig

PAPER = "Dai et al. 2019, Transformer-XL"
CODE = "kimiyoung/transformer-xl"
CHARACTERS = ("text8", "enwik8")
TASKS = (*CHARACTERS, "wikitext_103")
LENGTH = {"text8": 512, "enwik8": 512, "wikitext_103": 150}
CUTOFFS = (20_000, 40_000, 200_000)  # of words by frequency
SMALL = decoder(12, 512, 8, 2_048, norm="post", dropout=0.1, attention_dropout=0.0)
# Rotary positions need heads of an even width, and these have 41.
STANDARD = decoder(
    16,
    410,
    10,
    2_100,
    norm="post",
    dropout=0.1,
    attention_dropout=0.0,
    position="sinusoidal",
    cutoffs=CUTOFFS,
    factor=1,
)
MODELS = {"text8": SMALL, "enwik8": SMALL, "wikitext_103": STANDARD}


def _training(steps: int, batch: int, accumulation: int = 1) -> TrainingConfig:
    return TrainingConfig(
        steps=steps,
        batch_size=batch,
        learning_rate=2.5e-4,
        warmup_steps=0,
        schedule="cosine",
        evaluate_every=4_000,
        adam_epsilon=1e-8,
        max_grad_norm=0.25,
        gradient_accumulation_steps=accumulation,
        eval_batch_size=10,
        train_eval_examples=0,
    )


TRAIN = {
    "text8": _training(400_000, 24),
    "enwik8": _training(400_000, 22),
    "wikitext_103": _training(200_000, 60, accumulation=4),
}
# Memories as long as a segment.
OPTIONS = {task: causal_options(length // 2, length, length) for task, length in LENGTH.items()}


def _evaluation(segment: int, memory: int, clamp: int) -> dict[str, Any]:
    """Return options in evaluation: a longer memory, of which each token sees as many keys."""
    return {"segment": segment, "memory": memory, "clamp": clamp, "same_length": True}


EVALUATION = {
    "text8": {"transformer_xl": _evaluation(80, 2_100, 820)},
    "enwik8": {"transformer_xl": _evaluation(80, 2_100, 820)},
    "wikitext_103": {"transformer_xl": _evaluation(64, 640, 400)},
}


def recipe(task: str) -> Recipe:
    """Return the recipe of one task."""
    return Recipe(task_options={"length": LENGTH[task]}, model=MODELS[task], training=TRAIN[task])


def _large(
    name: str,
    tasks: tuple[str, ...],
    script: str,
    *,
    length: int,
    layers: int,
    heads: int,
    feed_forward: int,
    dropout: float,
    training: dict[str, int],
    evaluation: dict[str, Any],
    factor: int | None = None,
) -> Variant:
    """Return a model of width 1,024, whose memory is as long as a segment in training."""
    changes = {
        "task.length": length,
        "mechanism.segment": length,
        "mechanism.memory": length,
        "model.num_hidden_layers": layers,
        "model.hidden_size": 1_024,
        "model.classifier_hidden_size": 1_024,
        "model.num_attention_heads": heads,
        "model.intermediate_size": feed_forward,
        "model.hidden_dropout_prob": dropout,
        "model.attention_dropout": dropout,
        **{f"training.{field}": x for field, x in training.items()},
        **{f"evaluation.{option}": x for option, x in evaluation.items()},
        **({} if factor is None else {"model.adaptive_factor": factor}),
    }
    return Variant(
        name=name,
        tasks=tasks,
        changes=changes,
        source=f"{PAPER}, section 4.1; {CODE}, {script}",
        mechanism="transformer_xl",
    )


VARIANTS = (
    _large(
        "transformer-xl-24",
        CHARACTERS,
        "tf/scripts/enwik8_tpu.sh and text8_large_tpu.sh, tf/sota/enwik8.sh and text8.sh",
        length=768,
        layers=24,
        heads=8,
        feed_forward=3_072,
        dropout=0.15,
        training={"batch_size": 64, "warmup_steps": 4_000},
        evaluation=_evaluation(128, 3_800, 1_000),
    ),
    _large(
        "transformer-xl-large",
        ("wikitext_103",),
        "pytorch/run_wt103_large.sh",
        length=384,
        layers=18,
        heads=16,
        feed_forward=4_096,
        factor=4,
        dropout=0.2,
        training={
            "steps": 4_000_000,
            "batch_size": 128,
            "warmup_steps": 16_000,
            "gradient_accumulation_steps": 32,
        },
        evaluation=_evaluation(128, 1_600, 1_000),
    ),
)


CHOICES = (
    *(
        Choice(
            tasks=("enwik8",),
            field=f"evaluation.transformer_xl.{option}",
            value=EVALUATION["enwik8"]["transformer_xl"][option],
            source=f"{CODE}, pytorch/run_enwik8_base.sh, evaluation on test",
            instead=((other, f"{CODE}, pytorch/train.py, validation during training"),),
            why="validation and test have the same options, those of test",
        )
        for option, other in (("segment", 128), ("memory", 896))
    ),
    *(
        Choice(
            tasks=(task,),
            field="task.evaluation_length",
            value=None,
            source="longspan",
            instead=instead,
            why="transformer_xl has segments of as many tokens in evaluation, so more tokens at a "
            "time are scored alike; mechanisms without a memory would see fewer",
        )
        for task, instead in {
            "text8": ((80, f"{CODE}, tf/scripts/text8_base_gpu.sh"),),
            "enwik8": (
                (80, f"{CODE}, pytorch/run_enwik8_base.sh, test"),
                (128, f"{CODE}, pytorch/run_enwik8_base.sh, validation"),
            ),
            "wikitext_103": ((64, f"{CODE}, pytorch/run_wt103_base.sh, test"),),
        }.items()
    ),
    Choice(
        tasks=("enwik8",),
        field="training.batch_size",
        value=22,
        source=f"{CODE}, pytorch/run_enwik8_base.sh",
        instead=((24, f"{CODE}, tf/scripts/enwik8_base_gpu.sh"),),
        why="as the other scripts in PyTorch",
    ),
    Choice(
        tasks=("wikitext_103",),
        field="training.steps",
        value=200_000,
        source=f"{CODE}, pytorch/run_wt103_base.sh",
        instead=((400_000, f"{CODE}, tf/scripts/wt103_base_gpu.sh"),),
        why="as the other scripts in PyTorch",
    ),
    Choice(
        tasks=("wikitext_103",),
        field="model.adaptive_factor",
        value=1,
        source=f"{CODE}, pytorch/run_wt103_base.sh, the default of train.py",
        instead=((4, f"{CODE}, tf/scripts/wt103_base_gpu.sh"),),
        why="as the other scripts in PyTorch; the model then has the paper's 151 million weights",
    ),
    *(
        Choice(
            tasks=tasks,
            field="model.position",
            value=MODELS[tasks[0]].position,
            source="longspan",
            instead=(("relative", f"{PAPER}, section 3.3"),),
            why="for mechanisms without positions of their own; transformer_xl has the paper's",
        )
        for tasks in (CHARACTERS, ("wikitext_103",))
    ),
    *no_pooling(TASKS),
)

register(
    Protocol(
        name="transformer-xl",
        summary="Segments with a memory of the one before, by characters and words.",
        source=f"{PAPER}, section 4; {CODE}",
        tasks=TASKS,
        differs=(
            "transformer_xl is evaluated as the scripts do: with longer memories than in training "
            "(2,100 and 3,800 of characters, 640 and 1,600 of words), clamped distances and "
            "queries that all see as many keys; the scripts validate with other options than they "
            "test with, here they are the same. Other mechanisms have the options of training. "
            "transformer-xl-24 and transformer-xl-large are its larger models; that of 18 layers "
            "on enwik8 is left out, since its settings are not at hand. Feed-forward layers have "
            "GELU (the code: ReLU). The adaptive softmax has no biases, and no projection for the "
            "most frequent words; padding is one of these 20,000 ids. Articles begin with an "
            "empty memory; the code reads a split as one text. The memory holds keys and values, "
            "and each layer has its own biases of positions. Mechanisms without a memory read the "
            "segments of training, each anew. transformer-xl-large has 284 million weights, as the "
            "sizes of its script make (the paper: 257). text8 has the batch size of the TensorFlow "
            "script, the only one for 12 layers."
        ),
        recipe=recipe,
        mechanism_options={},
        task_mechanism_options=OPTIONS,
        evaluation_options=EVALUATION,
        choices=CHOICES,
        variants=VARIANTS,
    )
)
