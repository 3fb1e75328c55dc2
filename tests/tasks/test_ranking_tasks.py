"""Retrieval tasks: batches, negatives, evaluation of whole collections, learning, records."""

import dataclasses
import itertools
import json
import math
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from task_calls import make_experiment

import aan_files
import beir_files
import tiny
from corpus_files import ignore
from longspan.arena import make_model, run
from longspan.arena.protocols.files import register_imports
from longspan.errors import OptionError
from longspan.results import load_results
from longspan.tasks import SPLITS, TASKS, build
from longspan.tasks.data_cards import write_card
from longspan.tasks.ranking.bm25 import Bm25
from longspan.tasks.ranking.imports import import_collection
from longspan.training import inference
from longspan.training.arguments import model_inputs
from longspan.training.evaluate import evaluate
from longspan.training.inference import evaluate_timed
from thread_group import run_in_threads
from trec_scores import plain_score

CPU = torch.device("cpu")
OPTIONS = {"length": 16, "query_length": 8, "vocabulary": 128, "mined": 12}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Cache with two imported collections: one with topics, one to check by hand."""
    folder = tmp_path_factory.mktemp("collections")
    owls = {"train": beir_files.JUDGMENTS["train"], "dev": [("q3", "d4", 2), ("q3", "d5", 1)]}
    owls["test"] = [("q4", "d1", 1)]
    for name, parts in (("topics", beir_files.topics()), ("owls", (None, None, owls))):
        files = beir_files.write_beir(folder / name, *parts)
        import_collection(folder / "cache", name, files, {}, ignore)
    yield folder / "cache"
    register_imports(folder / "none")


@pytest.fixture
def topics(cache):
    return opened(cache)


def opened(cache, name="topics", **options):
    register_imports(cache)
    task = build(name, {**OPTIONS, **options})
    task.open(cache)
    return task


def text_of(task, examples, row):
    return task.decode(examples.tokens[row])


def judgments(task, split, row):
    """Return the grade of each judged document of a query, and its mined documents."""
    examples = task.dataset.splits[split]
    numbers, stored = examples.second[row].tolist(), examples.targets[row].tolist()
    pairs = zip(numbers, stored, strict=True)
    known = {number: value - 1 for number, value in pairs if value}
    return known, [x for x, value in zip(numbers, stored, strict=True) if not value]


def test_notes_count_what_was_cut_to_either_length(cache):
    whole, task = (opened(cache, "owls", length=x, query_length=y) for x, y in ((99, 99), (5, 2)))
    limits = {"documents": 5, **dict.fromkeys(SPLITS, 2)}
    longer = {
        name: int((whole.dataset.splits[name].tokens.lengths > limit).sum())
        for name, limit in limits.items()
    }
    documents, queries = longer.pop("documents"), sum(longer.values())
    assert whole.build_notes == []
    assert task.build_notes == [
        f"{documents} documents are longer than 5 tokens and were cut",
        f"{queries} queries are longer than 2 tokens and were cut",
    ]


def test_training_batches_have_an_answer_and_negatives_of_each_query(topics):
    documents = topics.dataset.splits["documents"]
    task = opened_with(topics, negatives=3)
    for number, batch in zip(range(5), task.batches("train", batch_size=24, seed=1), strict=False):
        present = {
            *batch.inputs["document_numbers"].tolist(),
            *batch.inputs["negative_numbers"].flatten().tolist(),
        }
        for place, row in enumerate(batch.rows.tolist()):
            known, mined = judgments(task, "train", row)
            own, negatives = (
                int(batch.inputs["document_numbers"][place]),
                batch.inputs["negative_numbers"][place],
            )
            assert known[own] == 1
            assert set(negatives.tolist()) <= set(mined)
            assert len(set(negatives.tolist())) == 3
            answers = batch.inputs["answer_numbers"][place]
            assert set(answers[answers >= 0].tolist()) == present & set(known)
            ids = batch.inputs["document_input_ids"][place][
                batch.inputs["document_attention_mask"][place]
            ].tolist()
            assert ids == documents.tokens[own].tolist()
            for ids, mask, other in zip(
                batch.inputs["negative_input_ids"][place],
                batch.inputs["negative_attention_mask"][place],
                negatives,
                strict=True,
            ):
                assert ids[mask].tolist() == documents.tokens[int(other)].tolist()
        assert number < 5


def opened_with(task, **options):
    """Return an open task with other options that share its data."""
    other = type(task)(dataclasses.replace(task.options, **options))
    other._use_dataset(task.dataset)
    return other


def test_draws_follow_from_seed_and_number_of_the_batch(topics):
    batches = topics.batches("train", batch_size=24, seed=3)
    third = [next(batches) for _ in range(3)][2]
    again = next(topics.batches("train", batch_size=24, seed=3, start=2))
    assert third.rows.equal(again.rows)
    assert third.inputs.keys() == again.inputs.keys() > {"document_numbers", "negative_numbers"}
    for name, x in third.inputs.items():
        assert x.equal(again.inputs[name])
    # The same queries have other answers and negatives in another batch, and with another seed.
    examples, rows = topics.dataset.splits["train"], np.arange(72)
    drawn = [topics.collate(examples, rows, draw) for draw in ((3, 0), (3, 1), (4, 0))]
    for one, other in itertools.combinations(drawn, 2):
        assert not one.inputs["document_numbers"].equal(other.inputs["document_numbers"])
        assert not one.inputs["negative_numbers"].equal(other.inputs["negative_numbers"])


def test_mined_documents_are_the_first_of_bm25_that_do_not_answer(cache):
    task = opened(cache, mined=7)
    documents = task.dataset.splits["documents"]
    texts = [text_of(task, documents, row).split() for row in range(len(documents))]
    index = Bm25(texts)
    for row in range(0, task.size("train"), 9):
        known, mined = judgments(task, "train", row)
        query = text_of(task, task.dataset.splits["train"], row).split()
        scores = index.scores(query)
        ranked = sorted(range(len(texts)), key=lambda n: (scores[n], n), reverse=True)
        assert mined == [n for n in ranked if scores[n] > 0 and n not in known][:7]
    assert not any(judgments(task, "test", row)[1] for row in range(task.size("test")))


def test_too_few_negatives_are_padded(cache):
    task = opened(cache, "owls", negatives=4, mined=4)
    batch = next(task.batches("train", batch_size=4))
    missing = batch.inputs["negative_numbers"] < 0
    assert missing.any()
    assert not batch.inputs["negative_attention_mask"][missing].any()
    assert not batch.inputs["negative_input_ids"][missing].any()
    assert batch.inputs["negative_attention_mask"][~missing].any(-1).all()
    model = make_model(make_experiment(task), task)
    output = model(**model_inputs(model, batch.inputs, CPU))
    assert output.loss.isfinite()
    # Documents of grade 0 are negatives too.
    known, mined = judgments(task, "train", 1)
    assert known == {1: 2, 2: 0}
    assert 2 not in mined


def test_query_is_no_negative_of_itself_whatever_its_grade(tmp_path):
    documents = {**beir_files.DOCUMENTS, "q5": ("", "made of milk"), "q6": ("", "what gives milk")}
    rows = dict(beir_files.JUDGMENTS)
    rows["train"] = [*rows["train"], ("q5", "q5", 0), ("q6", "q6", 0)]
    folder = beir_files.write_beir(tmp_path / "set", documents, judgments=rows)
    import_collection(tmp_path, "itself", folder, {}, ignore)
    task = opened(tmp_path, "itself", negatives=6, mined=6)
    batch = next(task.batches("train", batch_size=4))
    own = torch.tensor(task.dataset.splits["train"].labels.tolist())[batch.rows]
    assert (own >= 0).sum() == 2
    assert not (batch.inputs["negative_numbers"] == own.masked_fill(own < 0, -2)[:, None]).any()
    register_imports(tmp_path / "none")


def brute_force(model, task, split):
    """Return run, judgments and loss of each query, from texts that are encoded one by one."""
    examples, documents = task.dataset.splits[split], task.dataset.splits["documents"]
    model.eval()

    def embed(encode, tokens):
        with torch.no_grad():
            return encode(torch.from_numpy(tokens.astype(np.int64))[None])[0].double()

    table = torch.stack([embed(model.encode_document, x) for x in documents.tokens])
    found = []
    for row in range(len(examples)):
        scores = table @ embed(model.encode_query, examples.tokens[row])
        known, _ = judgments(task, split, row)
        left = [n for n in range(len(table)) if n != int(examples.labels[row])]
        answers = [n for n, grade in known.items() if grade > 0]
        others = [n for n in left if n not in answers]
        scaled = scores / task.options.temperature
        losses = [scaled[[n, *others]].logsumexp(0) - scaled[n] for n in answers]
        ranked = {f"{n:04d}": float(scores[n]) for n in left}
        judged = {f"{n:04d}": grade for n, grade in known.items()}
        found.append((ranked, judged, float(sum(losses)) / len(losses)))
    return found


@pytest.mark.parametrize(
    "options", [{}, {"towers": "two", "similarity": "dot", "temperature": 0.5}, {"metric": "mrr@5"}]
)
@pytest.mark.parametrize("split", ["validation", "test"])
def test_evaluation_is_that_of_texts_encoded_one_by_one(cache, topics, split, options):
    task = opened_with(topics, **options)
    model = make_model(make_experiment(task), task)
    found = evaluate(model, task, split, batch_size=5, device=CPU)
    expected = brute_force(model, task, split)
    main = task.metrics[0].name
    assert main == options.get("metric", "ndcg@10")
    for metric in task.metrics:
        values = [plain_score(metric.name, ranked, judged) for ranked, judged, _ in expected]
        assert found.score.metrics[metric.name] == pytest.approx(np.mean(values), rel=1e-9)
        if metric.name == main:
            assert found.statistics[:, 0].tolist() == pytest.approx(values, rel=1e-9)
    assert found.statistics[:, 1].tolist() == [1] * task.size(split)
    assert found.score.loss == pytest.approx(np.mean([x[2] for x in expected]), rel=1e-5)
    assert found.score.num_targets == found.score.num_examples == task.size(split)


def test_processes_score_as_one(topics):
    model = make_model(make_experiment(topics), topics)
    alone = evaluate(model, topics, "test", batch_size=5, device=CPU)
    found = run_in_threads(
        3, lambda group: evaluate(model, topics, "test", batch_size=5, device=CPU, group=group)
    )
    for one in found:
        assert one.statistics.tolist() == alone.statistics.tolist()
        assert one.num_targets.tolist() == alone.num_targets.tolist()
        assert one.score.loss == pytest.approx(alone.score.loss, rel=1e-9)


def test_every_text_is_encoded_once_and_counts_for_the_speed(topics, monkeypatch):
    """Use a fake clock: a forward pass takes 2 s, each of the first two 50 s."""
    now, seen = [0.0], []
    model = make_model(make_experiment(topics), topics)
    plain = model.forward

    class Clock:
        perf_counter = staticmethod(lambda: now[0])

    def forward(*args, **kwargs):
        now[0] += 2.0 if len(seen) > 1 else 50.0
        (side,) = {"query", "document"} & {name.partition("_")[0] for name in kwargs}
        seen.append((side, len(kwargs[f"{side}_input_ids"])))
        return plain(*args, **kwargs)

    monkeypatch.setattr(inference, "time", Clock)
    monkeypatch.setattr(model, "forward", forward)
    found, cost = evaluate_timed(model, topics, "test", batch_size=8, device=CPU)
    assert seen[:2] == [("query", 8), ("document", 8)]
    counts = {side: sum(n for x, n in seen[2:] if x == side) for side in ("query", "document")}
    assert counts == {"query": 12, "document": 60}
    assert found.num_documents == 60
    assert cost.examples_per_second == pytest.approx(72 / (2 * len(seen[2:])))


def test_some_queries_have_the_scores_that_they_have_among_all(topics):
    model = make_model(make_experiment(topics), topics)
    rows = np.array([31, 2, 17])
    some = evaluate(model, topics, "train", batch_size=2, device=CPU, rows=rows)
    every = evaluate(model, topics, "train", batch_size=50, device=CPU)
    np.testing.assert_array_equal(some.statistics, every.statistics[rows])


def test_paper_is_not_ranked_for_itself(tmp_path):
    names = [f"P{n:02d}" for n in range(40)]
    papers = {name: f"{name} " * (n % 5 + 1) + f"g{n % 4}" for n, name in enumerate(names)}
    pairs = [(1, names[n], names[(n * 5 + 4) % 40]) for n in range(40)]
    parts = {"train": pairs[:20], "validation": pairs[20:30], "test": pairs[30:]}
    aan_files.write_by_id(tmp_path / "aan", parts, papers)
    task = build("aan_retrieval", {**OPTIONS, "vocabulary": 64, "query_length": 16})
    task.open(tmp_path / "cache", tmp_path / "aan")
    rows = np.arange(task.size("test"))
    ranked = task.ranked_documents("test", rows)
    own = task.dataset.splits["test"].labels
    assert ranked.excluded.tolist() == np.stack((rows, own), axis=1).tolist()
    # Query and document are one text, so that a shared tower would rank the paper first.
    model = make_model(make_experiment(task), task)
    found = evaluate(model, task, "test", batch_size=4, device=CPU)
    expected = brute_force(model, task, "test")
    values = [plain_score("ndcg@10", ranked, judged) for ranked, judged, _ in expected]
    assert found.statistics[:, 0].tolist() == pytest.approx(values)
    texts = [text_of(task, task.dataset.splits["documents"], n).split() for n in range(40)]
    index, scores = Bm25(texts), []
    for number, (ranked, judged, _) in zip(own.tolist(), expected, strict=True):
        found = index.scores(texts[number])
        left = {f"{n:04d}": x for n, x in enumerate(found) if x > 0 and f"{n:04d}" in ranked}
        scores.append(plain_score("ndcg@10", left, judged))
    assert task.rule_scores("test")["BM25"] == pytest.approx(np.mean(scores))
    # Nor is it mined for itself, although BM25 ranks it first.
    for row in range(task.size("train")):
        number = int(task.dataset.splits["train"].labels[row])
        known, mined = judgments(task, "train", row)
        left_out = {*known, number}
        assert mined == index.best(texts[number], 12, left_out).tolist()
    # Nor is it a negative of itself, where another paper of the batch cites it.
    for batch in (next(task.batches("train", batch_size=30, start=n)) for n in range(3)):
        labels = task.dataset.splits["train"].labels[batch.rows.numpy()]
        for label, answers in zip(labels, batch.inputs["answer_numbers"].tolist(), strict=True):
            if label in batch.inputs["document_numbers"]:
                assert label in answers
        assert not (batch.inputs["negative_numbers"] == torch.from_numpy(labels)[:, None]).any()


def test_retrieval_is_learned_in_a_few_steps(cache, tmp_path):
    """Queries share one word of topic with the documents that answer them, and plain words."""
    changes = {
        "training.steps": 60,
        "training.batch_size": 24,
        "training.learning_rate": 0.02,
        "training.evaluate_every": 60,
        "training.checkpoint_every": 60,
        "model.hidden_size": 32,
        "model.hidden_dropout_prob": 0.0,
    }
    task = opened(cache, length=16, metric="recall@5")
    before = make_model(make_experiment(task, changes=changes), task)
    untrained = evaluate(before, task, "test", batch_size=12, device=CPU).score
    paths = tiny.paths(tmp_path / "runs", cache)
    result = run(make_experiment(task, changes=changes), task, paths)
    assert untrained.metrics["recall@5"] < 0.5
    assert result.scores["test"].metrics["recall@5"] > 0.8
    assert result.scores["test"].loss < untrained.loss


def test_run_is_recorded_with_scores_by_query_and_bm25(cache, tmp_path):
    task = opened(cache)
    made = make_experiment(task, changes={"training.gradient_accumulation_steps": 2})
    result = run(made, task, tiny.paths(tmp_path / "runs", cache))
    (record,) = load_results([tmp_path / "runs"])
    assert record.config == made.config
    statistics = record.example_scores.unpack()
    assert statistics.shape == (12, 2)
    score = result.scores["test"]
    assert statistics[:, 0].mean() == pytest.approx(score.metrics["ndcg@10"], rel=1e-6)
    assert list(score.metrics) == ["ndcg@10", "mrr@10", "recall@10", "recall@100"]
    assert result.curve[-1].train_metrics.keys() == {"accuracy"}
    assert result.rules["test"] == {"BM25": task.facts["bm25"]["test"]["ndcg@10"]}
    assert result.slices.keys() <= {"length", "relevant documents"}


def test_scores_of_bm25_are_those_of_its_rankings(cache):
    task = opened(cache)
    documents, queries = task.dataset.splits["documents"], task.dataset.splits["test"]
    index = Bm25(text_of(task, documents, row).split() for row in range(len(documents)))
    values = []
    for row in range(len(queries)):
        scores = index.scores(text_of(task, queries, row).split())
        ranked = {f"{n:04d}": x for n, x in enumerate(scores) if x > 0}
        known, _ = judgments(task, "test", row)
        judged = {f"{n:04d}": grade for n, grade in known.items()}
        values.append(plain_score("ndcg@10", ranked, judged))
    assert task.rule_scores("test") == {"BM25": pytest.approx(np.mean(values))}
    assert opened(cache, mined=0, negatives=0).rule_scores("test") == {}


@pytest.mark.parametrize(("chosen", "places"), [("first", {0}), (3, {0, 3, 6})])
def test_global_tokens_are_marked_in_all_texts(topics, chosen, places):
    task = opened_with(topics, global_tokens=chosen)
    batch = next(task.batches("train", batch_size=8))
    masks = [
        (batch.inputs["query_attention_mask"], batch.inputs["query_global_attention_mask"]),
        (batch.inputs["document_attention_mask"], batch.inputs["document_global_attention_mask"]),
        (batch.inputs["negative_attention_mask"], batch.inputs["negative_global_attention_mask"]),
    ]
    for real, marked in masks:
        for row, own in zip(real.flatten(0, -2), marked.flatten(0, -2), strict=True):
            assert set(own.nonzero()[:, 0].tolist()) == places & set(range(int(row.sum())))
    documents = next(task.ranked_documents("test", np.arange(2)).batches(8))
    assert documents.inputs["document_global_attention_mask"].sum() == sum(
        n in places
        for length in documents.inputs["document_attention_mask"].sum(1).tolist()
        for n in range(length)
    )
    assert task.num_global_tokens == sum(n % 3 == 0 for n in range(16)) if len(places) > 1 else 1
    one_window = {"mechanism.window": 8}  # the protocol lists one for each of its two layers
    model = make_model(make_experiment(task, "longformer", changes=one_window), task)
    names = model_inputs(model, batch.inputs, CPU).keys()
    assert {f"{x}_global_attention_mask" for x in ("query", "document", "negative")} <= names
    model = make_model(make_experiment(task, "linear"), task)
    assert not any("global" in name for name in model_inputs(model, batch.inputs, CPU))


def test_global_tokens_change_rankings_and_not_the_data(topics):
    scores = []
    for chosen in ("none", 2):
        task = opened_with(topics, global_tokens=chosen)
        model = make_model(make_experiment(task, changes={"mechanism.window": 1}), task)
        scores.append(evaluate(model, task, "test", batch_size=12, device=CPU).score.loss)
    assert scores[0] != scores[1]


def test_options_of_the_model_are_fields_of_its_configuration(topics):
    other = opened_with(topics, towers="two", similarity="dot", temperature=1.0)
    assert other.model_fields == {
        "shared_towers": False, "similarity": "dot", "similarity_scale": 1.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"query_length": 32}, "query_length=32 exceeds length=16, the number of positions"),
        ({"negatives": 13}, "negatives=13 are drawn from mined=12 documents; lower negatives"),
        ({"global_tokens": 0}, "global_tokens .*greater than or equal to 1"),
        ({"metric": "map@10"}, "metric .*map@10"),
        ({"metric": "ndcg@7"}, "metric .*ndcg@7"),
        ({"temperature": 0.0}, "temperature .*greater than 0"),
        ({"end": True}, "apply to characters"),
    ],
)
def test_options_are_checked(cache, options, message):
    register_imports(cache)
    with pytest.raises(OptionError, match=message):
        build("topics", {**OPTIONS, **options})


def test_training_loss_is_of_similarities_over_the_temperature(topics):
    task = opened_with(topics, temperature=0.25, negatives=2)
    model = make_model(make_experiment(task), task).eval()
    batch = next(task.batches("train", batch_size=8))
    with torch.no_grad():
        output = model(**model_inputs(model, batch.inputs, CPU))
    scores = task.head.scores(output)
    own = output.similarities[torch.arange(8), torch.arange(8)]
    torch.testing.assert_close(scores[:, 0], own)
    torch.testing.assert_close(F.cross_entropy(4 * scores, batch.targets), output.loss)


def test_card_and_examples_are_shown(cache, topics):
    card = write_card(build("topics", OPTIONS), cache)
    assert "| inputs | two sequences of tokens" in card
    assert "| target | documents that answer the query |" in card
    assert re.search(r"\| BM25 \| nDCG@10 \| \d+\.\d % \| \d+\.\d % \|", card)
    assert "grade 1" in card
    assert "the most frequent ones of the documents |" in card
    shown = topics.show("test", 0).split("\n\n= ")
    assert len(shown) == 6
    assert len({word for text in shown for word in text.split() if word.startswith("topic")}) == 1


def test_facts_count_documents_judgments_and_cut_texts(cache):
    facts = opened(cache, length=6, query_length=3).facts
    assert facts["documents"] == 60
    assert facts["relevant"] == facts["judgments"] == {"train": 360, "validation": 60, "test": 60}
    assert facts["cut"] == {"documents": 60, "train": 72, "validation": 12, "test": 12}
    assert json.dumps(facts["in_two_splits"])
    assert math.isclose(facts["bm25"]["test"]["recall@1000"], 1)


def test_every_import_is_a_task_of_the_protocol_own(cache):
    register_imports(cache)
    assert {"topics", "owls"} <= TASKS.keys()
    from longspan.arena import get

    recipe = get("own").recipe("topics")
    task = build("topics", recipe.task_options)
    assert (task.length, task.options.query_length) == (64, 64)
    register_imports(cache / "nowhere")
    assert "topics" not in TASKS
