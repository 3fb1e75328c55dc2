"""Masked language modeling on imported corpora: windows, masks, weights, global tokens."""

import itertools

import numpy as np
import pytest
import torch

from corpus_files import TEXTS, make_task, prose, write_folder
from longspan.errors import DataError, LongspanError, OptionError
from longspan.models import LongspanForMaskedLM
from longspan.models.config import LongspanConfig
from longspan.tasks import IGNORE, TASKS, build, register_imported
from longspan.tasks.data_cards import compute_statistics
from longspan.tasks.language.windows import weighted_rows
from longspan.tasks.masking import Masking


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    make_task(folder, write_folder(folder / "files"))
    yield folder
    register_imported(folder / "none")


def open_task(cache, name="mine", **options):
    register_imported(cache)
    task = build(name, {"length": 32, **options})
    task.open(cache)
    return task


def unmasked(batch):
    """Return the ids before masking, (B, T)."""
    return torch.where(batch.targets == IGNORE, batch.inputs["input_ids"], batch.targets)


def tokens_of(task, split, batches):
    """Return the tokens of each example without its first special token, by row."""
    found = {}
    for batch in batches:
        for ids, mask, row in zip(
            unmasked(batch), batch.inputs["attention_mask"], batch.rows, strict=True
        ):
            assert ids[0] == task.tokenizer.token_id("cls")
            found[int(row)] = ids[mask][1:].tolist()
    return [found[row] for row in range(task.size(split))]


def test_card_counts_windows(cache):
    task = open_task(cache)
    found = compute_statistics(task, "train")
    assert found["examples"] == task.size("train")
    assert found["sequences"]["tokens"]["maximum"] == 31  # beside the first special token


def documents_of(task, split):
    """Return the stored tokens of each document."""
    stored = task.dataset.splits[split]
    return [
        list(itertools.chain(*(stored.tokens[row].tolist() for row in rows)))
        for _, rows in itertools.groupby(range(len(stored)), lambda row: stored.labels[row])
    ]


@pytest.mark.parametrize("split", ["train", "validation", "test"])
@pytest.mark.parametrize("length", [2, 9, 32, 5000])
def test_windows_of_documents_cover_each_one_in_order(cache, split, length):
    task = open_task(cache, length=length)
    rows = np.arange(task.size(split))
    windows = tokens_of(task, split, task.batches(split, batch_size=7, rows=rows))
    assert all(len(window) <= length - 1 for window in windows)
    documents = documents_of(task, split)
    for number, document in enumerate(documents):
        own = [windows[row] for row in np.flatnonzero(task.units(split) == number)]
        assert list(itertools.chain(*own)) == document
        assert len(own) == -(-len(document) // (length - 1))
    assert task.units(split).max() == len(documents) - 1


@pytest.mark.parametrize("most", [1, 2, 5, 10_000])
def test_held_out_documents_keep_windows_at_even_distances(cache, most):
    task, whole = open_task(cache, length=9, held_out_windows=most), open_task(cache, length=9)
    kept = tokens_of(task, "test", task.batches("test", batch_size=7))
    windows = tokens_of(whole, "test", whole.batches("test", batch_size=7))
    assert task.size("train") == whole.size("train")
    for number in range(len(documents_of(whole, "test"))):
        own = [windows[row] for row in np.flatnonzero(whole.units("test") == number)]
        count = min(most, len(own))
        expected = [own[-(-len(own) * place // count)] for place in range(count)]
        assert [kept[row] for row in np.flatnonzero(task.units("test") == number)] == expected


def test_a_stream_fills_every_window_and_crosses_documents(cache):
    task = open_task(cache, pack="stream", length=50)
    rows = np.arange(task.size("train"))
    windows = tokens_of(task, "train", task.batches("train", batch_size=7, rows=rows))
    documents = documents_of(task, "train")
    assert list(itertools.chain(*windows)) == list(itertools.chain(*documents))
    assert {len(window) for window in windows[:-1]} == {49}
    separator = task.tokenizer.token_id("sep")
    assert any(separator in window[:-1] for window in windows)
    # held-out examples are the same under every packing
    plain = open_task(cache, length=50)
    assert task.size("test") == plain.size("test")
    assert tokens_of(task, "test", task.batches("test", batch_size=3)) == tokens_of(
        plain, "test", plain.batches("test", batch_size=3)
    )


def test_training_masks_depend_on_seed_and_number_of_the_batch_alone(cache):
    task = open_task(cache)
    whole = list(itertools.islice(task.batches("train", batch_size=4, seed=3), 6))
    resumed = list(itertools.islice(task.batches("train", batch_size=4, seed=3, start=4), 2))
    for one, other in zip(whole[4:], resumed, strict=True):
        assert torch.equal(one.inputs["input_ids"], other.inputs["input_ids"])
        assert torch.equal(one.targets, other.targets)
    per_epoch = task.size("train") // 4
    rows = {}
    for batch in itertools.islice(task.batches("train", batch_size=4, seed=3), 2 * per_epoch):
        for row, targets in zip(batch.rows.tolist(), batch.targets, strict=True):
            rows.setdefault(row, []).append(targets.tolist())
    again = [masks for masks in rows.values() if len(masks) == 2]
    # drawn anew in each epoch
    assert sum(one != other for one, other in again) > 0.9 * len(again)


def test_evaluation_masks_depend_on_the_example_alone(cache):
    task = open_task(cache)

    def masks(**options):
        found = {}
        for batch in task.batches("test", **options):
            for row, *parts in zip(
                batch.rows.tolist(),
                batch.inputs["input_ids"],
                batch.targets,
                batch.inputs["attention_mask"],
                strict=True,
            ):
                inputs, targets, mask = parts
                found[row] = inputs[mask].tolist(), targets[mask].tolist()
        return found

    expected = masks(batch_size=3)
    assert masks(batch_size=100, seed=9) == expected
    last = max(expected)
    assert masks(batch_size=1, rows=np.array([last])) == {last: expected[last]}


def test_padding_and_special_tokens_are_never_masked(cache):
    task = open_task(cache, mask_probability=0.99)
    special = torch.tensor(sorted(task.tokenizer.special_ids))
    for batch in task.batches("validation", batch_size=5):
        scored = batch.targets != IGNORE
        assert not (scored & ~batch.inputs["attention_mask"]).any()
        assert not torch.isin(batch.targets[scored], special).any()
        assert scored[:, 1:][batch.inputs["attention_mask"][:, 1:]].float().mean() > 0.85


def test_shares_of_masked_replaced_and_kept_tokens():
    special = np.zeros(500, bool)
    special[:5] = True
    masking = Masking(probability=0.15, replaced=0.8, random=0.1, mask_id=4, special=special)
    ids = np.random.default_rng(0).integers(5, 500, (200, 500))
    real = np.ones_like(ids, bool)
    real[:, 400:] = False
    before = ids.copy()
    inputs, targets = masking.apply(ids, real, np.random.default_rng(1))
    assert (ids == before).all()
    chosen = targets != IGNORE
    assert (targets[chosen] == ids[chosen]).all()
    assert (inputs[~chosen] == ids[~chosen]).all()
    assert set(chosen.sum(1)) == {60}  # 15 % of 400, exactly
    hidden = inputs[chosen] == 4
    kept = inputs[chosen] == ids[chosen]
    assert hidden.mean() == pytest.approx(0.8, abs=0.01)
    # a random token is the same one at times
    assert kept.mean() == pytest.approx(0.1 + 0.1 / 495, abs=0.01)
    swapped = inputs[chosen][~hidden & ~kept]
    assert swapped.min() >= 5
    assert len(set(swapped.tolist())) > 400


def test_the_number_of_masked_tokens_is_rounded_at_random_and_at_least_one():
    masking = Masking(
        probability=0.15, replaced=1.0, random=0.0, mask_id=1, special=np.array([1, 1, 0], bool)
    )
    ids = np.full((2000, 10), 2)
    _, targets = masking.apply(ids, np.ones_like(ids, bool), np.random.default_rng(0))
    counts = (targets != IGNORE).sum(1)
    assert set(counts) == {1, 2}
    assert counts.mean() == pytest.approx(1.5, abs=0.05)
    _, targets = masking.apply(ids[:50, :3], np.ones((50, 3), bool), np.random.default_rng(0))
    assert set((targets != IGNORE).sum(1)) == {1}
    nothing = np.array([[1, 0]])
    _, targets = masking.apply(nothing, np.ones_like(nothing, bool), np.random.default_rng(0))
    assert (targets == IGNORE).all()


def test_one_data_set_serves_every_length_and_packing(cache):
    tasks = [open_task(cache), open_task(cache, length=64, pack="stream", replaced=0.5)]
    assert len({task.checksum for task in tasks}) == 1
    assert len({task.dataset.folder for task in tasks}) == 1


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_changed_token_is_refused(tmp_path, split):
    cls = make_task(tmp_path, write_folder(tmp_path / "files"))
    task = cls(cls.Options(length=16, held_out_windows=3))
    task.open(tmp_path)
    stored = task.dataset.splits[split]
    values = stored.tokens.values.copy()
    values[4] += 1
    object.__setattr__(stored.tokens, "values", values)
    found = task.batches(split, batch_size=1, rows=np.array([0, 2]))
    with pytest.raises(DataError, match="row 0 has changed since it was written"):
        list(found)


def test_weighted_sources_have_their_shares_and_whole_epochs():
    sources = np.repeat([0, 1, 2], [40, 400, 60])
    weights = np.array([1.0, 1.0, 2.0])
    batches = list(itertools.islice(weighted_rows(sources, weights, 8, 5, 0), 250))
    drawn = np.concatenate(batches)
    counts = np.bincount(sources[drawn[:1000]])
    assert counts.tolist() == [250, 250, 500]
    for number in range(3):
        own = np.flatnonzero(sources == number)
        order = drawn[sources[drawn] == number]
        for first in range(0, len(order) - len(own) + 1, len(own)):
            assert sorted(order[first : first + len(own)]) == own.tolist()
    resumed = weighted_rows(sources, weights, 8, 5, 137)
    for expected in batches[137:140]:
        assert next(resumed).tolist() == expected.tolist()
    assert next(weighted_rows(sources, weights, 8, 6, 0)).tolist() != batches[0].tolist()


def test_training_draws_sources_by_weight_and_streams_stay_in_one(tmp_path):
    few = write_folder(tmp_path / "few", [f"{n} {prose(80, n)}" for n in range(4)])
    many = write_folder(tmp_path / "many", [f"{n} {prose(80, n)}" for n in range(50, 90)])
    make_task(tmp_path, few, many, weights=(3.0, 1.0))
    task = open_task(tmp_path, pack="stream")
    bound = task.facts["training_sources"][0]
    batches = itertools.islice(task.batches("train", batch_size=20), 50)
    rows = np.concatenate([batch.rows.numpy() for batch in batches])
    assert (task.units("train")[rows] < bound).mean() == 0.75
    ends = np.cumsum([len(document) for document in documents_of(task, "train")])
    offsets = task._examples("train").tokens.offsets
    assert ends[bound - 1] in offsets  # no window has tokens of both


def test_a_weighted_source_without_training_documents_is_refused(tmp_path):
    one = write_folder(tmp_path / "one", TEXTS[:1])
    many = write_folder(tmp_path / "many", TEXTS[:20])
    held = write_folder(tmp_path / "held", TEXTS[:1])
    with pytest.raises(DataError, match="one has a weight, but no training document is left"):
        make_task(tmp_path, one, many, weights=(1.0, 1.0), test=str(held))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"length": 1}, "length must be at least 2"),
        ({"replaced": 0.95}, r"replaced=0\.95 and random=0\.1 exceed 1"),
        ({"mask_probability": 0.0}, "mask_probability"),
    ],
)
def test_invalid_options_are_refused(cache, options, reason):
    register_imported(cache)
    with pytest.raises(OptionError, match=reason):
        build("mine", options)


def test_class_of_a_imported_names_its_file(cache):
    assert type(open_task(cache)).__module__ == "longspan.tasks.language.corpora"


def test_corpora_of_another_cache_are_forgotten(cache, tmp_path):
    register_imported(cache)
    assert "mine" in TASKS
    assert register_imported(tmp_path) == []
    assert "mine" not in TASKS


def test_an_example_is_shown_as_text(cache):
    task = open_task(cache, length=4096)
    shown = task.show("test", 0)
    assert shown.startswith("document 0: ")
    assert shown.removeprefix("document 0: ").removesuffix("[SEP]") in TEXTS


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
