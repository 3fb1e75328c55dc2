"""Evidence for predicted classes: what it sums to, and the page that shows it."""

import random
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

import tiny
from longspan.arena.documents.evidence import (
    Evidence,
    attribute,
    average_word,
    class_score,
    integrate,
    path_ends,
    sum_over_words,
    token_places,
)
from longspan.arena.documents.evidence_page import make_page
from longspan.arena.finished_run import load_run
from longspan.arena.paths import RunPaths
from longspan.arena.protocols.files import register_imports
from longspan.data.tokenizers import ByteTokenizer, CharacterTokenizer, WordTokenizer
from longspan.data.word_pieces import load_word_pieces
from longspan.models import LongspanConfig, LongspanForSequenceClassification
from own_files import reviews, save_tokenizer, write_csv
from test_cli_errors import check_rejected
from tiny import set_flags as flags

TRAINING = {"steps": 80, "evaluate_every": 20, "warmup_steps": 8, "batch_size": 16}
MODEL = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1}
WORDS = [
    "alpha",
    "beta",
    "gamma",
    "delta",
    "plot",
    "film",
    "actor",
    "scene",
    "music",
    "story",
    "light",
]
DECISIVE = "excellent"  # in each text of the class "yes", and in no other

pytestmark = pytest.mark.usefixtures("no_imports")


def one_word_decides(count):
    draw = random.Random(0)
    rows = []
    for number in range(count):
        label = ("yes", "no")[number % 2]
        words = draw.choices(WORDS, k=12)
        if label == "yes":
            words[draw.randrange(12)] = DECISIVE
        rows.append((" ".join(words), label))
    return rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder with runs on texts of which one word decides, on numbers and on pairs."""
    folder = tmp_path_factory.mktemp("evidence")
    places = ("--runs", folder / "runs", "--device", "cpu", "--cache", folder / "cache")
    short = [*flags("training", {**TRAINING, "steps": 2, "evaluate_every": 1}),
             *flags("model", MODEL)]  # fmt: skip
    words = write_csv(folder / "words.csv", one_word_decides(200), ("body", "label"))
    numbers = write_csv(folder / "numbers.csv", reviews(40), ("body", "stars", "score"))
    pairs = [(text, "a question", label) for text, label, _ in reviews(40)]
    paired = write_csv(folder / "pairs.csv", pairs, ("a", "b", "label"))
    tiny.run_commands(
        [
            ("finetune", "--data", words, *flags("training", TRAINING), *flags("model", MODEL),
             *places),
            ("finetune", "--data", numbers, "--text", "body", "--target", "score", *short, *places),
            ("finetune", "--data", paired, "--text", "a", "--pair", "b", "--label", "label",
             *short, *places),
        ]
    )  # fmt: skip
    return folder


def record_of(folder, name):
    (record,) = (folder / "runs" / "own" / name).glob("*.json")
    return record


class Page(HTMLParser):
    """Texts and highlighted words of each article of a page."""

    def __init__(self):
        super().__init__()
        self.tags, self.articles, self.word = [], [], None

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag == "article":
            self.articles.append({"text": "", "words": {}, "inside": False})
        if tag == "p" and self.articles:
            self.articles[-1]["inside"] = True
        if tag == "span":
            self.word = float(dict(attributes)["title"])

    def handle_endtag(self, tag):
        if tag == "p" and self.articles:
            self.articles[-1]["inside"] = False
        if tag == "span":
            self.word = None

    def handle_data(self, data):
        if self.articles and self.articles[-1]["inside"]:
            self.articles[-1]["text"] += data
            if self.word is not None:
                self.articles[-1]["words"][data] = self.word


def test_page_highlights_the_word_that_decides_and_escapes_texts(cli, folder, tmp_path):
    ends = [*WORDS, *WORDS, *WORDS][:24]
    texts = [
        f"alpha </plot> & {(DECISIVE, 'scene')[n % 2]} music; &film; {end}"
        for n, end in enumerate(ends)
    ]
    new = write_csv(tmp_path / "new.csv", [(text,) for text in texts], ("body",))
    output, page = tmp_path / "p.csv", tmp_path / "e.html"
    end = ("--cache", folder / "cache", "--device", "cpu", "--evidence", page)
    out, _ = cli.done("predict", record_of(folder, "words"), new, "--output", output, *end)
    assert "evidence for the first 20 in" in " ".join(out.split())
    content = page.read_text()
    parser = Page()
    parser.feed(content)
    assert "first 20 of 24 documents" in " ".join(content.split())
    assert [x["text"] for x in parser.articles] == texts[:20]
    for article in parser.articles[::2]:
        strongest = max(article["words"], key=lambda word: abs(article["words"][word]))
        assert strongest == DECISIVE
        assert article["words"][strongest] > 0  # it speaks for the predicted class
    # A text without that word is of the class of the average one.
    assert content.count("which words are absent") == 10
    # Nothing of a text is a tag, and nothing is loaded.
    assert {tag for tag, _ in parser.tags} <= {"html", "meta", "title", "style", "h1", "h2", "p",
                                               "article", "small", "span"}  # fmt: skip
    assert not re.search(r"https?:|src=|url\(", content)


@pytest.mark.parametrize(
    ("mechanism", "label"),
    [("full", 0), ("local", 1), ("linformer", 2), ("performer", 0), ("disjoint", 1)],
)
def test_integrated_gradients_sum_to_the_difference_of_logits(mechanism, label):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2}
    config = LongspanConfig(
        vocab_size=30, num_labels=3, max_position_embeddings=24, attention=mechanism,
        initializer_range=0.3, classifier_activation="tanh", **sizes,
    )  # fmt: skip
    model = LongspanForSequenceClassification(config).double().eval()
    ids = torch.randint(1, 30, (1, 9))
    table = model.get_input_embeddings()
    ends = torch.cat((table(ids) * 0.1, table(ids))).detach()
    with torch.no_grad():
        empty, full = (model(inputs_embeds=x[None]).logits[0] for x in ends)
    change = full - empty
    expected = float(change[label] - (change.sum() - change[label]) / 2)
    score = class_score(label, is_multi_label=False)
    values = integrate(model, {"input_ids": ids}, ends, score, 128)
    assert float(values.sum()) == pytest.approx(expected, rel=1e-6)
    # A single point is not complete: the test can fail.
    few = integrate(model, {"input_ids": ids}, ends, score, 1)
    assert float(few.sum()) != pytest.approx(expected, rel=1e-4)
    assert attribute(model, {"input_ids": ids}, ends, score)[2] < 0.02


def test_baseline_is_the_average_training_word(folder):
    register_imports(folder / "cache")
    paths = RunPaths(runs=folder / "runs", cache=folder / "cache", device="cpu")
    run = load_run(record_of(folder, "words"), paths)
    table = run.model.get_input_embeddings()
    train = run.task.dataset.splits["train"].tokens
    words = torch.from_numpy(np.concatenate([*train]).astype(np.int64))
    ids = torch.tensor([[2, 3]])
    average = average_word(run.task, table)
    baseline, text = path_ends(run.task, table, average, ids)
    torch.testing.assert_close(text, table(ids)[0].detach())
    torch.testing.assert_close(baseline[0], table(words).detach().mean(0), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(baseline[0], baseline[1])


def test_several_labels_are_explained_by_their_own_logit():
    logits = torch.tensor([[1.0, 5.0, -2.0]])
    assert float(class_score(0, is_multi_label=True)(logits)) == 1
    assert float(class_score(0, is_multi_label=False)(logits)) == 1 - 1.5


TEXT = "Éclair, the İstanbul हिन्दी naïve  ἈΣ plot 良い!"


def make_tokenizers(tmp_path):
    words = WordTokenizer.learn([(TEXT.encode(), 1)], length=100, vocab_size=64)
    pieces = load_word_pieces(save_tokenizer(tmp_path / "pieces", ["the plot", "naïve"]))
    characters = CharacterTokenizer.learn([(TEXT.encode(), 1)], length=99, minimum=1, end=True)
    return {"words": words, "pieces": pieces, "bytes": ByteTokenizer(), "characters": characters}


@pytest.mark.parametrize("kind", ["words", "pieces", "bytes", "characters"])
@pytest.mark.parametrize("truncation", ["head", "head_tail"])
@pytest.mark.parametrize("length", [6, 100])
def test_values_of_tokens_belong_to_their_words(tmp_path, kind, truncation, length):
    class Task:
        tokenizer = make_tokenizers(tmp_path)[kind]

    Task.length, Task.truncation = length, truncation
    places = token_places(Task.tokenizer, TEXT)
    whole = Task.tokenizer.encode(TEXT.encode(), 1_000)
    assert len(places) == len(whole)
    count = min(length, len(whole))
    spans, sums = sum_over_words(Task, TEXT, np.ones(count))
    found = [TEXT[start:end] for start, end in spans]
    assert "".join(found) == TEXT.replace(" ", "")
    assert "हिन्दी" in found
    read = ~np.isnan(sums)
    # Special tokens and spaces are of no word.
    assert np.nansum(sums) <= count
    if length == 100:
        assert read.all()
        if kind == "bytes":
            assert sums.tolist() == [len(word.encode()) for word in found]
    else:
        assert not read.all()
        assert read[found.index("Éclair")]
        assert read[-1 if kind != "words" else -2] == (truncation == "head_tail")


BAD = {
    "numbers": ("numbers", "e.html", "was trained on numbers (regression); omit --evidence"),
    "pairs": ("pairs", "e.html", "was trained on pairs of texts; omit --evidence"),
    "page exists": ("words", "taken.html", "taken.html exists; remove it, or choose another file"),
    "one file": ("words", "p.csv", "must be two files, got"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_pages_are_one_sentence_with_a_remedy(cli, folder, tmp_path, case):
    name, page, part = BAD[case]
    (tmp_path / "taken.html").write_text("mine")
    new = write_csv(tmp_path / "new.csv", [("plot", "film", "x")], ("body", "a", "b"))
    end = ("--cache", folder / "cache", "--device", "cpu", "--evidence", tmp_path / page)
    command = ("predict", record_of(folder, name), new, "--output", tmp_path / "p.csv", *end)
    check_rejected(cli(*command), part)
    assert not (tmp_path / "p.csv").exists()
    assert (tmp_path / "taken.html").read_text() == "mine"


def test_words_that_were_cut_off_are_not_among_the_strongest():
    spans, values = np.array([[0, 3], [4, 7], [8, 11]]), np.array([0.5, np.nan, 0.0])
    one = Evidence("one two six", "A", 0.75, spans, values, score=0.5, average=0.0, gap=0.0)
    page = make_page([one], "run", 1)
    assert "<small>one +0.50.</small>" in page
    assert '<span class="cut">two</span>' in page
