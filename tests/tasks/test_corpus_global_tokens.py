"""Global tokens of corpora in masked language modeling (Xiong et al. 2022, section 4.3)."""

import pytest
import torch

from corpus_files import make_task, write_folder
from longspan.errors import LongspanError
from longspan.models import LongspanForMaskedLM
from longspan.models.config import LongspanConfig
from longspan.tasks import build, register_imported


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    make_task(folder, write_folder(folder / "files"))
    yield folder
    register_imported(folder / "none")


def open_task(cache, **options):
    register_imported(cache)
    task = build("mine", {"length": 32, **options})
    task.open(cache)
    return task


@pytest.mark.parametrize(("choice", "places"), [("first", [0]), (8, [0, 8, 16, 24]), (32, [0])])
@pytest.mark.parametrize("split", ["train", "test"])
def test_tokens_at_the_places_are_global_and_padding_never_is(cache, split, choice, places):
    task = open_task(cache, global_tokens=choice)
    assert task.num_global_tokens == len(places)
    batch = next(task.batches(split, batch_size=64))
    marked, real = (batch.inputs[x] for x in ("global_attention_mask", "attention_mask"))
    expected = torch.zeros_like(real)
    expected[:, [x for x in places if x < real.shape[1]]] = True
    assert not real.all()
    assert torch.equal(marked, expected & real)


def test_global_tokens_change_nothing_else(cache):
    plain, marked = (open_task(cache, global_tokens=x) for x in ("none", 8))
    for one, other in zip(
        *(x.batches("test", batch_size=16) for x in (plain, marked)), strict=True
    ):
        assert torch.equal(one.inputs["input_ids"], other.inputs["input_ids"])
        assert torch.equal(one.targets, other.targets)
        assert "global_attention_mask" not in one.inputs
    assert plain.num_global_tokens == 0


def test_a_window_sees_what_global_tokens_saw(cache):
    """The first token's only way to the last one is a global token between them."""
    task = open_task(cache, global_tokens=8)
    config = LongspanConfig(
        vocab_size=task.vocab_size, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=32, attention="local",
        attention_options={"window": 1}, max_global_tokens=task.num_global_tokens,
        pad_token_id=task.tokenizer.token_id("pad"),
    )  # fmt: skip
    model = LongspanForMaskedLM(config).eval()
    batch = next(task.batches("train", batch_size=8))
    row = int(batch.inputs["attention_mask"].sum(1).argmax())
    inputs = {name: x[row : row + 1] for name, x in batch.inputs.items()}
    changed = {**inputs, "input_ids": inputs["input_ids"].clone()}
    changed["input_ids"][0, 1] = (changed["input_ids"][0, 1] + 1) % task.vocab_size
    for globals_, is_moved in ((True, True), (False, False)):
        kept = {x: y for x, y in inputs.items() if globals_ or x != "global_attention_mask"}
        moved = {**kept, "input_ids": changed["input_ids"]}
        one, other = (model(**x).logits[0, -1] for x in (kept, moved))
        assert bool((one != other).any()) == is_moved


@pytest.mark.parametrize("choice", ["boundaries", 0, -3])
def test_other_choices_are_refused(cache, choice):
    with pytest.raises(LongspanError, match="global_tokens"):
        open_task(cache, global_tokens=choice)
