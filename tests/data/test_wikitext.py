"""WikiText against a plain reading of its lines; other files are refused."""

import collections
import dataclasses
import gzip

import pytest

from longspan.data.stream_vocabularies import WordVocabulary
from longspan.errors import DataError
from longspan.tasks.language import wikitext
from longspan.tasks.language.wikitext import (
    WikiText2,
    WikiText103,
    find,
    read_articles,
    read_split,
    read_vocabulary,
)
from real_data import real
from text_sources import ARTICLES, WIKI, documents_of, wiki_file, wiki_tokens, write_wiki

pytestmark = pytest.mark.usefixtures("nowhere")


@pytest.mark.parametrize("form", ["folder", "zip"])
def test_splits_have_all_words_and_line_ends_in_order(tmp_path, form):
    path = write_wiki(tmp_path, form)
    for data in (path, tmp_path):
        copy = find(WIKI, data)
        assert copy.path == path
    words = read_vocabulary(WIKI, copy)
    for split, articles in ARTICLES.items():
        examples, count = read_split(WIKI, copy, split, words, tmp_path / "scratch")
        found = documents_of(examples)
        assert count == len(found) == len(articles)
        assert [words.words[x - 1] for text in found for x in text] == wiki_tokens(articles)
        # an article begins with its title, the first one with the blank line before it
        titles = [text.split("\n")[0].split() for text in articles]
        shown = [[words.words[x - 1] for x in text] for text in found]
        assert shown[0][: 1 + len(titles[0])] == ["<eos>", *titles[0]]
        for text, title in zip(shown[1:], titles[1:], strict=True):
            assert text[: len(title)] == title


def test_words_are_in_the_order_of_their_frequency(tmp_path):
    words = read_vocabulary(WIKI, find(WIKI, write_wiki(tmp_path, "folder"))).words
    counts = collections.Counter(x for x in wiki_tokens(ARTICLES["train"]) if x != "<eos>")
    assert words == ("<eos>", *(word for word, _ in counts.most_common()))


def lines_of(text):
    return [line.split() for line in text.split("\n")[:-1]]


@pytest.mark.parametrize(
    ("line", "is_title"),
    [
        ("= Title =", True),
        ("= A = b =", True),
        ("= = Section = =", False),
        ("= = = Deep = = =", False),
        ("= 1 <unk> / s and more", False),
        ("=", False),
        ("= =", False),
        ("words = words", False),
    ],
)
def test_titles_are_single_equals_signs_between_blank_lines(line, is_title):
    text = f"\n= First =\n\nwords\n\n{line}\n\nmore\n"
    assert len(list(read_articles(lines_of(text)))) == 1 + is_title
    for beside in ("words\n{}\n\n", "\n{}\nwords\n"):
        text = f"\n= First =\n\nwords\n{beside.format(line)}"
        assert len(list(read_articles(lines_of(text)))) == 1


def test_articles_are_the_lines_of_the_file(tmp_path):
    lines = lines_of(wiki_file(ARTICLES["train"]).decode())
    assert [line for article in read_articles(lines) for line in article] == lines
    assert list(read_articles([])) == []


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_a_truncated_split_is_refused(tmp_path, split):
    path = write_wiki(tmp_path, "folder")
    words = read_vocabulary(WIKI, find(WIKI, path))
    file = path / wikitext.FILES[split]
    file.write_bytes(file.read_bytes()[:30])
    with pytest.raises(
        DataError,
        match=rf"wiki\.\w+\.tokens has \d+ words and ends of lines, expected {WIKI.tokens[split]}; "
        r"fetch .*wikitext-2-v1\.zip again\. As official data, a part of it is refused; .*import",
    ):
        read_split(WIKI, find(WIKI, path), split, words, tmp_path / "scratch")


def test_another_vocabulary_is_refused(tmp_path):
    path = write_wiki(tmp_path, "folder")
    other = dataclasses.replace(WIKI, words=33_278)
    with pytest.raises(DataError, match=r"different words, <eos> included, expected 33,278; fetch"):
        read_vocabulary(other, find(WIKI, path))


def test_a_held_out_word_that_is_not_in_training_is_refused(tmp_path):
    path = write_wiki(tmp_path, "folder")
    words = read_vocabulary(WIKI, find(WIKI, path))
    file = path / wikitext.FILES["test"]
    file.write_bytes(file.read_bytes().replace(b"First", b"Novel"))
    with pytest.raises(DataError, match=r"wiki\.test\.tokens has 'Novel', which wiki\.train"):
        read_split(WIKI, find(WIKI, path), "test", words, tmp_path / "scratch")


def test_missing_binary_and_raw_files_are_refused(tmp_path):
    path = write_wiki(tmp_path, "folder")
    (path / "wiki.train.tokens").write_bytes(b" \xff\n")
    with pytest.raises(DataError, match=r"wiki\.train\.tokens: line 1 is not UTF-8 text"):
        read_vocabulary(WIKI, find(WIKI, path))
    (path / "wiki.test.tokens").unlink()
    with pytest.raises(DataError, match=r"lacks wiki\.test\.tokens; fetch the whole set"):
        find(WIKI, path)
    for file in path.iterdir():
        file.rename(file.with_suffix(".raw"))
    with pytest.raises(DataError, match="is the raw form, whose words differ; download"):
        find(WIKI, tmp_path)


def test_a_zip_without_a_file_is_refused(tmp_path):
    short = {split: ARTICLES[split] for split in ("train", "validation")}
    copy = find(WIKI, write_wiki(tmp_path, "zip", short))
    words = read_vocabulary(WIKI, copy)
    with pytest.raises(DataError, match=r"lacks wiki\.test\.tokens; fetch"):
        read_split(WIKI, copy, "test", words, tmp_path / "scratch")


def test_published_held_out_splits_have_their_published_counts(tmp_path):
    """The real files, of which the training split is not here."""
    folder = real("lm_text", "wikitext2_test.txt.gz")
    copied = tmp_path / "wikitext-2"
    copied.mkdir()
    contents = {}
    for split, name in (("validation", "valid"), ("test", "test")):
        contents[split] = gzip.decompress((folder / f"wikitext2_{name}.txt.gz").read_bytes())
        (copied / wikitext.FILES[split]).write_bytes(contents[split])
    (copied / wikitext.FILES["train"]).write_bytes(b"".join(contents.values()))
    copy = find(WikiText2.published_set, copied)
    words = WordVocabulary.learn(wikitext.read_lines(copy, "train"))
    for split, content in contents.items():
        examples, articles = read_split(
            WikiText2.published_set, copy, split, words, tmp_path / "scratch"
        )
        assert articles == 60  # as published
        tokens = content.decode().replace("\n", " <eos> ").split()
        stored = [words.words[x - 1] for text in documents_of(examples) for x in text]
        assert stored == tokens
        assert (
            len(tokens)
            == WikiText2.published_set.tokens[split]
            == WikiText103.published_set.tokens[split]
        )
    with pytest.raises(DataError, match=r"different words, <eos> included, expected 33,278"):
        read_vocabulary(WikiText2.published_set, copy)
