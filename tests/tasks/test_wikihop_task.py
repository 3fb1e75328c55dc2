"""WikiHop: splits, windows of a batch, shuffled candidates, scores, and a run."""

import json
from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
from task_calls import make_experiment, open_task, read_whole

import tiny
from longspan.arena import run
from longspan.arena.finished_run import load_run
from longspan.arena.model import forward_flops, make_model
from longspan.arena.predict import answer_questions
from longspan.errors import DataError, OptionError
from longspan.results import load_results
from longspan.tasks import SPLITS, build
from longspan.tasks.questions.wikihop import read_questions
from longspan.training.footprint import make_dummy_batch, measure_step_memory
from question_files import published
from wikihop_files import write_wikihop

SMALL = {"length": 128, "candidates": 6, "windows": 2}
opened = partial(open_task, "wikihop", **SMALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_wikihop(tmp_path_factory.mktemp("wikihop"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def right_logits(batch):
    logits = torch.zeros(batch.inputs["candidate_positions"].shape)
    logits[torch.arange(len(logits)), batch.targets] = 1
    return logits


def candidates_of(task, batch):
    """Return the text of the candidates of each example, read from the first window."""
    found = []
    for window, places in zip(
        batch.inputs["input_ids"][:, 0], batch.inputs["candidate_positions"], strict=True
    ):
        texts = []
        for place in places[places >= 0].tolist():
            symbols = task.ids_to_tokens(window[place:].numpy())
            assert symbols[0] == "[ent]"
            texts.append("".join(symbols[1 : symbols.index("[/ent]")]).replace("Ġ", " ").strip())
        found.append(texts)
    return found


def test_right_candidates_are_the_published_answers(cache, folder):
    task = opened(cache, folder)
    assert [task.size(split) for split in SPLITS] == [18, 2, 4]
    batch = read_whole(task, "test")
    texts = candidates_of(task, batch)
    expected = {x.id: x for x in read_questions(folder / "dev.json")}
    assert [tuple(names) for names in texts] == [x.candidates for x in expected.values()]
    answers = task.answers("test", batch.rows, right_logits(batch), batch.targets)
    assert answers == {name: x.candidates[x.answer] for name, x in expected.items()}
    found = task.example_statistics(
        task.metrics, "test", batch.rows, right_logits(batch), batch.targets
    )
    assert task.metrics[0].aggregate(found["accuracy"].numpy()) == 1


def test_answers_are_the_published_texts_of_candidates(tmp_path):
    """An official evaluation compares texts; punctuation is joined for the model alone."""
    folder, published_texts = write_wikihop(tmp_path / "data"), ["bonn , north", "john 's  town"]
    for path in folder.glob("*.json"):
        records = json.loads(path.read_text())
        for record in records:
            record |= {"candidates": published_texts, "answer": published_texts[1]}
        path.write_text(json.dumps(records))
    task = opened(tmp_path / "cache", folder)
    batch = read_whole(task, "test")
    assert candidates_of(task, batch)[0] == ["bonn, north", "john's town"]
    answers = task.answers("test", batch.rows, right_logits(batch), batch.targets)
    assert set(answers.values()) == {"john 's  town"}


@pytest.mark.parametrize(("choice", "count"), [("candidates", None), ("first", 1), ("none", 0)])
def test_global_tokens_are_those_of_question_and_candidates(cache, folder, choice, count):
    task = opened(cache, folder, global_tokens=choice)
    batch = read_whole(task, "test")
    if choice == "none":
        assert "global_attention_mask" not in batch.inputs
        return
    end = task.ids_to_tokens(np.arange(task.vocab_size)).index("[/ent]")
    for window, mask in zip(
        batch.inputs["input_ids"].flatten(0, 1),
        batch.inputs["global_attention_mask"].flatten(0, 1),
        strict=True,
    ):
        places = [i for i, token in enumerate(window.tolist()) if token == end]
        prefix = places[-1] + 1 if places else 0
        assert mask.sum() == (min(1, prefix) if count else prefix)
        assert mask.sum() <= task.num_global_tokens
        assert mask[: int(mask.sum())].all()


def test_first_tokens_of_documents_are_global_on_request(cache, folder):
    """The separators that no document precedes, those that end one aside."""
    plain, task = (opened(cache, folder, global_tokens=x) for x in ("candidates", "boundaries"))
    batches = [read_whole(x, "test") for x in (plain, task)]
    ids, masks = (
        [x.inputs[name] for x in batches] for name in ("input_ids", "global_attention_mask")
    )
    assert ids[0].equal(ids[1])
    more = masks[1] & ~masks[0]
    assert (masks[0] & ~masks[1]).sum() == 0
    separator = task.ids_to_tokens(np.arange(task.vocab_size)).index("[SEP]")
    for windows, marked in zip(ids[1], more, strict=True):
        is_separator = (windows == separator).flatten()
        # [SEP] document [SEP] [SEP] document [SEP]: every other one, over all windows.
        places = is_separator.nonzero().flatten()[::2]
        assert marked.flatten().nonzero().flatten().equal(places)
        assert marked.sum() == 3
    assert masks[1].sum(-1).max() <= task.num_global_tokens
    short = build("wikihop", {**SMALL, "global_tokens": "boundaries"})
    assert short.num_global_tokens == SMALL["length"]
    longer = build("wikihop", {"global_tokens": "boundaries"})
    assert longer.num_global_tokens == 3 * 4096 // 4 + 64


def test_training_examples_are_shuffled_by_seed_and_number(cache, folder):
    task, fixed = opened(cache, folder), opened(cache, folder, shuffle=False)
    batch, same = (next(x.batches("train", batch_size=18, seed=3)) for x in (task, fixed))
    assert batch.rows.equal(same.rows)
    texts, plain = candidates_of(task, batch), candidates_of(task, same)
    assert texts != plain
    assert [sorted(x) for x in texts] == [sorted(x) for x in plain]
    right = [x[label] for x, label in zip(texts, batch.targets.tolist(), strict=True)]
    assert right == [x[label] for x, label in zip(plain, same.targets.tolist(), strict=True)]
    again = next(task.batches("train", batch_size=18, seed=3))
    assert again.inputs["input_ids"].equal(batch.inputs["input_ids"])
    assert not next(task.batches("train", batch_size=18, seed=4)).targets.equal(batch.targets)
    # Evaluations are never shuffled.
    whole_train = [read_whole(x, "train").inputs["input_ids"] for x in (task, fixed)]
    assert whole_train[0].equal(whole_train[1])


def test_slices_say_what_is_read(tmp_path):
    folder = write_wikihop(tmp_path, documents=5)
    for options, expected in (
        ({"length": 512}, {"one window"}),
        ({"length": 128, "windows": 9}, {"several windows"}),
        ({"length": 128, "windows": 1}, {"cut"}),
    ):
        task = opened(tmp_path, folder, **options)
        (grouping,) = task.groupings("test")
        assert {grouping.labels[i] for i in grouping.group} == expected
        batch = read_whole(task, "test")
        assert (batch.inputs["input_ids"].shape[1] > 1) == (expected == {"several windows"})


def test_facts_count_questions(cache, folder):
    counts = opened(cache, folder).facts["questions"]
    assert counts["test"] == {"questions": 4, "most_candidates": 4, "most_documents": 3}


def test_rule_prefers_the_usual_answer_of_the_relation(cache, folder):
    task = opened(cache, folder)
    train = read_whole(task, "train")
    pairs = zip(candidates_of(task, train), train.targets.tolist(), strict=True)
    counts = Counter(names[label] for names, label in pairs)
    right = []
    for question in read_questions(folder / "dev.json"):
        most = max(counts[name] for name in question.candidates)
        chosen = next(x for x in question.candidates if counts[x] == most)
        right.append(chosen == question.candidates[question.answer])
    assert task.rule_scores("test") == {"most frequent candidate": np.mean(right)}
    assert task.majority_baseline("test") is None


def test_more_candidates_than_allowed_are_refused(cache, folder):
    task = opened(cache, folder, candidates=2)
    with pytest.raises(
        DataError, match=r"a question of .* has 4 candidates, .* set task.candidates=4"
    ):
        read_whole(task, "test")


def test_lengths_without_room_are_refused():
    with pytest.raises(OptionError, match="length=128 leaves no room for 79 candidates"):
        build("wikihop", {"length": 128})


def test_word_pieces_of_a_checkpoint(tmp_path, folder):
    """The input is that of the published code, whose words all begin with a space."""
    tokenizer = published("vocab/roberta-base/vocab.json").parent
    task = opened(tmp_path, folder, vocabulary=f"tokenizer:{tokenizer}")
    assert task.vocab_size == 50_265 + 4
    batch = read_whole(task, "test")
    symbols = task.ids_to_tokens(
        batch.inputs["input_ids"][0, 0][batch.inputs["attention_mask"][0, 0]].numpy()
    )
    text = "".join(symbols).replace("Ġ", " ")
    assert text.startswith("<s>[question] country person20[/question][ent] france[/ent][ent] spa")
    assert "[/ent]</s> Person20 was born in City20.</s></s> City20 (a town) is in" in text
    assert batch.inputs["input_ids"].dtype == torch.int64


def experiment(task, changes=None):
    # The protocol lists a window for each of its two layers.
    return make_experiment(task, "longformer", {"mechanism.window": 8, **(changes or {})})


def test_dummy_batches_are_those_of_full_windows(cache, folder):
    task = opened(cache, folder, length=64, candidates=4)
    batch = next(task.batches("train", batch_size=18))
    dummy = make_dummy_batch(task, 18)
    wanted = {**batch.inputs, "labels": batch.targets}
    assert {k: x.shape for k, x in dummy.items()} == {k: x.shape for k, x in wanted.items()}
    made = experiment(task)
    assert measure_step_memory(make_model(made, task), task, made.config.training).working > 0
    one = opened(cache, folder, length=64, candidates=4, windows=1)
    alone = forward_flops(experiment(one).config, one)
    assert forward_flops(made.config, task) == 2 * alone


def test_run_is_recorded_with_slices_and_rules(tmp_path, cache, folder):
    changes = {"training.steps": 4, "mechanism.window": 16}
    paths = tiny.paths(tmp_path / "runs", cache)
    task = opened(cache, folder)
    made = experiment(task, changes)
    run(made, task, paths)
    (record,) = load_results([paths.runs])
    assert record.scores["test"].num_examples == 4
    answers = answer_questions(load_run(paths.record_file(made), paths), "test")
    expected = {x.id: x for x in read_questions(folder / "dev.json")}
    assert all(answer in expected[name].candidates for name, answer in answers.items())
    right = [answer == expected[x].candidates[expected[x].answer] for x, answer in answers.items()]
    assert len(right) == 4
    assert np.mean(right) == record.scores["test"].metrics["accuracy"]
    assert record.rules["test"].keys() == {"most frequent candidate"}
    assert record.scores["test"].majority_baseline is None
    assert sum(x.num_targets for x in record.slices["read"]) == 4
