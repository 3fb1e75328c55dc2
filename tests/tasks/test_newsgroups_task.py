"""20 Newsgroups: the official layouts, the parts of a post, and the splits."""

import io
import shutil
import tarfile
from functools import partial

import pytest
from task_calls import open_beside

from longspan.errors import DataError
from longspan.tasks import SPLITS
from longspan.tasks.documents import newsgroups
from longspan.tasks.documents.newsgroups import GROUPS, remove_footer, remove_headers, remove_quotes
from real_data import real

opened = partial(open_beside, "newsgroups", length=2_000)

BODY = """In article <1@x> someone writes:
> quoted words
| more of them

My own words {0} about {1}.
Second line.

--
Author {1}, somewhere"""
OWN = "My own words {0} about {1}.\nSecond line."


def post(number, group):
    about = " ".join(f"{group}{number}n{x}" for x in range(8))
    return f"Newsgroups: {group}\nSubject: {number}\n\n" + BODY.format(number, about)


def own_words(number, group):
    return OWN.format(number, " ".join(f"{group}{number}n{x}" for x in range(8)))


def write(folder, counts):
    """Write posts of every group; `counts` has the numbers of the posts by folder."""
    for name, numbers in counts.items():
        for group in GROUPS:
            (folder / name / group).mkdir(parents=True)
            for number in numbers:
                (folder / name / group / str(number)).write_text(post(number, group))
    return folder


BY_DATE = {"20news-bydate-train": range(20), "20news-bydate-test": range(20, 25)}


def examples(task, split):
    part = task.dataset.splits[split]
    return {
        (task.decode(tokens), task.class_name(label))
        for tokens, label in zip(part.tokens, part.labels.tolist(), strict=True)
    }


def test_split_by_date_keeps_the_official_test_posts(nowhere):
    task = opened(write(nowhere / "data", BY_DATE))
    assert {split: task.size(split) for split in SPLITS} == {
        "train": 18 * 20,
        "validation": 2 * 20,
        "test": 5 * 20,
    }
    assert examples(task, "test") == {(own_words(n, g), g) for n in range(20, 25) for g in GROUPS}
    pool = examples(task, "train") | examples(task, "validation")
    assert pool == {(own_words(n, g), g) for n in range(20) for g in GROUPS}
    assert "split by date" in task.source


def test_copy_without_splits_is_split_by_the_text_of_the_posts(nowhere):
    data = write(nowhere / "data", {"mini_newsgroups": range(20)})
    # A cross-posting: the same body in two groups.
    text = post(1, GROUPS[0]).replace("Newsgroups", "Xref")
    (data / "mini_newsgroups" / GROUPS[1] / "1").write_text(text)
    kept = opened(data, headers=True, footers=True, quotes=True)
    bare = opened(data)
    assert bare.size("validation") == 2 * 20
    assert bare.size("test") == 4 * 20
    for split in SPLITS:
        numbers = [
            {(text.split("own words ")[1].split("\n")[0], g) for text, g in examples(task, split)}
            for task in (kept, bare)
        ]
        assert numbers[0] == numbers[1]
    assert [x["rows"] for x in bare.facts["leaks"].values()] == [[], [], []]
    assert "not split by date" in bare.source


def test_parts_of_a_post():
    text = post(3, "sci.med")
    assert remove_headers(text) == text.split("\n\n", 1)[1]
    without = remove_quotes(remove_footer(remove_headers(text)))
    assert without.strip() == own_words(3, "sci.med")
    assert remove_footer("One line.") == "One line."
    assert remove_footer("Text.\n\n---\nName") == "Text.\n"
    assert remove_footer("Text.\n\nName\n\n") == "Text."
    assert remove_footer("\nOnly a name") == "\nOnly a name"
    assert remove_quotes("A says: so\nB\n  > kept") == "B\n  > kept"


@pytest.mark.parametrize(
    ("option", "word"), [("headers", "Subject"), ("footers", "somewhere"), ("quotes", "quoted")]
)
def test_parts_are_kept_on_request(nowhere, option, word):
    data = write(nowhere / "data", BY_DATE)
    for value in (False, True):
        task = opened(data, **{option: value})
        assert all((word in text) == value for text, _ in examples(task, "test"))


def test_emptied_posts_are_kept_and_counted(nowhere):
    data = write(nowhere / "data", BY_DATE)
    path = data / "20news-bydate-test" / "sci.med" / "21"
    path.write_text("Newsgroups: sci.med\n\n> only a quote\n")
    task = opened(data)
    assert task.facts["emptied"] == {"train": 0, "validation": 0, "test": 1}
    assert task.size("test") == 100
    assert (" ", "sci.med") in examples(task, "test")


def test_duplicates_in_the_official_test_posts_are_reported(nowhere):
    data = write(nowhere / "data", BY_DATE)
    source = data / "20news-bydate-train" / "sci.med"
    for number in range(20):
        shutil.copy(source / str(number), data / "20news-bydate-test" / "sci.space" / f"9{number}")
    task = opened(data)
    leaks = task.facts["leaks"]
    assert leaks["test in train"]["exact"] + leaks["test in validation"]["exact"] == 20
    assert leaks["test in train"]["of_another_class"] == leaks["test in train"]["exact"]
    (grouping,) = [x for x in task.groupings("test") if x.name == "in training"]
    assert (grouping.group == 1).sum() == leaks["test in train"]["exact"] == 18


def test_incomplete_copies_are_refused(nowhere):
    test = write(nowhere / "data", BY_DATE) / "20news-bydate-test"
    (test / "sci.med").rename(test / "medicine")
    with pytest.raises(DataError, match="medicine is none of the 20 groups"):
        opened(nowhere / "data")
    shutil.rmtree(test / "medicine")
    with pytest.raises(DataError, match=r"20news-bydate-test has no posts of sci\.med"):
        opened(nowhere / "data")


def test_missing_and_foreign_archives_are_refused(nowhere):
    with pytest.raises(DataError, match=r"download http://qwone\.com"):
        opened(nowhere)
    with tarfile.open(nowhere / "other.tar.gz", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("readme"), io.BytesIO())
    with pytest.raises(DataError, match=r"not here \(searched .*other\.tar\.gz"):
        opened(nowhere / "other.tar.gz")


def test_published_mini_newsgroups():
    posts = newsgroups.read(newsgroups.find(real("newsgroups20_mini")))
    assert len(posts) == 2_000
    assert all(sum(post.label == label for post in posts) == 100 for label in range(20))
    # Every post starts with headers, which are removed whole.
    assert sum("\nNewsgroups: " in remove_headers(post.text) for post in posts) < 20
    assert all("Newsgroups: " in post.text.partition("\n\n")[0] for post in posts)
