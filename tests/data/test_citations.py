"""Citations of AAN as a collection: queries, splits without leaks, what is counted."""

import random

import pytest

import aan_files
from longspan.errors import DataError
from longspan.tasks.lra import aan
from longspan.tasks.lra.release import Pair
from longspan.tasks.ranking.aan_retrieval import collect_citations
from longspan.tasks.ranking.collection import group_queries


def collect(tmp_path, pairs, texts=None):
    """Collect pairs of (label, citing paper, cited paper); every paper has a text of its own."""
    texts = texts or {}
    rows = [
        Pair("train", label, ids, tuple(texts.get(x, f"text of {x}").encode() for x in ids))
        for label, *ids in pairs
    ]
    return collect_citations(rows, tmp_path, lambda done: None)


def network(seed=0, count=80):
    draws = random.Random(seed)
    names = [f"P{n:02d}" for n in range(count)]
    pairs = {(one, draws.choice(names)) for one in names for _ in range(3)}
    cited = [(1, one, other) for one, other in sorted(pairs) if one != other]
    return draws.sample(cited, len(cited))


def split_of(collection):
    """Return the split of each citing paper, by number."""
    return {
        number: split
        for split, queries in collection.queries.items()
        for number in queries.self_documents
    }


def test_queries_are_citing_papers_with_all_of_their_citations(tmp_path):
    pairs = network()
    found, facts = collect(tmp_path, [*pairs, (0, "P00", "Q99"), (1, "P01", "P01")])
    names = sorted({name for _, *ids in pairs for name in ids} | {"Q99"})
    assert [x.tobytes().decode() for x in found.documents] == [f"text of {x}" for x in names]
    expected = {names.index(one): set() for _, one, _ in pairs}
    for _, one, other in pairs:
        expected[names.index(one)].add(names.index(other))
    judged = {}
    for queries in found.queries.values():
        for text, own, grades in zip(
            queries.texts, queries.self_documents, queries.judged, strict=True
        ):
            assert text == found.documents[own].tobytes()
            assert set(grades.values()) == {1}
            judged[own] = set(grades)
    assert judged == expected
    assert facts == {"papers_with_several_texts": 0, "self_citations": 1}


def test_released_tables_and_pairs_by_id_are_one_collection(tmp_path):
    pairs = {"train": network()[:150], "validation": network()[150:190], "test": network()[190:]}
    pairs = {split: [*rows, (0, "P00", "P01")] for split, rows in pairs.items()}
    papers = {f"P{n:02d}": f"text of P{n:02d}" for n in range(80)}
    found = []
    for write in (aan_files.write_by_id, aan_files.write_release):
        source = aan.find(write(tmp_path / write.__name__, pairs, papers))
        scratch = tmp_path / f"scratch-{write.__name__}"
        found.append(collect_citations(aan.read(source), scratch, lambda done: None)[0])
    assert found[0].queries == found[1].queries
    assert found[0].documents.values.tobytes() == found[1].documents.values.tobytes()
    assert len(found[0].documents) == 80


def test_splits_do_not_depend_on_the_order_of_the_pairs(tmp_path):
    first, _ = collect(tmp_path / "a", network())
    second, _ = collect(tmp_path / "b", sorted(network()))
    assert first.queries == second.queries
    assert first.documents.values.tobytes() == second.documents.values.tobytes()
    sizes = [len(first.queries[x]) for x in ("train", "validation", "test")]
    assert sum(sizes) == 80
    assert all(5 <= size <= 11 for size in sizes[1:])


def test_papers_that_cite_each_other_are_in_one_split(tmp_path):
    pairs = network()
    both = [(1, f"P{n:02d}", f"P{n + 1:02d}") for n in range(0, 60, 2)]
    both += [(label, other, one) for label, one, other in both]
    found, _ = collect(tmp_path, [*pairs, *both])
    splits = split_of(found)
    assert len({splits[n] for n in range(60)}) > 1
    assert all(splits[n] == splits[n + 1] for n in range(0, 60, 2))
    assert all(not x["both_directions"] for x in found.facts["in_two_splits"].values())


def test_papers_of_one_text_are_in_one_split(tmp_path):
    texts = {f"P{n:02d}": f"text of pair {n // 2}" for n in range(60)}
    found, _ = collect(tmp_path, network(), texts)
    splits = split_of(found)
    assert all(splits[n] == splits[n + 1] for n in range(0, 60, 2))
    assert all(not x["queries"] for x in found.facts["in_two_splits"].values())


def test_what_splits_share_is_counted(tmp_path):
    found, _ = collect(tmp_path, network())
    train, test = found.queries["train"], found.queries["test"]
    known = {number for judged in train.judged for number in judged}
    shared = found.facts["in_two_splits"]["train and test"]
    cited = {number for judged in test.judged for number in judged}
    assert shared["relevant_documents"] == len(known & cited)
    assert shared["queries_among_documents"] == sum(own in known for own in test.self_documents)


def test_paper_with_another_text_keeps_the_first_and_is_counted(tmp_path):
    pairs = network()
    rows = [Pair("train", 1, (a, b), (a.encode(), b.encode())) for _, a, b in pairs]
    rows.append(Pair("test", 1, ("P05", "P06"), (b"another", b"P06")))
    found, facts = collect_citations(rows, tmp_path, lambda done: None)
    assert facts["papers_with_several_texts"] == 1
    assert found.documents[5].tobytes() == b"P05"


def test_too_few_citing_papers_are_refused(tmp_path):
    with pytest.raises(DataError, match="AAN: 2 papers cite another one: 2 different texts cannot"):
        collect(tmp_path, [(1, "a", "b"), (1, "b", "c"), (0, "c", "a")])


def test_groups_join_all_linked_queries():
    links = [(1, 2), (5, 4), (2, 5), (7, 9)]
    # 9 is no query, and links nothing.
    assert group_queries([1, 2, 3, 4, 5, 7], links) == [1, 1, 3, 1, 1, 7]
