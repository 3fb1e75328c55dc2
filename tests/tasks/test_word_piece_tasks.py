"""Tasks of texts as word pieces: the ids of the Hugging Face tokenizer, known by its files."""

import dataclasses
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoTokenizer

from longspan.data import word_pieces
from longspan.errors import DataError, OptionError
from longspan.tasks import SPLITS, build
from longspan.tasks.encoded_text import encode_texts
from own_files import save_tokenizer

REVIEWS = [
    (f"a {('bad', 'good')[n % 2]} film, number {n} café " * (1 + n), n % 2) for n in range(30)
]
TEXTS = [text for text, _ in REVIEWS]


@pytest.fixture
def pieces(tmp_path):
    return save_tokenizer(tmp_path / "pieces", TEXTS)


@pytest.fixture
def imdb(tmp_path):
    folder = tmp_path / "imdb"
    folder.mkdir()
    for part in ("train", "test"):
        texts, labels = zip(*[(f"{part} {text}", label) for text, label in REVIEWS], strict=True)
        pq.write_table(pa.table({"text": texts, "label": labels}), folder / f"{part}.parquet")
    return folder


def opened(imdb, pieces, name="text", **options):
    task = build(name, {"vocabulary": f"tokenizer:{pieces}", "validation": 6, **options})
    task.open(imdb.parent / "cache", imdb)
    return task


def test_ids_are_those_of_the_tokenizer(imdb, pieces):
    task = opened(imdb, pieces, length=40)
    theirs = AutoTokenizer.from_pretrained(pieces)
    assert task.vocab_size == len(theirs)
    expected = sorted(
        theirs(f"test {text}", truncation=True, max_length=40)["input_ids"] for text, _ in REVIEWS
    )
    found = []
    for batch in task.batches("test", batch_size=7):
        assert batch.inputs["input_ids"].max() < task.vocab_size
        lines = zip(batch.inputs["input_ids"], batch.inputs["attention_mask"], strict=True)
        found += [ids[mask].tolist() for ids, mask in lines]
    assert sorted(found) == expected
    assert {ids[0] for ids in found} == {theirs.cls_token_id}
    assert task.encode("a good film").tolist() == theirs("a good film")["input_ids"]
    assert task.ids_to_tokens(task.encode("a"))[0] == "[CLS]"


def test_special_tokens_are_neither_masked_nor_drawn(imdb, pieces):
    shares = {"mask_probability": 0.9, "replaced": 0.0, "random": 1.0}
    task = opened(imdb, pieces, "masked_text", length=12, train=4, **shares)
    special = torch.tensor([*AutoTokenizer.from_pretrained(pieces).all_special_ids])
    for batch in (next(task.batches(split, batch_size=4)) for split in ("train", "test")):
        ids, is_masked = batch.inputs["input_ids"], batch.targets >= 0
        assert is_masked.sum() > 20
        assert not torch.isin(batch.targets[is_masked], special).any()
        assert not torch.isin(ids[is_masked], special).any()
        assert torch.isin(ids[:, 0], special).all()


def test_longer_texts_are_counted(pieces):
    tokenizer = build("text", {"vocabulary": f"tokenizer:{pieces}"}).tokenizer
    texts = [text.encode() for text in TEXTS]
    lengths = [len(tokenizer.encode(text, 10_000)) for text in texts]
    for length in (min(lengths), lengths[4], max(lengths)):
        tokens, cut = encode_texts(tokenizer, texts, length)
        assert cut == sum(x > length for x in lengths)
        assert tokens.lengths.tolist() == [min(x, length) for x in lengths]


def test_data_set_follows_the_files_of_the_tokenizer_not_their_folder(imdb, pieces, tmp_path):
    task = opened(imdb, pieces)
    moved = shutil.copytree(pieces, tmp_path / "moved")
    assert opened(imdb, moved).dataset.folder == task.dataset.folder
    other = save_tokenizer(tmp_path / "other", TEXTS, vocab_size=40)
    assert opened(imdb, other).dataset.folder != task.dataset.folder
    # Another tokenizer in the same folder is another data set, too.
    shutil.copytree(other, pieces, dirs_exist_ok=True)
    changed = build("text", dataclasses.asdict(task.options))
    assert not changed.open_built(tmp_path / "unused")
    changed.open(imdb.parent / "cache", imdb)
    assert changed.dataset.folder == opened(imdb, other).dataset.folder


def test_size_of_the_vocabulary_is_known_before_the_build(pieces):
    task = build("hyperpartisan", {"vocabulary": f"tokenizer:{pieces}"})
    assert task.vocab_size == len(AutoTokenizer.from_pretrained(pieces))


@pytest.mark.parametrize("vocabulary", ["word", "tokenizer:", "roberta-base"])
def test_other_names_are_refused(vocabulary):
    with pytest.raises(OptionError, match="vocabulary"):
        build("text", {"vocabulary": vocabulary})


def test_missing_tokenizer_is_named(imdb, tmp_path):
    with pytest.raises(DataError, match="nowhere does not exist; pass the folder of a tokenizer"):
        opened(imdb, tmp_path / "nowhere")


def test_every_example_has_a_token(imdb, pieces):
    task = opened(imdb, pieces, length=2)
    for split in SPLITS:
        assert task.dataset.splits[split].tokens.lengths.tolist() == [2] * task.size(split)


@pytest.mark.parametrize("name", ["text", "squad"])
def test_tokenizer_of_a_task_is_loaded_once(pieces, monkeypatch, name):
    """Loading hashes files, and asks the hub for a name: never for each batch or text."""
    hashed = []
    real = word_pieces.folder_sha256
    monkeypatch.setattr(word_pieces, "folder_sha256", lambda x: hashed.append(x) or real(x))
    task = build(name, {"vocabulary": f"tokenizer:{pieces}", "length": 200})
    for _ in range(3):
        assert task.vocab_size == task.tokenizer.vocab_size
        assert task.ids_to_tokens(task.tokenizer.encode(b"a good film", 10))
        assert task.num_global_tokens >= 0
    assert len(hashed) == 1


@pytest.mark.parametrize("name", ["text", "hyperpartisan", "aan_retrieval"])
def test_models_pad_as_the_tokenizer_does(pieces, name):
    """A checkpoint whose configuration names another padding id than its tokenizer is refused."""
    tokenizer = AutoTokenizer.from_pretrained(pieces)
    tokenizer.add_special_tokens({"pad_token": "film"})
    assert tokenizer.pad_token_id
    tokenizer.save_pretrained(pieces)
    task = build(name, {"vocabulary": f"tokenizer:{pieces}"})
    assert task.model_fields["pad_token_id"] == tokenizer.pad_token_id
    assert "pad_token_id" not in build(name).model_fields
