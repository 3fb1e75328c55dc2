"""Global tokens of documents: marked in batches, without effect on the built data or on names."""

from functools import partial

import numpy as np
import pytest
import torch
from task_calls import open_task

from longspan.arena import get
from longspan.arena.experiment import override
from longspan.arena.model import make_model
from longspan.arena.protocols.files import register_imports
from longspan.data.imports.texts import TextsRequest, import_texts
from longspan.data.store import Examples, Ragged
from longspan.tasks import build
from longspan.training.arguments import model_inputs
from longspan.training.footprint import make_dummy_batch
from own_files import forgotten_imports, reviews, write_csv

opened = partial(open_task, length=90)

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Cache with an import of single texts and one of pairs."""
    folder = tmp_path_factory.mktemp("own")
    rows = [(text, text[::-1], label) for text, label, _ in reviews(40)]
    path = write_csv(folder / "reviews.csv", rows, ("body", "other", "stars"))
    for name, pair in (("single", None), ("pairs", "other")):
        request = TextsRequest(text="body", target="stars", pair=pair)
        import_texts(folder / "cache", name, path, request)
    with forgotten_imports(folder):
        register_imports(folder / "cache")
        yield folder / "cache"


@pytest.mark.parametrize(
    ("chosen", "expected"), [("none", []), ("first", [0]), (40, [0, 40, 80]), (1, range(90))]
)
def test_option_says_which_tokens_are_global(cache, chosen, expected):
    task = opened("single", cache, global_tokens=chosen)
    assert task.num_global_tokens == len(expected)
    for batch in task.batches("test", batch_size=3):
        assert ("global_attention_mask" not in batch.inputs) == (chosen == "none")
        for row, mask in enumerate(batch.inputs["attention_mask"] if expected else ()):
            real = [place for place in expected if place < int(mask.sum())]
            assert batch.inputs["global_attention_mask"][row].nonzero().flatten().tolist() == real


def test_pairs_mark_both_texts(cache):
    task = opened("pairs", cache, global_tokens="first")
    batch = next(task.batches("train", batch_size=4))
    for mask in (batch.inputs["global_attention_mask"], batch.inputs["global_attention_mask_b"]):
        assert mask.sum(1).tolist() == [1] * 4
        assert mask[:, 0].all()
    dummy = make_dummy_batch(task, 4)
    assert dummy["global_attention_mask"].sum() == dummy["global_attention_mask_b"].sum() == 4


@pytest.mark.parametrize("name", ["single", "pairs"])
@pytest.mark.parametrize(("mechanism", "differs"), [("longformer", True), ("linear", False)])
def test_global_tokens_reach_the_mechanisms_that_have_them(cache, name, mechanism, differs):
    """A window of two tokens sees the last token of a text only through a global one."""
    changes = {"task.length": 90, "task.vocabulary": "bytes", "model.pooling": "first"}
    if mechanism == "longformer":
        changes |= {"mechanism.window": 2, "mechanism.first_global": False}
    experiment = override(get("own").experiment(name, mechanism, 0), changes)
    logits = {}
    for chosen in ("none", "first"):
        task = opened(name, cache, global_tokens=chosen)
        model = make_model(experiment, task).eval()
        batch = next(task.batches("test", batch_size=3))
        with torch.no_grad():
            logits[chosen] = model(**model_inputs(model, batch.inputs, CPU)).logits
    assert (not torch.allclose(logits["none"], logits["first"])) == differs


def test_option_changes_no_data(cache):
    tasks = [opened("single", cache, global_tokens=chosen) for chosen in ("none", "first", 8)]
    assert len({task.dataset.folder for task in tasks}) == 1
    assert "global_tokens" not in tasks[0].dataset.manifest.options


def test_published_texts_have_the_option_too():
    """Reviews and pairs of papers: batches of their base class are marked."""
    for name in ("text", "retrieval", "hyperpartisan", "newsgroups"):
        task = build(name, {"length": 90, "global_tokens": 30})
        assert task.num_global_tokens == 3
        assert "global_tokens" not in task.data_options()
    examples = Examples(
        tokens=Ragged.pack([np.ones(n, np.uint8) for n in (4, 70)], np.uint8),
        labels=np.zeros(2, np.uint8),
    )
    batch = build("text", {"global_tokens": 30}).collate(examples, np.arange(2))
    assert [row.nonzero().flatten().tolist() for row in batch.inputs["global_attention_mask"]] == [
        [0],
        [0, 30, 60],
    ]


@pytest.mark.parametrize("name", ["questions", "documents-small"])
def test_a_task_without_global_tokens_leaves_longformer_none(name):
    """The task alone says which tokens are global: the mechanism adds none of its own."""
    for task in get(name).tasks:
        made = override(
            get(name).experiment(task, "longformer", 0), {"task.global_tokens": "none"}
        ).config
        assert build(task, made.task.options).num_global_tokens == 0
        assert not made.mechanism.options["first_global"]
        assert build(task, get(name).config(task, "longformer").task.options).num_global_tokens > 0
