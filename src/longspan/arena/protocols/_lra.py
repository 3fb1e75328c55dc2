"""Parts that the two protocols of Long Range Arena (Tay et al. 2021) share."""

from collections.abc import Iterable, Mapping
from typing import Any

from longspan.arena.protocols import lra_small
from longspan.arena.protocols.base import Choice, MechanismOptions, ReferenceRow
from longspan.config import ModelConfig, TrainingConfig

REPOSITORY = "google-research/long-range-arena, lra_benchmarks"
CONFIGS = {
    "listops": f"{REPOSITORY}/listops/configs/base_listops_config.py",
    "text": f"{REPOSITORY}/text_classification/configs/base_tc_config.py",
    "retrieval": f"{REPOSITORY}/matching/configs/base_match_config.py",
    "image": f"{REPOSITORY}/image/configs/cifar10",
    "pathfinder": f"{REPOSITORY}/image/configs/pathfinder32",
    "path_x": f"{REPOSITORY}/image/configs/pathfinder128",
}
PAPER = "Tay et al. 2021, Long Range Arena, the text"
ISSUE = "google-research/long-range-arena issue"
TASKS = tuple(CONFIGS)
IMAGES = ("image", "pathfinder", "path_x")

# Options of the released modules; mechanisms that the repository lacks have those of lra-small.
SETTINGS: MechanismOptions = {
    **lra_small.SETTINGS,
    "local": {"window": 25},
    "dilated": {"window": 25, "dilation": 2},
    "blockwise": {"block": 25},
    "disjoint": {"block": 50},
    "strided_local": {"block": 50},
    # 255 keys before and 256 after in the source
    "longformer": {**lra_small.LONGFORMER, "window": 256},
    "bigbird": {"block": 64, "num_random_blocks": 3},
    "sparse_transformer": {"kind": "fixed", "stride": 50, "summary": 10},
    "reformer": {"chunk": 10, "hashes": 1, "buckets": 10},
    "sinkhorn": {"block": 50, "iterations": 1},
    "performer": {"feature_map": "relu", "features": None},
    "linformer": {"rank": 16, "sharing": "key_value"},
}
_OF_IMAGES: MechanismOptions = {
    "local": {"window": 32},
    "dilated": {"window": 32},
    "blockwise": {"block": 32},
    "disjoint": {"block": 64},
    "strided_local": {"block": 64},
    "sinkhorn": {"block": 64},
}
EXCEPTIONS = dict.fromkeys(IMAGES, _OF_IMAGES)


REFERENCES = (
    ReferenceRow(
        name="cnn-stem",
        tasks=("image",),
        changes={"model.stem": "convolution"},
        source="Tay et al. 2021, Long Range Arena, appendix A.2.1: a convolutional stem",
    ),
    ReferenceRow(
        name="cnn",
        tasks=("image",),
        changes={
            "model.stem": "convolution",
            "model.num_hidden_layers": 0,
            "model.pooling": "mean",
        },
        source="longspan: the stem alone, without attention",
    ),
    ReferenceRow(
        name="relative-2d",
        tasks=("image",),
        changes={"model.position": "relative_2d"},
        source="Tay et al. 2021, Long Range Arena, appendix A.2.1: 2-D relative positions",
    ),
    ReferenceRow(
        name="words",
        tasks=("text",),
        changes={"task.vocabulary": 30_000},
        source="the code of Long Range Arena, input_pipeline.py of the text task: words in place "
        "of bytes; here the 30,000 most frequent ones",
    ),
)


def encoder(width: int, layers: int, heads: int, feed_forward: int) -> ModelConfig:
    """Return the encoder of the repository, with sinusoidal positions."""
    return ModelConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=feed_forward,
        classifier_hidden_size=feed_forward,
        # Xavier's for a square map
        initializer_range=round(width**-0.5, 4),
        position="sinusoidal",
        pooling="cls",
    )


def recipe(
    steps: int, batch: int, learning_rate: float, warmup: int, schedule: Any, evaluate_every: int
) -> TrainingConfig:
    """Return the training recipe of the repository; the last checkpoint is scored."""
    return TrainingConfig(
        steps=steps,
        batch_size=batch,
        learning_rate=learning_rate,
        warmup_steps=warmup,
        schedule=schedule,
        eval_batch_size=batch,
        evaluate_every=evaluate_every,
        adam_betas=(0.9, 0.98),
        adam_epsilon=1e-9,
        selection="last",
    )


def model_choices(
    task: str,
    values: Mapping[str, Any],
    source: str,
    instead: Iterable[tuple[Mapping[str, Any], str]],
    why: str,
) -> tuple[Choice, ...]:
    """Return one choice per field of the model, with the values of the other sources."""
    return tuple(
        Choice(
            tasks=(task,),
            field=f"model.{field}",
            value=value,
            source=source,
            instead=tuple(
                (other[field], name) for other, name in instead if other.get(field, value) != value
            ),
            why=why,
        )
        for field, value in values.items()
    )


DIFFERS = (
    "All validation and test examples are scored, and every epoch is a new permutation; the "
    "source drops the last batch and keeps the composition of its image batches. Padding is "
    "masked everywhere and black pixels are ordinary tokens; the source masks id 0, and some of "
    "its mechanisms ignore the mask. Means are over real tokens, in the source over the padded "
    "length. All mechanisms have one model size; on images the source has other sizes for some. "
    "All weights start from one normal distribution with Xavier's deviation for a square matrix; "
    "in the source word embeddings have deviation 1. Attention dropout acts on the mechanism's "
    "output, and the feed-forward layer has no dropout inside. The summary token is global for "
    "mechanisms with global tokens; in the source it never is. Without a summary token, the first "
    "pixel or byte is global, in `longformer` alone. Transformer-XL, Compressive and "
    "position-infused attention carry their positions, and none are added; their memories pass "
    "gradients, and they read both directions within a segment. Pairs are classified with "
    "one hidden layer, in the source with two. Mechanisms that were released "
    "with errors (Sinkhorn sums all blocks, Linformer and Performer ignore padding) run as "
    "published. The released local attention, which is strided, is `strided_local`; the described "
    "one is `disjoint`. ListOps and Pathfinder are generated unless task.source says otherwise."
)
# Steps between validations of the text tasks, here and in the source.
VALIDATED = {"listops": (500, 50), "text": (1_000, 100), "retrieval": (500, 100)}
COMMON = (
    *(
        Choice(
            tasks=(task,),
            field="training.evaluate_every",
            value=ours,
            source="longspan",
            instead=((theirs, CONFIGS[task]),),
            why="the last checkpoint is scored, so validation selects nothing and only costs time",
        )
        for task, (ours, theirs) in VALIDATED.items()
    ),
    Choice(
        tasks=("text",),
        field="task.validation",
        value="test",
        source=f"{REPOSITORY}/text_classification/input_pipeline.py; {ISSUE} 22",
        instead=((5000, "longspan, the default of the task"),),
        why="the source holds no examples out; the last checkpoint is scored, so test selects "
        "nothing",
    ),
    Choice(
        tasks=TASKS,
        field="mechanism.performer.features",
        value=None,
        source=f"{REPOSITORY}/models/performer, its defaults (ReLU of the coordinates)",
        instead=(
            (256, "the default of the module's random features, which are not used"),
            (2, "the ListOps configuration's softmax features, which the script does not read"),
        ),
        why="what the code runs",
    ),
    Choice(
        tasks=TASKS,
        field="mechanism.longformer.global_projections",
        value=True,
        source=lra_small.LONGFORMER_PAPER,
        instead=((False, f"{REPOSITORY}/models/longformer, which never passes a global mask"),),
        why="the row is the published system; without a global token it is a local window",
    ),
    Choice(
        tasks=TASKS,
        field="mechanism.longformer.first_global",
        value=True,
        source=lra_small.LONGFORMER_PAPER,
        instead=((False, f"{REPOSITORY}/models/longformer, which never passes a global mask"),),
        why="the first token is the summary token where there is one; elsewhere it is the first "
        "pixel or byte, in `longformer` alone",
    ),
    Choice(
        tasks=TASKS,
        field="mechanism.synthesizer.scores",
        value="factorized_random+dot",
        source="Tay et al. 2021, Synthesizer; k=32 as in the LRA module",
        instead=(("random+dot", f"{REPOSITORY}/models/synthesizer, its default"),),
        why="a table of T x T scores for each head and layer has 128 million weights on ListOps",
    ),
    Choice(
        tasks=TASKS,
        field="mechanism.sparse_transformer.stride",
        value=50,
        source=f"{REPOSITORY}/utils/train_utils.py",
        instead=((128, "the default of the module"),),
        why="the script passes blocks of 50, of which 10 columns are summaries",
    ),
)
