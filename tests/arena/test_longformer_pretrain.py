"""Longformer's pretraining, and the checkpoints that rows of its ablation on WikiHop start from."""

import pytest
import torch
from test_xiong_protocols import OWN
from transformers import RobertaConfig, RobertaForMaskedLM

from corpus_files import CORPUS, make_task, write_folder
from longspan.arena import RunChoices, RunPaths, finetune, get, pretrain
from longspan.arena.grid import find_refusal
from longspan.arena.saved_checkpoint import open_checkpoint
from longspan.config import flatten
from longspan.models import longify
from longspan.models.conversion.source import read_tensors
from longspan.tasks import build, register_imported
from published_values import check_sources, unsourced_fields
from wikihop_files import write_wikihop

NAME = "longformer-pretrain"


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("documents")
    make_task(folder, write_folder(folder / "files"), name=CORPUS)
    register_imported(folder)
    yield folder
    register_imported(folder / "none")


def test_every_difference_from_the_sources_is_a_choice(cache):
    protocol = get(NAME)
    checks = check_sources(protocol)
    assert len(checks) > 20
    assert [x for x in checks if x.verdict not in ("equal", "chosen")] == []
    found = unsourced_fields(protocol, [CORPUS])
    assert {x for x in found if not x.startswith("mechanism.")} <= OWN | {"model.pooling"}


def test_mechanisms_are_those_of_the_ablation(cache):
    for name in ("longformer", "local", "bigbird", "linformer"):
        pretrained = get(NAME).config(CORPUS, name)
        assert pretrained.mechanism == get("wikihop-ablation").config("wikihop", name).mechanism
    changed = flatten(get(NAME).row(CORPUS, "positions-only", 0).config)
    plain = flatten(get(NAME).row(CORPUS, "longformer", 0).config)
    assert [x for x in plain if plain[x] != changed[x]] == ["training.weight_decay"]
    assert find_refusal(get(NAME).row(CORPUS, "longformer", 0)) is None


@pytest.fixture(scope="module")
def roberta(cache, tmp_path_factory):
    """Folder of a small RoBERTa of 16 tokens with the tokenizer of the corpus."""
    folder = tmp_path_factory.mktemp("roberta")
    tokenizer = build(CORPUS, {}).tokenizer
    torch.manual_seed(0)
    size = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = RobertaConfig(
        vocab_size=tokenizer.vocab_size, max_position_embeddings=17, intermediate_size=8,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, **size,
    )  # fmt: skip
    RobertaForMaskedLM(config).save_pretrained(folder)
    return folder


QUICK = {"steps": 3, "batch_size": 4, "warmup_steps": 1, "evaluate_every": 3, "precision": "no"}
CHANGES = {
    "task.length": 64,
    **{f"training.{name}": x for name, x in QUICK.items()},
    **{"training.gradient_accumulation_steps": 1, "training.learning_rate": 0.01},
}


@pytest.mark.parametrize(
    ("row", "pretraining", "freeze"),
    [
        ("longformer", "longformer", "none"),
        ("positions-only", "positions-only", "all-but-positions"),
    ],
)
def test_checkpoints_of_the_table_are_trained_and_start_its_rows(
    roberta, cache, tmp_path, row, pretraining, freeze
):
    """Positions beyond those of RoBERTa alone change, or all weights do; then all are trained."""
    start = tmp_path / "start"
    options = {"window": 4, "first_global": True, "global_projections": True}
    longify(
        roberta, out=start, attention="longformer", max_length=64, options=options, freeze=freeze
    )
    paths = RunPaths(
        runs=tmp_path / "runs", cache=cache, data=write_wikihop(tmp_path), device="cpu"
    )
    choices = RunChoices(mechanism=pretraining, protocol=NAME, changes=CHANGES)
    pretrain(CORPUS, paths, start=start, choices=choices)
    (record,) = (tmp_path / "runs").rglob(f"{pretraining}-*.json")
    before, after = (read_tensors(x) for x in (start, open_checkpoint(record).folder))
    shared = before.keys() & after.keys()
    changed = {x for x in shared if not before[x].equal(after[x])}
    positions = "model.embeddings.positions.weight"
    if freeze == "none":
        assert len(changed) > 0.8 * len(shared)
    else:
        assert changed == {positions}
        assert before[positions][:16].equal(after[positions][:16])
        assert (before[positions][16:] != after[positions][16:]).any(-1).all()
    small = {**CHANGES, "task.candidates": 4}
    choices = RunChoices(mechanism=row, protocol="wikihop-ablation", changes=small)
    result = finetune(record, "wikihop", paths, choices=choices)
    assert (result.row_name, result.start.new) == (row, ["candidate_outputs.weight"])
    model = open_checkpoint(next((tmp_path / "runs" / "wikihop-ablation").rglob("*.json")))
    assert model.config.freeze == "none"
