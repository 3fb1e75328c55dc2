"""Protocol values compared with an independent transcription of their sources.

LRA: the repository's configs at cd31e5c and the text of Tay et al. 2021. NYS: mlpen/Nystromformer,
LRA/code/lra_config.py. XF: facebookresearch/xformers pull request 192. S4: state-spaces/s4,
configs/experiment/lra. SPT: IdoAmos/not-from-scratch, configs/experiment/lra.
"""

import math

import pytest

from longspan.arena import PROTOCOLS, get, override
from longspan.arena.protocols.compare import recipe_values
from longspan.attention import MECHANISMS
from longspan.tasks import TASKS, build
from longspan.training.schedule import compute_learning_rate

# layers, heads, model width, total width of heads, feed-forward width, pooling
SIZES = {
    # LRA listops/configs/base_listops_config.py: 4, 8, emb 512, qkv 512, mlp 1024
    "lra-repo listops": (4, 8, 512, 512, 1024, "cls"),
    # LRA text_classification/configs/base_tc_config.py: 4, 4, 256, 256, 1024
    "lra-repo text": (4, 4, 256, 256, 1024, "cls"),
    # LRA matching/configs/base_match_config.py: 4, 4, 128, 128, 512; "CLS" is the first byte
    "lra-repo retrieval": (4, 4, 128, 128, 512, "first"),
    # LRA image/configs/cifar10/transformer_base.py: 1, 8, 128, 64, 128
    "lra-repo image": (1, 8, 128, 64, 128, "cls"),
    # LRA issue 37: 1, 8, 128, 64, 128 in place of the shipped 4, 4, 32, 16, 32
    "lra-repo pathfinder": (1, 8, 128, 64, 128, "mean"),
    # LRA image/configs/pathfinder128/base_pathfinder128_config.py: 1, 2, 32, 16, 32
    "lra-repo path_x": (1, 2, 32, 16, 32, "mean"),
    # LRA, text: 6 layers, 8 heads, 512, 2048
    "lra-paper listops": (6, 8, 512, 512, 2048, "cls"),
    "lra-paper text": (6, 8, 512, 512, 2048, "cls"),
    # LRA, text: 4 layers, 4 heads, 128, 512
    "lra-paper retrieval": (4, 4, 128, 128, 512, "cls"),
    # LRA, text: 3 layers, 4 heads, qkv 64, 128
    "lra-paper image": (3, 4, 64, 64, 128, "cls"),
    # LRA, text: 4 layers, 8 heads, qkv 128, 128; figure 5 queries from CLS
    "lra-paper pathfinder": (4, 8, 128, 128, 128, "cls"),
    "lra-paper path_x": (4, 8, 128, 128, 128, "cls"),
    # NYS: 2 layers, 64, 2 heads x 32, 128, MEAN
    "lra-small listops": (2, 2, 64, 64, 128, "mean"),
    "lra-small text": (2, 2, 64, 64, 128, "mean"),
    "lra-small retrieval": (2, 2, 64, 64, 128, "mean"),
    "lra-small image": (2, 2, 64, 64, 128, "mean"),
    "lra-small pathfinder": (2, 2, 64, 64, 128, "mean"),
    # XF config_nystrom.json: 2 layers, 64, 2 heads, multiplier 2, cls
    "xiong listops": (2, 2, 64, 64, 128, "cls"),
    "xiong text": (2, 2, 64, 64, 128, "cls"),
    "xiong retrieval": (2, 2, 64, 64, 128, "cls"),
    # SPT transformer-lra-*.yaml: n_layers, n_heads, d_model, expand; mode pool
    "s4-style listops": (6, 8, 512, 512, 2048, "mean"),
    "s4-style text": (6, 8, 512, 512, 2048, "mean"),
    "s4-style retrieval": (4, 4, 128, 128, 512, "mean"),
    "s4-style image": (3, 4, 64, 64, 128, "mean"),
    "s4-style pathfinder": (4, 8, 128, 128, 128, "mean"),
    "s4-style path_x": (4, 4, 128, 128, 128, "mean"),
    # RoBERTa base, Liu et al. 2019, table 9; LF classification.py takes the first token
    "documents hyperpartisan": (12, 12, 768, 768, 3072, "first"),
    "documents text": (12, 12, 768, 768, 3072, "first"),
    # Beltagy et al. 2020, section 7: LED-large has the shape of BART-large
    "documents arxiv_summarization": (12, 16, 1024, 1024, 4096, "mean"),
    # Beltagy et al. 2020, section 5: RoBERTa-base
    "wikihop-ablation wikihop": (12, 12, 768, 768, 3072, "first"),
    # SPT transformer-lra-*.yaml and transformer-lra-*-mlm*.yaml
    "self-pretraining masked_listops": (6, 8, 512, 512, 2048, "mean"),
    "self-pretraining listops": (6, 8, 512, 512, 2048, "mean"),
    "self-pretraining masked_text": (6, 8, 512, 512, 2048, "mean"),
    "self-pretraining text": (6, 8, 512, 512, 2048, "mean"),
    "self-pretraining masked_retrieval": (4, 4, 128, 128, 512, "mean"),
    "self-pretraining retrieval": (4, 4, 128, 128, 512, "mean"),
    "self-pretraining masked_image": (3, 4, 64, 64, 128, "mean"),
    "self-pretraining image": (3, 4, 64, 64, 128, "mean"),
    "self-pretraining masked_pathfinder": (4, 8, 128, 128, 128, "mean"),
    "self-pretraining pathfinder": (4, 8, 128, 128, 128, "mean"),
    "self-pretraining masked_path_x": (4, 4, 128, 128, 128, "mean"),
    "self-pretraining path_x": (4, 4, 128, 128, 128, "mean"),
    # Beltagy et al. 2020, table 12; 2,048 from Dai et al.
    "longformer-char text8": (12, 8, 512, 512, 2048, "mean"),
    "longformer-char enwik8": (12, 8, 512, 512, 2048, "mean"),
    # kimiyoung/transformer-xl: n_layer, n_head, d_model, n_head * d_head, d_inner
    "transformer-xl text8": (12, 8, 512, 512, 2048, "mean"),
    "transformer-xl enwik8": (12, 8, 512, 512, 2048, "mean"),
    "transformer-xl wikitext_103": (16, 10, 410, 410, 2100, "mean"),
    # Press et al. 2021, section 2
    "shortformer wikitext_103": (16, 8, 1024, 1024, 4096, "mean"),
    # Rae et al. 2020, section 5 and supplementary material; the width of pg19 is a choice
    "compressive-transformer enwik8": (24, 8, 1024, 1024, 3072, "mean"),
    "compressive-transformer wikitext_103": (18, 16, 1024, 1024, 4096, "mean"),
    "compressive-transformer pg19": (36, 16, 1024, 1024, 4096, "mean"),
    # NVIDIA/transformer-ls autoregressive/launch: n-layer, n-head, d-model, d-inner
    "long-short-char text8": (12, 8, 512, 512, 2048, "mean"),
    "long-short-char enwik8": (12, 8, 512, 512, 2048, "mean"),
}
# batch size, steps, learning rate, warmup, weight decay, schedule, scored checkpoint
LAST, BEST = "last", "best validation"
TRAINING = {
    "lra-repo listops": (32, 5_000, 0.05, 1_000, 0.1, "rsqrt", LAST),
    "lra-repo text": (32, 20_000, 0.05, 8_000, 0.1, "rsqrt", LAST),
    "lra-repo retrieval": (32, 5_000, 0.05, 8_000, 0.1, "rsqrt", LAST),
    "lra-repo image": (256, 45_000 // 256 * 200, 5e-4, 175, 0.0, "cosine", LAST),
    "lra-repo pathfinder": (512, 160_000 // 512 * 200, 1e-3, 312, 0.0, "cosine", LAST),
    "lra-repo path_x": (64, 160_000 // 64 * 200, 1e-3, 2_500, 0.0, "cosine", LAST),
    "lra-paper listops": (32, 5_000, 0.05, 1_000, 0.1, "rsqrt", LAST),
    "lra-paper text": (32, 20_000, 0.05, 8_000, 0.1, "rsqrt", LAST),
    "lra-paper retrieval": (32, 5_000, 0.5, 8_000, 0.1, "rsqrt", LAST),
    # 200 epochs at 0.01
    "lra-paper image": (256, 35_000, 0.01, 175, 0.0, "rsqrt", LAST),
    "lra-paper pathfinder": (512, 62_400, 0.01, 312, 0.0, "rsqrt", LAST),
    "lra-paper path_x": (64, 500_000, 0.01, 2_500, 0.0, "rsqrt", LAST),
    # NYS: batch_size, num_train_steps, learning_rate, warmup, weight_decay, OneCycleLR
    "lra-small listops": (32, 5_000, 1e-4, 1_000, 0.0, "linear", BEST),
    "lra-small text": (32, 20_000, 1e-4, 8_000, 0.0, "linear", BEST),
    "lra-small retrieval": (32, 30_000, 1e-4, 800, 0.0, "linear", BEST),
    "lra-small image": (256, 35_000, 1e-4, 175, 0.0, "linear", BEST),
    "lra-small pathfinder": (256, 62_400, 1e-4, 312, 0.0, "linear", BEST),
    # XF run_grid_search.py at 61554f67, first value of each list
    "xiong listops": (32, 10_000, 1e-4, 2_000, 0.02, "linear", BEST),
    "xiong text": (32, 20_000, 1e-4, 2_000, 0.0, "linear", BEST),
    "xiong retrieval": (32, 30_000, 1e-4, 2_000, 0.01, "linear", BEST),
    # S4 s4-*.yaml: batch, epochs, warmup, weight decay; rates within SPT's grid
    "s4-style listops": (32, 120_000, 1e-3, 12_000, 0.05, "cosine", BEST),
    "s4-style text": (16, 49_984, 1e-3, 5_000, 0.05, "cosine", BEST),
    "s4-style retrieval": (64, 45_960, 1e-3, 5_000, 0.05, "cosine", BEST),
    "s4-style image": (50, 180_000, 1e-3, 18_000, 0.05, "cosine", BEST),
    "s4-style pathfinder": (64, 500_000, 5e-4, 50_000, 0.05, "cosine", BEST),
    "s4-style path_x": (16, 500_000, 5e-4, 50_000, 0.05, "cosine", BEST),
    # Longformer, appendix: batch 32, 15 epochs, 3e-5, a tenth for warmup; its script for the rest
    "documents hyperpartisan": (32, 15 * (515 // 32), 3e-5, 24, 0.0, "linear", BEST),
    "documents text": (32, 15 * (19_860 // 32), 3e-5, 930, 0.0, "linear", BEST),
    # LF summarization.py: five epochs of 203,037 papers
    "documents arxiv_summarization": (16, 5 * (203_037 // 16), 3e-5, 1_000, 0.0, "linear", BEST),
    # Beltagy et al. 2020, appendix D: five epochs of nine tenths of 43,738 questions
    "wikihop-ablation wikihop": (32, 5 * 39_364 // 32, 3e-5, 200, 0.01, "linear", BEST),
    # SPT transformer-lra-*-mlm*.yaml and transformer-lra-*.yaml: batch, epochs, warmup, weight
    # decay, schedule; learning rates of the paper. A batch of 32 pairs has 64 texts.
    "self-pretraining masked_listops": (32, 100 * 3_000, 1e-3, 2_000, 0.0, "constant", BEST),
    "self-pretraining listops": (32, 100 * 3_000, 1e-4, 2_000, 0.0, "constant", BEST),
    "self-pretraining masked_text": (32, 32 * 781, 5e-4, 5_000, 0.1, "constant", BEST),
    "self-pretraining text": (32, 65 * 781, 5e-4, 2_000, 0.1, "cosine", BEST),
    "self-pretraining masked_retrieval": (64, 32 * 4_596, 5e-3, 2_000, 0.0, "constant", BEST),
    "self-pretraining retrieval": (32, 32 * 4_596, 5e-4, 5_000, 0.0, "constant", BEST),
    "self-pretraining masked_image": (32, 50 * 1_406, 1e-3, 2_500, 0.0, "constant", BEST),
    "self-pretraining image": (50, 200 * 900, 1e-3, 2_000, 0.0, "constant", BEST),
    "self-pretraining masked_pathfinder": (32, 50 * 5_000, 1e-3, 2_500, 0.0, "constant", BEST),
    "self-pretraining pathfinder": (32, 200 * 5_000, 5e-4, 5_000, 0.0, "constant", BEST),
    "self-pretraining masked_path_x": (32, 200 * 5_000, 1e-3, 5_000, 0.0, "constant", BEST),
    "self-pretraining path_x": (32, 200 * 5_000, 5e-4, 5_000, 0.0, "constant", BEST),
    # Beltagy et al. 2020, table 12: the last of five phases, 0.00025 / 2^4
    "longformer-char text8": (16, 570_000, 1.5625e-5, 500, 0.01, "constant", BEST),
    "longformer-char enwik8": (16, 570_000, 1.5625e-5, 500, 0.01, "constant", BEST),
    # kimiyoung/transformer-xl tf/scripts/text8_base_gpu.sh, pytorch/run_enwik8_base.sh and
    # pytorch/run_wt103_base.sh
    "transformer-xl text8": (24, 400_000, 2.5e-4, 0, 0.0, "cosine", BEST),
    "transformer-xl enwik8": (22, 400_000, 2.5e-4, 0, 0.0, "cosine", BEST),
    "transformer-xl wikitext_103": (60, 200_000, 2.5e-4, 0, 0.0, "cosine", BEST),
    # ofirpress/shortformer README.md: 3 x 3,072 tokens on each of eight GPUs; the rate is a choice
    "shortformer wikitext_103": (8 * 3, 286_000, 2.5e-4, 16_000, 0.0, "cosine", BEST),
    # Rae et al. 2020, section 5: warmup and decay; the batch of enwik8 is a choice
    "compressive-transformer enwik8": (64, 104_000, 3e-4, 4_000, 0.0, "cosine", BEST),
    "compressive-transformer wikitext_103": (128, 516_000, 3e-4, 16_000, 0.0, "cosine", BEST),
    "compressive-transformer pg19": (512, 516_000, 3e-4, 16_000, 0.0, "cosine", BEST),
    # NVIDIA/transformer-ls autoregressive/launch: the last of three phases, on eight GPUs
    "long-short-char text8": (8 * 2, 530_000, 1.25e-4, 5_000, 0.01, "constant", BEST),
    "long-short-char enwik8": (8 * 4, 530_000, 6.25e-5, 5_000, 0.01, "constant", BEST),
}
# betas, epsilon, precision, dropout, attention dropout, norm
COMMON = {
    # LRA */train.py create_optimizer; the modules' dropout of 0.1
    "lra-repo": ((0.9, 0.98), 1e-9, "no", 0.1, 0.1, "pre"),
    "lra-paper": ((0.9, 0.98), 1e-9, "no", 0.1, 0.1, "pre"),
    # NYS run_tasks.py: AdamW, mixed precision
    "lra-small": ((0.9, 0.999), 1e-6, "bf16", 0.1, 0.1, "pre"),
    "xiong": ((0.9, 0.999), 1e-6, "bf16", 0.0, 0.0, "pre"),
    # SPT transformer-lra-*.yaml: dropout 0, prenorm
    "s4-style": ((0.9, 0.999), 1e-8, "no", 0.0, 0.0, "pre"),
    "self-pretraining": ((0.9, 0.999), 1e-8, "no", 0.0, 0.0, "pre"),
    # RoBERTa base; LF classification.py: AdamW with epsilon 1e-8
    "documents": ((0.9, 0.999), 1e-8, "no", 0.1, 0.1, "post"),
    # allenai/longformer scripts/wikihop.py: AdamW of transformers, --beta2
    "wikihop-ablation": ((0.9, 0.98), 1e-6, "bf16", 0.1, 0.1, "post"),
    # Longformer, table 12; dropout of attention from the code of Transformer-XL
    "longformer-char": ((0.9, 0.999), 1e-8, "bf16", 0.2, 0.0, "pre"),
    # kimiyoung/transformer-xl: --dropout, --dropatt, no --pre_lnorm, torch's Adam
    "transformer-xl": ((0.9, 0.999), 1e-8, "no", 0.1, 0.0, "post"),
    # fairseq transformer_lm_wiki103
    "shortformer": ((0.9, 0.999), 1e-8, "bf16", 0.3, 0.1, "pre"),
    # Rae et al. 2020, algorithm 1; dropout is a choice
    "compressive-transformer": ((0.9, 0.999), 1e-8, "no", 0.15, 0.15, "post"),
    # NVIDIA/transformer-ls: --pre-ln, --dropout
    "long-short-char": ((0.9, 0.999), 1e-8, "bf16", 0.2, 0.2, "pre"),
}
EXCEPTIONS = {
    # LRA cifar10/base_cifar10_config.py and pathfinder32/transformer_base.py
    "lra-repo image": {"model.hidden_dropout_prob": 0.3, "model.attention_dropout": 0.2},
    "lra-paper image": {"model.hidden_dropout_prob": 0.3, "model.attention_dropout": 0.2},
    "lra-repo pathfinder": {"model.hidden_dropout_prob": 0.2},
    "lra-paper pathfinder": {"model.hidden_dropout_prob": 0.2},
    # XF config_nystrom.json
    "xiong listops": {"training.precision": "no"},
    # choices: dropout of models of the same size
    "compressive-transformer wikitext_103": {
        "model.hidden_dropout_prob": 0.2,
        "model.attention_dropout": 0.2,
    },
    "compressive-transformer pg19": {
        "model.hidden_dropout_prob": 0.1,
        "model.attention_dropout": 0.1,
    },
}
CASES = sorted(SIZES)


def recipe(case):
    protocol, task = case.split()
    return get(protocol).recipe(task)


def test_tables_cover_every_sourced_recipe():
    sourced = [p for p in PROTOCOLS.values() if p.source != "longspan"]
    recipes = {f"{p.name} {t}" for p in sourced for t in p.tasks}
    assert recipes == set(SIZES) == set(TRAINING)


@pytest.mark.parametrize("case", CASES)
def test_model_sizes(case):
    model = recipe(case).model
    heads, width = model.num_attention_heads, model.hidden_size
    found = (
        model.num_hidden_layers,
        heads,
        width,
        heads * (model.attention_head_size or width // heads),
        model.intermediate_size,
        model.pooling,
    )
    assert found == SIZES[case]


@pytest.mark.parametrize("case", CASES)
def test_training_hyperparameters(case):
    training = recipe(case).training
    found = (
        training.batch_size,
        training.steps,
        training.learning_rate,
        training.warmup_steps,
        training.weight_decay,
    )
    assert (*found, training.schedule, training.selection) == TRAINING[case]


@pytest.mark.parametrize("case", CASES)
def test_optimizer_precision_and_dropout(case):
    recipe_of_case = recipe(case)
    fields = (
        "training.adam_betas",
        "training.adam_epsilon",
        "training.precision",
        "model.hidden_dropout_prob",
    )
    fields = (*fields, "model.attention_dropout", "model.norm")
    expected = dict(zip(fields, COMMON[case.split()[0]], strict=True))
    split = {field: field.split(".") for field in fields}
    found = {
        field: getattr(getattr(recipe_of_case, part), name) for field, (part, name) in split.items()
    }
    assert found == {**expected, **EXCEPTIONS.get(case, {})}


LANGUAGE = (
    *("longformer-char", "transformer-xl", "shortformer", "compressive-transformer"),
    "long-short-char",
)
# LRA: sinusoidal unless learn_pos_emb is set, as in cifar10 and pathfinder128.
POSITIONS = {
    "lra-repo image": "learned", "lra-paper image": "learned",
    "lra-repo path_x": "learned", "lra-paper path_x": "learned",
    "wikihop-ablation wikihop": "learned",
    "shortformer wikitext_103": "sinusoidal", "transformer-xl wikitext_103": "sinusoidal",
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_position_embeddings(case):
    protocol = case.split()[0]
    usual = "learned" if protocol in ("lra-small", "xiong", "documents") else "sinusoidal"
    # Amos et al. 2024: rotary; in language models a choice, for mechanisms without their own
    usual = "rotary" if protocol == "self-pretraining" or protocol in LANGUAGE else usual
    assert recipe(case).model.position == POSITIONS.get(case, usual)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_models_add_no_positions_to_mechanisms_that_carry_them(name):
    for task in get(name).tasks:
        positions = {m: get(name).config(task, m).model.position for m in MECHANISMS}
        without = {m for m, position in positions.items() if position == "none"}
        assert without == {"transformer_xl", "compressive", "position_infused"}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_longformer_is_not_local(name):
    # Language models have no global tokens (Beltagy et al. 2020, section 4.1).
    encoders = [x for x in get(name).tasks if TASKS[x].info.head != "causal_lm"]
    for task in encoders:
        options = get(name).config(task, "longformer").mechanism.options
        assert options["global_projections"]
        # The first token is global, by the mechanism or as one of the task's global tokens.
        made = build(task, get(name).config(task, "longformer").task.options)
        assert options["first_global"] or made.num_global_tokens


def test_pair_heads():
    with_pairs = [p for p in PROTOCOLS.values() if "retrieval" in p.tasks]
    heads = {p.name: p.recipe("retrieval").model.pair_head for p in with_pairs}
    assert heads.pop("lra-repo") == "concatenate"
    assert set(heads.values()) == {"interaction"}


# Longformer, table 12; train.py of Transformer-XL; shortformer's README; Rae et al. 2020, section 5
CLIPPED = {
    "longformer-char": 0.25,
    "transformer-xl": 0.25,
    "shortformer": 0.1,
    "compressive-transformer": 0.1,
}


def test_only_lra_path_x_and_language_models_clip_gradients():
    norms = {case: recipe(case).training.max_grad_norm for case in CASES}
    found = {case for case, norm in norms.items() if norm is not None}
    language = {case for case in CASES if case.split()[0] in CLIPPED}
    assert found == {"lra-repo path_x", "lra-paper path_x", *language}
    assert all(norms[case] == CLIPPED[case.split()[0]] for case in language)


# NYS gradients: eval_frequency
EVALUATED = {"listops": 50, "text": 500, "retrieval": 300, "image": 175, "pathfinder": 312}


def test_evaluation_intervals_of_lra_small():
    found = {task: recipe(f"lra-small {task}").training.evaluate_every for task in EVALUATED}
    assert found == EVALUATED


# The rule of LRA utils/train_utils.py, evaluated by hand: 0.05 / sqrt(8000), 0.05 / sqrt(1000),
# 0.05 * (5000 / 8000) / sqrt(8000), 0.01 / sqrt(175), 0.01 / sqrt(312).
PEAKS = {
    "lra-repo text": 5.590e-4,
    "lra-repo listops": 1.581e-3,
    "lra-repo retrieval": 3.494e-4,
    "lra-paper retrieval": 3.494e-3,
    "lra-paper image": 7.559e-4,
    "lra-paper pathfinder": 5.661e-4,
}


@pytest.mark.parametrize("case", PEAKS)
def test_peak_learning_rates_of_rsqrt_schedule(case):
    training = recipe(case).training
    rates = [compute_learning_rate(training, step) for step in range(training.steps)]
    assert max(rates) == pytest.approx(PEAKS[case], rel=1e-3)
    assert rates.index(max(rates)) == min(training.warmup_steps, training.steps) - 1


# Beltagy et al. 2020, section 3.1: global attention on CLS, six projections.
PUBLISHED_LONGFORMER = {"first_global": True, "global_projections": True}
# Options of mechanisms in the sources; LRA models/*, NYS extra_attn_config, XF PR 192
OPTIONS = {
    "lra-repo listops bigbird": {"block": 64, "num_random_blocks": 3},
    "lra-repo listops linformer": {"rank": 16, "sharing": "key_value"},
    "lra-repo listops reformer": {"chunk": 10, "hashes": 1, "buckets": 10},
    "lra-repo listops strided_local": {"block": 50},
    "lra-repo image strided_local": {"block": 64},
    "lra-repo text sinkhorn": {"block": 50, "iterations": 1},
    "lra-repo pathfinder sinkhorn": {"block": 64, "iterations": 1},
    "lra-repo text longformer": {"window": 256, **PUBLISHED_LONGFORMER},
    "lra-small text longformer": {"window": 8, **PUBLISHED_LONGFORMER},
    "lra-repo text performer": {"feature_map": "relu", "features": None},
    "lra-repo text sparse_transformer": {"kind": "fixed", "stride": 50, "summary": 10},
    "lra-small text nystrom": {"landmarks": 128, "conv_kernel_size": 35},
    "lra-small text linformer": {"rank": 256},
    "lra-small image performer": {"features": 256},
    "lra-small image reformer": {"chunk": 64, "hashes": 2},
    "xiong text nystrom": {"landmarks": 64, "conv_kernel_size": 35},
    "xiong text long_short": {"window": 8, "rank": 32, "variant": "xiong"},
    "xiong text reformer": {"hashes": 4},
    "xiong listops reformer": {"hashes": 2},
    "xiong text sinkhorn": {"block": 8},
    "xiong text local": {"window": 8},
    "xiong text blockwise": {"block": 16},
    "xiong listops blockwise": {"block": 8},
    "xiong retrieval blockwise": {"block": 32},
    "xiong retrieval disjoint": {"block": 64},
    "xiong text linformer": {"rank": 4096 // 16},
    "xiong listops linformer": {"rank": 2048 // 16},
    "xiong listops performer": {"features": 64},
    "xiong text performer": {"features": 256},
}


@pytest.mark.parametrize("case", OPTIONS)
def test_mechanism_options(case):
    protocol, task, mechanism = case.split()
    assert get(protocol).options_for(task, mechanism) == OPTIONS[case]


def test_xiong_grids():
    # XF run_grid_search.py at 61554f67: rates x warmup x weight decay x seeds
    counts = {task: math.prod(map(len, grid.values())) for task, grid in get("xiong").grids.items()}
    assert counts == {"listops": 2 * 1 * 2 * 4, "text": 3 * 1 * 3 * 4, "retrieval": 2 * 2 * 2 * 3}
    assert get("xiong").grids["text"]["training.learning_rate"] == (1e-4, 3e-4, 5e-5)
    assert get("xiong").grids["retrieval"]["seed"] == (14, 3, 5)


GRIDS = [(p.name, t, f) for p in PROTOCOLS.values() for t in p.grids for f in p.grids[t]]


@pytest.mark.parametrize(("protocol", "task", "field"), GRIDS)
def test_grid_values_are_valid(protocol, task, field):
    values = get(protocol).grids[task][field]
    assert len(set(values)) == len(values) > 0
    if field == "seed":
        assert all(isinstance(seed, int) and seed >= 0 for seed in values)
        return
    recipe_of_case = get(protocol).experiment(task, "full", 0)
    for value in values:
        override(recipe_of_case, {field: value})
    # S4's batch size is not in the grid of SPT.
    if field != "training.batch_size":
        assert recipe_values(get(protocol), task, ())[field] in values


CHOICES = [(p.name, c) for p in PROTOCOLS.values() for c in p.choices]


@pytest.mark.parametrize(("protocol", "choice"), CHOICES)
def test_choice_has_value_of_recipe(protocol, choice):
    assert choice.tasks
    assert choice.source
    assert choice.why
    assert all(source for _, source in choice.instead)
    assert choice.value not in [value for value, _ in choice.instead]
    for task in choice.tasks:
        assert recipe_values(get(protocol), task, MECHANISMS)[choice.field] == choice.value


@pytest.mark.parametrize("name", PROTOCOLS)
def test_each_field_of_a_task_has_at_most_one_choice(name):
    cells = [(choice.field, task) for choice in get(name).choices for task in choice.tasks]
    assert len(set(cells)) == len(cells)


# Fields and tasks on which the sources contradict each other.
CONTRADICTIONS = {
    "lra-paper": [("task.length", "text"), ("training.learning_rate", "retrieval")],
    "lra-repo": [
        ("task.length", "text"),
        ("training.learning_rate", "retrieval"),
        ("model.num_hidden_layers", "listops"),
        ("model.num_hidden_layers", "pathfinder"),
        ("model.hidden_size", "pathfinder"),
        ("model.num_attention_heads", "pathfinder"),
    ],
    "lra-small": [("task.length", "text")],
    "xiong": [("training.learning_rate", "text"), ("mechanism.blockwise.block", "listops")],
    "s4-style": [("training.learning_rate", "path_x"), ("training.steps", "retrieval")],
    "self-pretraining": [("model.pooling", "path_x"), ("task.validation", "text")],
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_contradictions_between_sources_are_choices(name):
    found = {(c.field, task) for c in get(name).choices for task in c.tasks if c.instead}
    assert set(CONTRADICTIONS[name]) <= found


@pytest.mark.parametrize("name", PROTOCOLS)
def test_last_checkpoint_is_scored_if_validation_is_test(name):
    for task in get(name).tasks:
        recipe_of_case = get(name).recipe(task)
        if recipe_of_case.task_options.get("validation") == "test":
            assert recipe_of_case.training.selection == "last"


def test_choice_prints_as_single_line():
    lines = {c.field: str(c) for c in get("lra-repo").choices if c.tasks == ("retrieval",)}
    assert lines["training.learning_rate"] == (
        "0.05 (google-research/long-range-arena, lra_benchmarks/matching/configs/"
        "base_match_config.py); not 0.5 (Tay et al. 2021, Long Range Arena, the text): the "
        "protocol is the repository"
    )
    grid = next(c for c in get("xiong").choices if c.field == "training.learning_rate")
    assert "; not 0.0002 or 5e-05 (" in str(grid)
    assert "\n" not in "".join(str(c) for _, c in CHOICES)
