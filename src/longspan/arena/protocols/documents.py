"""Document classification and summarization with the settings of Longformer's finetuning.

Beltagy et al. 2020 (https://arxiv.org/abs/2004.05150), section 6.3 and the paragraph on text
classification of the appendix; allenai/longformer, scripts/classification.py at 12b829f. The
settings are those of a pretrained model: start from a checkpoint.
"""

from longspan.arena.protocols import _led, lra_small
from longspan.arena.protocols.base import Choice, MechanismOptions, Protocol, Recipe, register
from longspan.config import ModelConfig, TrainingConfig

PAPER = "Beltagy et al. 2020, Longformer, appendix, text classification"
SCRIPT = "allenai/longformer, scripts/classification.py at 12b829f"
BASE = "Liu et al. 2019, RoBERTa, base, from which the checkpoint is converted"
BIGBIRD = "google-research/bigbird, bigbird/classifier at 0ec9d82"
WORD_PIECES = 50_265  # of RoBERTa

TASKS = ("hyperpartisan", "text")  # of classification
EPOCHS = 15
BATCH = 32
TRAINING_DOCUMENTS = {"hyperpartisan": 515, "text": 19_860}
MODEL = ModelConfig(
    hidden_size=768,
    num_hidden_layers=12,
    num_attention_heads=12,
    intermediate_size=3_072,
    classifier_hidden_size=768,
    norm="post",
    pooling="first",
    initializer_range=0.02,
)
# Of the forks of Xiong et al. 2022 and of BigBird, at the same length.
SETTINGS: MechanismOptions = {
    **lra_small.SETTINGS,
    "local": {"window": 256},
    "dilated": {"window": 256, "dilation": 2},
    "longformer": {**lra_small.LONGFORMER, "window": 256},
    "blockwise": {"block": 256},
    "disjoint": {"block": 512},
    "bigbird": {"block": 64, "num_random_blocks": 3},
    "reformer": {"chunk": 16, "hashes": 4},
    "sinkhorn": {"block": 128},
    "linformer": {"rank": 512},
    "nystrom": {"landmarks": 256, "conv_kernel_size": 35},
    "long_short": {"window": 96, "rank": 32},
    "transformer_xl": {"segment": 512, "memory": 512, "backprop_through_memory": True},
    "compressive": {
        "segment": 512,
        "memory": 512,
        "compressed_memory": 256,
        "backprop_through_memory": True,
    },
    "position_infused": {"segment": 512, "memory": 512, "backprop_through_memory": True},
}


def recipe(task: str) -> Recipe:
    """Return the recipe of one task."""
    if task == _led.TASK:
        return _led.recipe(WORD_PIECES)
    epoch = TRAINING_DOCUMENTS[task] // BATCH
    training = TrainingConfig(
        steps=EPOCHS * epoch,
        batch_size=BATCH,
        learning_rate=3e-5,
        warmup_steps=round(0.1 * EPOCHS * epoch),
        schedule="linear",
        evaluate_every=epoch,
        adam_epsilon=1e-8,
        gradient_accumulation_steps=BATCH // 2,
        gradient_checkpointing=True,
        eval_batch_size=4,
    )
    options = {"length": 4_096, "vocabulary": WORD_PIECES, "global_tokens": "first"}
    return Recipe(task_options=options, model=MODEL, training=training)


CHOICES = (
    Choice(
        tasks=(*TASKS, _led.TASK),
        field="task.vocabulary",
        value=WORD_PIECES,
        source="longspan",
        instead=(("tokenizer:roberta-base", SCRIPT),),
        why="as many ids as RoBERTa has, of words, so that the protocol needs no download; set "
        "task.vocabulary=tokenizer:NAME to the tokenizer of the checkpoint",
    ),
    Choice(
        tasks=("hyperpartisan",),
        field="task.split",
        value="clean",
        source="longspan",
        instead=(("published", "allenai/longformer, scripts/hp-splits.json at caefee66"),),
        why="of the 65 published test articles 51 are in training and 7 in validation",
    ),
    Choice(
        tasks=("hyperpartisan",),
        field="task.title",
        value=False,
        source="longspan",
        why="the sources are silent",
    ),
    Choice(
        tasks=("text",),
        field="task.validation",
        value=5_000,
        source="longspan",
        why="the paper does not say which reviews select the checkpoint; test must not",
    ),
    Choice(
        tasks=("text",),
        field="training.steps",
        value=EPOCHS * (19_860 // BATCH),
        source=f"{PAPER}: {EPOCHS} epochs, of the reviews that are left for training",
        instead=(
            (EPOCHS * (25_000 // BATCH), f"{PAPER}: {EPOCHS} epochs, if all 25,000 are"),
            (16_000, f"{BIGBIRD}, with batches of 64"),
        ),
        why="validation is held out",
    ),
    Choice(
        tasks=("text",),
        field="training.warmup_steps",
        value=round(0.1 * EPOCHS * (19_860 // BATCH)),
        source=f"{PAPER}: a tenth of the steps",
        instead=((1_000, BIGBIRD),),
        why="follows from the steps",
    ),
    Choice(
        tasks=TASKS,
        field="training.learning_rate",
        value=3e-5,
        source=f"{PAPER}: the best of 3e-5 and 5e-5, with {EPOCHS} of 10, 15 and 20 epochs",
        instead=((2e-5, f"{SCRIPT}, its default"), (1e-5, BIGBIRD)),
        why="the protocol is the paper",
    ),
    Choice(
        tasks=TASKS,
        field="training.selection",
        value="best validation",
        source=f"{SCRIPT}: the best accuracy on dev",
        why="the paper does not say",
    ),
    *_led.CHOICES,
)

register(
    Protocol(
        name="documents",
        summary="Documents with the settings of Longformer's finetuning, and of LED's on arXiv.",
        source="Beltagy et al. 2020, Longformer, https://arxiv.org/abs/2004.05150",
        tasks=(*TASKS, _led.TASK),
        differs=(
            "The source starts from a pretrained checkpoint; here weights are drawn unless one is "
            "given, and the tokens are words unless task.vocabulary names its tokenizer. The head "
            "has a hidden layer. The clean splits of Hyperpartisan replace the overlapping ones, "
            "and 5,000 training reviews of IMDB select the checkpoint. The source reports the mean "
            "F1 of five seeds on Hyperpartisan. Mechanisms that the source lacks have the sizes "
            "of Xiong et al.'s and BigBird's pretraining, or a window of as many keys. Gradients "
            "are accumulated and activations recomputed, which changes no score but by rounding. "
            "Summaries of arXiv are those of LED-large, with papers of up to 16,384 tokens and "
            "scores with Porter stemming; mechanisms other than Longformer's keep their sizes."
        ),
        recipe=recipe,
        mechanism_options=SETTINGS,
        task_mechanism_options={_led.TASK: _led.settings(lra_small.LONGFORMER)},
        choices=CHOICES,
        grids={task: {"training.learning_rate": (3e-5, 5e-5)} for task in TASKS},
        seeds=(0, 1, 2, 3, 4),
    )
)
