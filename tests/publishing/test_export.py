"""`longspan export`: folders of finished runs, and their model cards."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    LongformerConfig,
    LongformerForSequenceClassification,
)

import tiny
from longspan.arena import RunPaths
from longspan.arena.predict import predict
from longspan.arena.saved_checkpoint import open_checkpoint
from longspan.errors import OptionError
from longspan.models import LongspanForPairClassification, convert
from longspan.publishing.served_folder import predict_in_folder
from longspan.report.statistics.intervals import interval
from longspan.report.statistics.noise import measure_noise
from longspan.results import load_result
from longspan.tasks import build
from model_cards import code_of
from own_files import forgotten_imports, reviews, save_tokenizer, write_csv

# "tokenizer:" stands for a tokenizer in the folder of the runs.
VOCABULARIES = {"bytes": "bytes", "characters": "characters", "words": 40, "pieces": "tokenizer:"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folder of tiny runs on imported texts: of each vocabulary, and regressions."""
    folder = tmp_path_factory.mktemp("texts")
    rows = [(text, text[::-1], label, number) for text, label, number in reviews(40)]
    path = write_csv(folder / "reviews.csv", rows, ("body", "other", "stars", "score"))
    cache = ["--cache", folder / "cache"]
    to_import = ["data", "import", "texts", path, "--text", "body", *cache]
    commands = [
        [*to_import, "--label", "stars"],
        [*to_import, "--target", "score", "--name", "numbers"],
        [*to_import, "--pair", "other", "--target", "score", "--name", "pairs"],
    ]
    where = ["--runs", folder / "runs", "--device", "cpu", *cache]
    save_tokenizer(folder / "pieces", [text for text, *_ in rows])
    # As tokenizers of decoders have them; tasks keep the head and pad behind a text.
    fast = AutoTokenizer.from_pretrained(
        folder / "pieces", padding_side="left", truncation_side="left"
    )
    fast.save_pretrained(folder / "pieces")
    regressions = [("pairs", "bytes"), ("numbers", "bytes")]
    for task, vocabulary in [*(("reviews", x) for x in VOCABULARIES.values()), *regressions]:
        changes = {**tiny.SHORT_RUN, "task.vocabulary": vocabulary, "task.length": 60}
        if vocabulary == "tokenizer:":
            changes["task.vocabulary"] = f"tokenizer:{folder / 'pieces'}"
        if vocabulary == "characters":
            changes["task.end"] = "true"
        commands.append(["train", "local", task, *tiny.short_flags(changes), *where])
    with forgotten_imports(folder / "none"):
        tiny.run_commands(commands)
        yield folder


def _kind(vocabulary):
    is_tokenizer = str(vocabulary).startswith("tokenizer:")
    return "tokenizer:" if is_tokenizer else vocabulary


def record_of(runs, task, vocabulary):
    (path,) = (
        path
        for path in (runs / "runs" / "own" / task).glob("local-*.json")
        if _kind(load_result(path).config.task.options["vocabulary"]) == VOCABULARIES[vocabulary]
    )
    return path


def export(cli, runs, record, folder, *more):
    return cli("export", record, "--output", folder, "--cache", runs / "cache", *more)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_exported_model_predicts_as_the_run(cli, runs, tmp_path, vocabulary):
    record, folder = record_of(runs, "reviews", vocabulary), tmp_path / "model"
    out, _ = export(cli.done, runs, record, folder, "--json")
    assert {"README.md", "tokenizer.json", "model.safetensors"} <= set(json.loads(out)["files"])
    texts = [text for text, *_ in reviews(8, seed=1)]
    texts[0] = "[SEP] is no token of a text [MASK] [CLS]"
    expected = predict(
        record, [(text,) for text in texts], RunPaths(cache=runs / "cache", device="cpu")
    )
    served = predict_in_folder(folder, [(text,) for text in texts], "cpu")
    assert served.values == expected.values
    np.testing.assert_allclose(served.probabilities, expected.probabilities, rtol=1e-5)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    inputs = tokenizer(texts, truncation=True, padding=True, return_tensors="pt")
    assert inputs["input_ids"].shape[1] <= 60
    with torch.no_grad():
        found, classes = model(**inputs).logits.softmax(-1).max(-1)
    assert [model.config.id2label[label] for label in classes.tolist()] == expected.values
    torch.testing.assert_close(found.double(), torch.from_numpy(expected.probabilities))


@pytest.mark.parametrize("task", ["numbers", "pairs"])
def test_exported_numbers_are_in_units_of_the_file(cli, runs, tmp_path, task):
    record = record_of(runs, task, "bytes")
    assert export(cli, runs, record, tmp_path / "model")[0] == 0
    rows = [(text, text[::-1])[: 1 + (task == "pairs")] for text, *_ in reviews(8, seed=1)]
    paths = RunPaths(cache=runs / "cache", device="cpu")
    expected = torch.tensor(predict(record, rows, paths).values)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    sides = zip(*rows, strict=True)
    a, *b = (tokenizer(x, truncation=True, padding=True, return_tensors="pt") for x in sides)
    inputs = {**a, **{f"{name}_b": x for part in b for name, x in part.items()}}
    auto = LongspanForPairClassification if b else AutoModelForSequenceClassification
    model = auto.from_pretrained(tmp_path / "model").eval()
    with torch.no_grad():
        numbers = model(**inputs).logits[:, 0]
    assert 8 < expected.min() < expected.max() < 12  # scores are about 10
    served = predict_in_folder(tmp_path / "model", rows, "cpu").values
    assert served == pytest.approx(expected.tolist(), rel=1e-5)
    with pytest.raises(OptionError, match=r"trained on (single|pairs of) texts; pass"):
        predict_in_folder(tmp_path / "model", [(*rows[0], "more")], "cpu")
    torch.testing.assert_close(numbers, expected.to(numbers.dtype))


@pytest.mark.parametrize(
    ("mechanism", "option"), [("longformer", "first"), ("longformer", 3), ("linear", "first")]
)
def test_exported_model_has_the_global_tokens_of_the_run(cli, runs, tmp_path, mechanism, option):
    """They are marked by the task: where the model is served, none were."""
    paths = ("--runs", tmp_path / "runs", "--cache", runs / "cache", "--device", "cpu")
    options = {"task.vocabulary": "bytes", "task.length": 60, "task.global_tokens": option}
    changes = {**tiny.SHORT_RUN, **options}
    if mechanism == "longformer":
        changes |= {"mechanism.window": 2, "mechanism.first_global": "false"}
    cli.done("train", mechanism, "reviews", *tiny.short_flags(changes), *paths)
    (record,) = (tmp_path / "runs" / "own" / "reviews").glob("*.json")
    assert export(cli, runs, record, tmp_path / "model")[0] == 0
    found = predict(record, [("A text.",)], RunPaths(cache=runs / "cache", device="cpu"))
    namespace = {}
    exec(code_of(tmp_path / "model"), namespace)
    with torch.no_grad():
        logits = namespace["model"](**namespace["inputs"]).logits
    torch.testing.assert_close(
        logits.softmax(-1).max(-1)[0].double(), torch.from_numpy(found.probabilities)
    )
    served = predict_in_folder(tmp_path / "model", [("A text.",)], "cpu")
    np.testing.assert_allclose(served.probabilities, found.probabilities, rtol=1e-5)


def test_exported_mechanism_has_the_options_of_evaluations(cli, runs, tmp_path):
    """It had those of training, and other predictions than the scores of its card."""
    paths = ("--runs", tmp_path / "runs", "--cache", runs / "cache", "--device", "cpu")
    options = {"task.vocabulary": "bytes", "task.length": 60, "evaluation.hashes": 5}
    changes = {**tiny.SHORT_RUN, **options, "mechanism.chunk": 4}
    cli.done("train", "reformer", "reviews", *tiny.short_flags(changes), *paths)
    (record,) = (tmp_path / "runs" / "own" / "reviews").glob("*.json")
    export(cli, runs, record, tmp_path / "model")
    rows = [(text,) for text, *_ in reviews(8, seed=1)]
    expected = predict(record, rows, RunPaths(cache=runs / "cache", device="cpu")).probabilities
    served = predict_in_folder(tmp_path / "model", rows, "cpu").probabilities
    np.testing.assert_allclose(served, expected, rtol=1e-5)


def test_converted_classifier_keeps_its_global_tokens(tmp_path):
    """A mask without global tokens replaced the rule of the source: its first token."""
    texts = [text for text, *_ in reviews(4)]
    tokenizer = AutoTokenizer.from_pretrained(save_tokenizer(tmp_path / "source", texts))
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LongformerConfig(
        **sizes,
        vocab_size=len(tokenizer),
        intermediate_size=16,
        max_position_embeddings=66,
        attention_window=4,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.5,
    )
    source = LongformerForSequenceClassification(config).eval()
    source.save_pretrained(tmp_path / "source")
    convert(tmp_path / "source", out=tmp_path / "model")
    with torch.no_grad():
        logits = source(**tokenizer(texts, padding=True, return_tensors="pt")).logits
    found = predict_in_folder(tmp_path / "model", [(text,) for text in texts], "cpu")
    expected = logits.softmax(-1).max(-1)[0].double().numpy()
    np.testing.assert_allclose(found.probabilities, expected, rtol=1e-4)


def test_pretrained_model_keeps_its_tokenizer(cli, tmp_path):
    """Without it a run that started from the folder read bytes with the ids of word pieces."""
    texts = tmp_path / "texts.txt"
    texts.write_text("\n\n".join(text for text, *_ in reviews(40)))
    cache = ("--cache", tmp_path / "cache")
    places = ("--runs", tmp_path / "runs", "--device", "cpu", *cache)
    corpus = ("data", "import", "corpus", texts, "--document", "paragraph", "--name", "novels")
    changes = tiny.short_flags({**tiny.SHORT_RUN, "task.length": 16})
    with forgotten_imports(tmp_path / "none"):
        tiny.run_commands([
            (*corpus, "--vocab-size", "270", *cache),
            ("pretrain", "local", "novels", *changes, *places),
        ])  # fmt: skip
        (record,) = (tmp_path / "runs" / "pretrain" / "novels").glob("*.json")
        assert cli("export", record, "--output", tmp_path / "model", *cache)[0] == 0
        task = build("novels", load_result(record).config.task.options)
        found = AutoTokenizer.from_pretrained(tmp_path / "model")("the plot was dull")["input_ids"]
        assert found == task.tokenizer.encode(b"the plot was dull", 100).tolist()
    assert open_checkpoint(tmp_path / "model").vocabulary == f"tokenizer:{tmp_path / 'model'}"


def test_card_has_protocol_scores_and_interval(cli, runs, tmp_path):
    record = record_of(runs, "reviews", "bytes")
    assert export(cli, runs, record, tmp_path / "model", "--license", "mit")[0] == 0
    result = load_result(record)
    card = ModelCard.load(tmp_path / "model" / "README.md")
    data = card.data
    assert (data.library_name, data.pipeline_tag, data.license) == (
        "transformers",
        "text-classification",
        "mit",
    )
    assert {"longspan", "local", "reviews", "own"} <= set(data.tags)
    (score,) = data.eval_results
    assert (score.metric_type, score.metric_value) == ("accuracy", result.score())
    assert (score.dataset_name, score.dataset_split) == ("reviews (reviews.csv)", "test")
    about = (result.main, result.scores["test"].num_examples)
    expected = interval(measure_noise([result.score()], *about), *about)
    assert score.metric_args == {
        "protocol": "own",
        "confidence_interval": [expected.low, expected.high],
        "confidence_level": 0.95,
    }
    assert "protocol own, 95 % interval" in score.metric_name
    assert "over examples" in score.metric_name
    for text in (
        "Protocol `own`",
        "The run overrides the protocol: ",
        "License of the data: that of the file",
        result.data_checksum,
    ):
        assert text in card.content
    assert f"| {100 * result.score():.1f} {100 * expected.low:.1f}" in card.content


def test_code_of_the_cards_runs_without_longspan(cli, runs, tmp_path):
    script = "import sys\nsys.modules['longspan'] = None\n"
    for task in ("reviews", "pairs"):
        folder = tmp_path / task
        assert export(cli, runs, record_of(runs, task, "bytes"), folder)[0] == 0
        script += f"exec({code_of(folder)!r}, {{}})\n"
    environment = {
        "PATH": "/usr/bin:/bin",
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env=environment,
        stdin=subprocess.DEVNULL,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"(tensor\(\[\[.*\]\]\)\n){2}", done.stdout)


def test_run_without_texts_has_no_tokenizer_and_the_license_of_its_data(
    cli, finished, tiny_cache, tmp_path
):
    record = next(finished.rglob("local-*.json"))
    out, _ = cli.done("export", record, "--output", tmp_path / "x", "--cache", tiny_cache)
    assert "upload them with: hf upload NAME" in out
    card = ModelCard.load(tmp_path / "x" / "README.md")
    assert (card.data.license, card.data.pipeline_tag) == ("apache-2.0", None)
    length = load_result(record).length
    assert f"torch.ones(1, {length}, dtype=torch.long)" in card.content
    assert not (tmp_path / "x" / "tokenizer.json").exists()
    code, _, err = cli("export", record, "--output", tmp_path / "x", "--cache", tiny_cache)
    assert code == 2
    assert "exists; remove it, or choose another folder" in err
