"""Training of the new positions only, as the configuration asks for it."""

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoModelForSeq2SeqLM

import short_sources
import tiny
import toy_heads
from longspan.config import TrainingConfig
from longspan.errors import OptionError
from longspan.models import (
    LongspanForConditionalGeneration,
    LongspanForMaskedLM,
    LongspanModel,
    longify,
)
from longspan.training import fit

TABLE = "model.embeddings.positions.weight"
FROZEN = {"freeze": "all-but-positions", "frozen_positions": 8}


def train_step(model, **inputs):
    """Take a step of AdamW without weight decay."""
    before = {name: x.detach().clone() for name, x in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0)
    ids = torch.randint(2, 40, (2, 30))
    model.train()(ids, **{"labels": ids, **inputs}).loss.backward()
    optimizer.step()
    return before, dict(model.named_parameters())


@pytest.mark.parametrize("given", [False, True], ids=["index", "position_ids"])
def test_only_extra_positions_are_trained(small, given):
    model = LongspanForMaskedLM(small(position="learned", **FROZEN))
    inputs = {"position_ids": torch.arange(30)[None]} if given else {}
    before, after = train_step(model, **inputs)
    assert [name for name, x in after.items() if x.requires_grad] == [TABLE]
    changed = [name for name in after if not torch.equal(before[name], after[name])]
    assert changed == [TABLE]
    rows = (before[TABLE] != after[TABLE]).any(1)
    assert rows.tolist() == [8 <= row < 30 for row in range(40)]


def test_longified_checkpoint_stays_frozen_until_thawed(tmp_path):
    short_sources.make("roberta").save_pretrained(tmp_path / "source")
    longify(
        tmp_path / "source",
        attention="local",
        max_length=40,
        freeze="all-but-positions",
        out=tmp_path / "out",
    )
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    assert model.config.frozen_positions == short_sources.LENGTH
    before, after = train_step(model)
    changed = [name for name in after if not torch.equal(before[name], after[name])]
    assert changed == [TABLE]
    rows = (before[TABLE] != after[TABLE]).any(1)
    assert rows.tolist() == [short_sources.LENGTH <= row < 30 for row in range(40)]
    thawed = AutoModelForMaskedLM.from_pretrained(
        tmp_path / "out", freeze="none", frozen_positions=0
    )
    before, after = train_step(thawed)
    assert all(x.requires_grad for x in after.values())
    assert (before[TABLE] != after[TABLE]).any(1)[:30].all()


def test_frozen_positions_do_not_decay_in_a_run(small, tmp_path):
    """Weight decay needs no gradient."""
    task = toy_heads.ToyMasked()
    task.open(tmp_path / "cache")
    config = small(position="learned", vocab_size=task.vocab_size, **FROZEN)
    model = LongspanForMaskedLM(config)
    before = {name: x.detach().clone() for name, x in model.named_parameters()}
    recipe = {**tiny.TRAIN, "steps": 4, "weight_decay": 0.5, "selection": "last"}
    training = TrainingConfig(**recipe, schedule="constant")
    fit(model, task, training, seed=0, folder=tmp_path / "run", device="cpu")
    after = dict(model.named_parameters())
    assert [name for name in after if not after[name].equal(before[name])] == [TABLE]
    assert after[TABLE][:8].equal(before[TABLE][:8])
    assert (after[TABLE] != before[TABLE]).any(1)[8:16].all()


def test_interpolated_positions_are_all_trained(tmp_path):
    short_sources.make("bert").save_pretrained(tmp_path)
    options = {"max_length": 40, "positions": "interpolate", "freeze": "all-but-positions"}
    assert longify(tmp_path, attention="full", **options).model.config.frozen_positions == 0


ENCODER_TABLE = "model.encoder.embeddings.positions.weight"
DECODER_TABLE = "model.decoder.embeddings.positions.weight"


@pytest.mark.parametrize("longer", [None, 30], ids=["decoder as it is", "longer decoder"])
def test_extra_positions_of_encoder_and_extended_decoder_are_trained(tmp_path, longer):
    short_sources.make_encoder_decoder("bart").save_pretrained(tmp_path / "source")
    options = {"max_length": 40, "decoder_max_length": longer, "freeze": "all-but-positions"}
    longify(tmp_path / "source", attention="local", out=tmp_path / "out", **options)
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    before, after = train_step(model, labels=torch.randint(2, 40, (2, longer or 20)))
    tables = [ENCODER_TABLE, DECODER_TABLE] if longer else [ENCODER_TABLE]
    assert [name for name, x in after.items() if x.requires_grad] == tables
    assert [name for name in after if not torch.equal(before[name], after[name])] == tables
    for table in tables:
        rows = (before[table] != after[table]).any(1)
        assert rows.tolist() == [short_sources.LENGTH <= row < 30 for row in range(len(rows))]


def test_frozen_encoder_decoder_is_thawed_as_a_whole(tmp_path):
    short_sources.make_encoder_decoder("bart").save_pretrained(tmp_path / "source")
    options = {"max_length": 40, "decoder_max_length": 30, "freeze": "all-but-positions"}
    longify(tmp_path / "source", attention="local", out=tmp_path / "out", **options)
    thawed = AutoModelForSeq2SeqLM.from_pretrained(
        tmp_path / "out", freeze="none", frozen_positions=0
    )
    before, after = train_step(thawed)
    assert all(x.requires_grad for x in after.values())
    for table in (ENCODER_TABLE, DECODER_TABLE):
        assert (before[table] != after[table]).any(1)[:30].all()


def test_all_interpolated_positions_of_a_longer_decoder_are_trained(tmp_path):
    short_sources.make_encoder_decoder("bart").save_pretrained(tmp_path)
    options = {"max_length": 40, "positions": "interpolate", "freeze": "all-but-positions"}
    model = longify(tmp_path, attention="full", decoder_max_length=30, **options).model
    before, after = train_step(model)
    for table in (ENCODER_TABLE, DECODER_TABLE):
        assert (before[table] != after[table]).any(1)[:30].all()


def test_decoder_without_learned_positions_is_frozen(small):
    fields = {"position": "learned", "pad_token_id": 1, "decoder_start_token_id": 2, **FROZEN}
    overrides = {"position": "sinusoidal"}
    config = small(is_encoder_decoder=True, decoder_overrides=overrides, **fields)
    model = LongspanForConditionalGeneration(config)
    trained = [name for name, x in model.named_parameters() if x.requires_grad]
    assert trained == [ENCODER_TABLE]


def test_whole_model_can_be_frozen(small):
    model = LongspanForMaskedLM(small(position="sinusoidal", freeze="all"))
    assert not any(x.requires_grad for x in model.parameters())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"position": "rotary"}, "requires learned positions, got position='rotary'"),
        ({"position": "learned", "frozen_positions": 40}, "less than the 40 positions, got 40"),
        ({"frozen_positions": -1}, "frozen_positions"),
    ],
)
def test_positions_that_do_not_exist_cannot_be_trained(small, fields, message):
    with pytest.raises(OptionError, match=message):
        LongspanModel(small(**{**FROZEN, **fields}))
