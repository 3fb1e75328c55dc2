"""Tasks of imported texts: registration, encoding, losses and statistics of classes and numbers."""

import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from task_calls import open_task

from longspan.arena import PROTOCOLS, find_refusal, get
from longspan.arena.model import make_model, model_config
from longspan.arena.protocols.files import register_imports
from longspan.attention import MECHANISMS
from longspan.data.imports.texts import TextsRequest, import_texts
from longspan.data.tokenizers import ByteTokenizer, CharacterTokenizer, WordTokenizer
from longspan.data.word_pieces import load_word_pieces
from longspan.errors import DataError, UnknownNameError
from longspan.models import LongspanConfig, LongspanForPairClassification
from longspan.models.heads.sequence_classification import classification_loss
from longspan.publishing.usage import example_of_use
from longspan.tasks import SPLITS, TASKS, build, imported_names
from longspan.tasks.data_cards import write_card
from longspan.tasks.encoded_text import encode_text, kept_tokens
from longspan.tokenizers import make_fast_tokenizer
from longspan.training.arguments import model_inputs
from own_files import forgotten_imports, reviews, save_tokenizer, write_csv

HEADER = ("body", "stars", "score")
REQUESTS = {
    "stars": TextsRequest(text="body", target="stars"),
    "score": TextsRequest(text="body", target="score", kind="number"),
}


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """Cache with one import of classes, one of numbers, and one of pairs."""
    folder = tmp_path_factory.mktemp("own")
    rows = reviews(60)
    path = write_csv(folder / "reviews.csv", rows, HEADER)
    for name, request in REQUESTS.items():
        import_texts(folder / "cache", name, path, request)
    pairs = [(f"first {n}", f"second {n} {n}", "abc"[n % 3]) for n in range(30)]
    path = write_csv(folder / "pairs.csv", pairs, ("one", "two", "kind"))
    request = TextsRequest(text="one", pair="two", target="kind")
    import_texts(folder / "cache", "kinds", path, request)
    with forgotten_imports(folder):
        yield folder / "cache"


@pytest.fixture
def cache(imported):
    register_imports(imported)
    return imported


def all_examples(task):
    """Return text and label of every example, by split."""
    return {
        split: [
            (task.decode(tokens), label)
            for tokens, label in zip(
                task.dataset.splits[split].tokens, task.labels(split).tolist(), strict=True
            )
        ]
        for split in SPLITS
    }


def test_imports_are_tasks_of_one_protocol_until_the_cache_changes(cache, tmp_path):
    assert imported_names() == ["kinds", "score", "stars"]
    assert get("own").tasks == ("kinds", "score", "stars")
    register_imports(tmp_path)
    assert imported_names() == []
    assert "own" not in PROTOCOLS
    with pytest.raises(UnknownNameError, match="stars"):
        build("stars")


def test_classes_of_tasks_name_their_file(cache):
    """Records keep the file of a task, from the module of its class."""
    modules = {name: cls.__module__ for name, cls in TASKS.items()}
    own = {modules[name] for name in ("stars", "score", "kinds")}
    assert own == {"longspan.tasks.documents.own_texts"}
    assert all(module.startswith("longspan.tasks.") for module in modules.values())


def test_examples_are_rows_of_the_file(cache):
    expected = {text: (label, number) for text, label, number in reviews(60)}
    for name in REQUESTS:
        task = open_task(name, cache)
        found = [row for rows in all_examples(task).values() for row in rows]
        assert len(found) == 60
        for text, target in found:
            label, number = expected[text]
            assert target == number if name == "score" else task.class_name(target) == label
        assert task.sizes == {split: task.size(split) for split in SPLITS}
    (batch,) = open_task("score", cache).batches("test", batch_size=60)
    assert batch.targets.dtype == torch.float64


def test_pairs_have_two_texts_and_the_pair_model(cache):
    task = open_task("kinds", cache, vocabulary=20)
    assert task.head is LongspanForPairClassification
    experiment = get("own").experiment("kinds", "local", 0)
    assert isinstance(make_model(experiment, build("kinds")), LongspanForPairClassification)
    assert task.num_classes == 3
    (batch,) = task.batches("test", batch_size=9)
    assert "input_ids_b" in batch.inputs
    assert "| second" in task.show("test", 0)


def test_fresh_import_under_the_name_is_another_data_set(cache, tmp_path):
    copy = tmp_path / "cache"
    shutil.copytree(cache, copy)
    register_imports(copy)
    before = open_task("stars", copy)
    path = write_csv(tmp_path / "x.csv", reviews(40, seed=1), HEADER)
    import_texts(copy, "stars", path, REQUESTS["stars"], replace=True)
    register_imports(copy)
    after = open_task("stars", copy)
    assert sum(map(after.size, SPLITS)) == 40 < sum(map(before.size, SPLITS))
    built = build("stars")  # as `data show` and `data card` open it, without a build
    assert built.open_built(copy)
    assert built.checksum == after.checksum
    assert before.checksum != after.checksum


def test_built_import_opens_without_its_rows_and_others_do_not(cache, tmp_path):
    copy = tmp_path / "cache"
    shutil.copytree(cache, copy)
    register_imports(copy)
    built = open_task("stars", copy)
    (copy / "own" / "stars" / "texts.parquet").unlink()
    assert open_task("stars", copy).checksum == built.checksum
    with pytest.raises(DataError, match=r"texts\.parquet"):
        open_task("stars", copy, length=7)


def test_damaged_import_and_taken_name_are_left_out_with_a_warning(cache, tmp_path, logged):
    copy = tmp_path / "cache"
    shutil.copytree(cache, copy)
    (copy / "own" / "stars" / "import.json").write_text("{}")
    shutil.copytree(copy / "own" / "score", copy / "own" / "listops")
    listops = TASKS["listops"]
    register_imports(copy)
    assert imported_names() == ["kinds", "score"]
    assert "stars" in logged.text
    assert "another task" in logged.text
    assert TASKS["listops"] is listops


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("length", [64, 1024])
def test_protocol_fits_every_mechanism(cache, mechanism, length):
    experiment = get("own").row("stars", mechanism, 0, {"task.length": length})
    assert find_refusal(experiment) is None


def test_recipe_fits_the_file(cache):
    recipe = get("own").recipe("stars")
    assert recipe.task_options == {"length": 64, "vocabulary": 8192}
    assert recipe.training.batch_size == 32
    assert recipe.training.steps == 200
    assert recipe.training.evaluate_every == 20


def test_recipe_of_a_few_rows_and_of_a_script_without_spaces(tmp_path):
    rows = [(f"{'文字' * 40}{n}", "ab"[n % 2]) for n in range(9)]
    path = write_csv(tmp_path / "x.csv", rows)
    import_texts(tmp_path, "few", path, TextsRequest(text="body", target="stars"))
    with forgotten_imports(tmp_path / "none"):
        register_imports(tmp_path)
        recipe = get("own").recipe("few")
        assert recipe.training.batch_size == 5  # each split has both classes
        assert recipe.task_options == {"length": 256, "vocabulary": "bytes"}


def test_checkpoint_names_classes_or_is_a_regression(cache):
    protocol = get("own")
    config = model_config(protocol.config("stars", "local"), build("stars"))
    assert config.id2label == {0: "neg", 1: "pos"}
    assert config.label2id == {"neg": 0, "pos": 1}
    config = model_config(protocol.config("score", "local"), build("score"))
    assert (config.problem_type, config.num_labels) == ("regression", 1)


def test_loss_and_scores_of_numbers_follow_from_standardized_targets(cache):
    task = open_task("score", cache)
    train = task.labels("train").double()
    mean, deviation = train.mean(), train.std(correction=0)
    targets = task.labels("test")
    outputs = torch.randn(len(targets), 1)
    predicted = outputs[:, 0].double() * deviation + mean
    torch.testing.assert_close(task.predicted_numbers(outputs), predicted)
    config = LongspanConfig(num_labels=1, problem_type="regression")
    loss = classification_loss(outputs, **task.label_arguments(targets), config=config)
    expected = ((predicted - targets) / deviation).square().mean()
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-6)
    rows = torch.arange(len(targets))
    found = task.example_statistics(task.metrics, "test", rows, outputs, targets)
    scores = {metric.name: metric.aggregate(found[metric.name].numpy()) for metric in task.metrics}
    errors = (predicted - targets).square()
    assert scores["rmse"] == pytest.approx(errors.mean().sqrt().item())
    deviations = (targets - mean).square()
    assert scores["r2"] == pytest.approx(1 - (errors.sum() / deviations.sum()).item())


def test_target_of_minus_100_is_scored(tmp_path):
    """-100 marks unscored classes, and is an ordinary number."""
    rows = [(f"text {n}", "-100" if n % 2 else "5") for n in range(30)]
    request = TextsRequest(text="body", target="stars", kind="number")
    import_texts(tmp_path, "minus", write_csv(tmp_path / "x.csv", rows), request)
    with forgotten_imports(tmp_path / "none"):
        register_imports(tmp_path)
        task = open_task("minus", tmp_path)
        from longspan.training.evaluate import evaluate

        class Constant(torch.nn.Module):
            config = SimpleNamespace(supports_global_tokens=False, num_hidden_layers=0)

            def forward(self, input_ids, attention_mask, labels):
                return SimpleNamespace(logits=torch.zeros(len(input_ids), 1), loss=labels.mean())

        found = evaluate(Constant(), task, "train", batch_size=8, device=torch.device("cpu"))
        assert found.score.num_targets == task.size("train")
        assert found.score.metrics["r2"] == pytest.approx(0)


@pytest.mark.parametrize("unit", [1, 1e-50, 1e50])
def test_right_numbers_score_one_whatever_their_size(tmp_path, unit):
    """Times of one minute are equal in float32; numbers may be beyond its range."""
    rows = [(f"text {n}", repr(unit * (1_700_000_000 + n))) for n in range(60)]
    request = TextsRequest(text="body", target="stars", kind="number")
    import_texts(tmp_path, "times", write_csv(tmp_path / "x.csv", rows), request)
    with forgotten_imports(tmp_path / "none"):
        register_imports(tmp_path)
        task = open_task("times", tmp_path)
        numbers = {float(number) for _, number in rows}
        for split in SPLITS:
            (batch,) = task.batches(split, batch_size=60, rows=np.arange(task.size(split)))
            assert numbers.issuperset(batch.targets.tolist())
            assert len(task.labels(split).unique()) == task.size(split)
            outputs = task.label_arguments(batch.targets)["labels"][:, None]
            found = task.example_statistics(task.metrics, split, batch.rows, outputs, batch.targets)
            r2, rmse = (x.aggregate(found[x.name].numpy()) for x in task.metrics)
            assert r2 == pytest.approx(1)
            assert rmse < 1e-9 * task.description.deviation


def test_checksum_distinguishes_fractions(tmp_path):
    for name, step in (("one", 0.25), ("two", 0.375)):
        rows = [(f"text {n}", str(n + step * (n % 2))) for n in range(30)]
        request = TextsRequest(text="body", target="stars", kind="number")
        import_texts(tmp_path, name, write_csv(tmp_path / "x.csv", rows), request)
    with forgotten_imports(tmp_path / "none"):
        register_imports(tmp_path)
        one, two = open_task("one", tmp_path), open_task("two", tmp_path)
        assert one.checksum != two.checksum
        np.testing.assert_array_equal(*(x.labels("train").long().sort()[0] for x in (one, two)))


def test_card_counts_classes_by_name_and_describes_numbers(cache):
    open_task("stars", cache)
    card = write_card(build("stars"), cache)
    labels = open_task("stars", cache).labels("train")
    assert f"| 0: neg | {(labels == 0).sum()} (" in card
    assert "Equal texts" in card
    open_task("score", cache)
    card = write_card(build("score"), cache)
    numbers = open_task("score", cache).labels("train")
    assert f"| mean | {numbers.double().mean():.6g} |" in card
    assert "| target | a number |" in card


@pytest.mark.parametrize("name", ["words", "bytes", "characters"])
@pytest.mark.parametrize("length", [3, 8, 12, 100])
def test_head_and_tail_are_the_ends_of_the_text(name, length):
    text = "one two three four five six seven eight nine ten eleven twelve thirteen"
    tokenizer = {
        "words": WordTokenizer.learn([(text.encode(), 1)], length=99, vocab_size=40),
        "bytes": ByteTokenizer(),
        "characters": CharacterTokenizer.learn(
            [(text.encode(), 1)], length=99, minimum=1, end=True
        ),
    }[name]
    whole = tokenizer.encode(text.encode(), 1_000).tolist()
    ids, is_cut = encode_text(tokenizer, text.encode(), length, "head_tail")
    assert is_cut == (len(whole) > length)
    # The end symbol of characters is kept beside the text.
    room = length - (name == "characters")
    head = round(room / 4)
    expected = whole[:head] + whole[head - length :] if is_cut else whole
    assert ids.tolist() == expected


def test_head_and_tail_of_sun_are_128_and_382_tokens_between_special_ones(tmp_path):
    words = [f"w{n}" for n in range(600)]
    tokenizer = load_word_pieces(save_tokenizer(tmp_path / "pieces", [" ".join(words)]))
    before, after = map(len, tokenizer.frame)
    count = 2_000
    kept = kept_tokens(tokenizer, count, 510 + before + after, "head_tail")
    places = [*range(before + 128), *range(count - after - 382, count)]
    assert kept.tolist() == places


def test_card_of_an_exported_model_keeps_head_and_tail_as_training_does(imported, tmp_path):
    with forgotten_imports(tmp_path / "none"):
        register_imports(imported)
        task = build("stars", {"truncation": "head_tail", "length": 8, "vocabulary": "bytes"})
        task.open(imported)
        experiment = get("own").row("stars", "local", 0, {"task.vocabulary": "bytes"})
        usage = example_of_use(make_model(experiment, task), task, has_tokenizer=True)
        start, end = usage.index("def encode"), usage.index("inputs =")
        scope = {"torch": torch, "tokenizer": make_fast_tokenizer(task.tokenizer, max_length=8)}
        exec(usage[start:end], scope)
        for text in ("short", "a text that is longer than eight bytes"):
            assert scope["encode"](text)["input_ids"][0].tolist() == task.encode(text).tolist()
        assert 'inputs = encode("A text.")' in usage


@pytest.mark.parametrize("option", ["first", 3])
@pytest.mark.parametrize("mechanism", ["local", "linear"])
def test_card_of_pairs_marks_global_tokens_as_training_does(cache, option, mechanism):
    """A mechanism without global tokens gets none: its model refuses their mask."""
    options = {"vocabulary": "bytes", "length": 7, "global_tokens": option}
    task = build("kinds", options)
    task.open(cache)
    changes = {f"task.{name}": x for name, x in options.items()}
    model = make_model(get("own").row("kinds", mechanism, 0, changes), task).eval()
    usage = example_of_use(model, task, has_tokenizer=True)
    tokenizer = make_fast_tokenizer(task.tokenizer, max_length=7)
    scope = {"torch": torch, "model": model, "tokenizer": tokenizer}
    exec(usage[usage.index("a = tokenizer") :], scope)
    batch = task.collate(task.encode_rows([("A text.", "Another one.")]), np.arange(1))
    expected = model_inputs(model, batch.inputs, model.device)
    assert scope["inputs"].keys() == expected.keys()
    assert all(torch.equal(scope["inputs"][name].to(x), x) for name, x in expected.items())
