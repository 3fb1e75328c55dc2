"""HotpotQA: targets, scores of known predictions, two stages, and a run that learns."""

import json
from functools import partial

import numpy as np
import pytest
import torch
from task_calls import make_experiment, open_task, read_whole, score_logits

import tiny
from longspan.arena import make_model, run
from longspan.errors import DataError
from longspan.metrics.multi_hop import answer_agreement, support_agreement
from longspan.models import MultiHopLabels, MultiHopLogits, multi_hop_losses
from longspan.results import load_results
from longspan.tasks import IGNORE, SPLITS
from longspan.tasks.questions.encoding import (
    ANSWER_TYPES,
    ELSEWHERE,
    ENDS,
    PASSAGE,
    RELEVANT,
    SENTENCE,
    STARTS,
    SUPPORTS,
)
from longspan.training.footprint import make_dummy_batch, measure_step_memory
from question_files import hotpotqa_record, published, write_hotpotqa

SMALL = {"length": 320, "question_length": 48}
ANSWERS = ("yes", None, None, "no", None)  # None: a span
opened = partial(open_task, "hotpotqa", **SMALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder with 20 questions for training and 5 for development."""
    records = [hotpotqa_record(n, ANSWERS[n % 5]) for n in range(25)]
    return write_hotpotqa(tmp_path_factory.mktemp("hotpotqa"), records[:20], records[20:])


def right_logits(batch):
    """Return packed scores that predict all that the targets mark."""
    inside = (batch.targets != IGNORE) & (batch.targets < ELSEWHERE)

    def scores(bit):
        return 9.0 * (inside & (batch.targets & bit > 0)) - 4

    types = torch.nn.functional.one_hot(batch.targets[:, 0] - ELSEWHERE, len(ANSWER_TYPES))
    tokens = (scores(bit) for bit in (STARTS, ENDS, SUPPORTS, RELEVANT))
    return MultiHopLogits(*tokens, types.float()).pack()


def test_marked_answers_and_support_have_full_scores(tmp_path, folder):
    task = opened(tmp_path, folder)
    assert sum(task.size(split) for split in SPLITS) == 25
    for split in SPLITS:
        batch = read_whole(task, split)
        found = score_logits(task, split, batch, right_logits(batch))
        assert found == dict.fromkeys(task.info.metrics, 1)


def test_targets_mark_first_tokens_of_titles_and_sentences(tmp_path, folder):
    task = opened(tmp_path, folder)
    batch = read_whole(task, "test")
    for ids, targets in zip(batch.inputs["input_ids"], batch.targets, strict=True):
        inside = (targets != IGNORE) & (targets < ELSEWHERE)

        def words(bit, ids=ids, targets=targets, inside=inside):
            """Return the four tokens from each marked one on, as text."""
            places = (inside & (targets & bit > 0)).nonzero()[:, 0].tolist()
            return ["".join(task.ids_to_tokens(ids[i : i + 4].numpy())) for i in places]

        assert words(PASSAGE) == ["Othe", "City", "Mayo", "Rive"]
        assert words(RELEVANT) == ["City", "Mayo"]
        # a sentence of white space has no first token
        sentences = ["Nobo", "ItĠi", "City", "ItsĠ", "Mayo", "SheĠ", "ItĠf"]
        assert words(SENTENCE) == sentences
        assert words(SUPPORTS) == ["ItsĠ", "Mayo"]
        is_span = targets[0] == ELSEWHERE
        assert words(STARTS) == (["Colo"] if is_span else [])
    types = [ANSWER_TYPES[x - ELSEWHERE] for x in batch.targets[:, 0].tolist()]
    assert sorted(types) == ["no", "span", "span", "span", "yes"]


def test_boundaries_of_paragraphs_and_sentences_are_global(tmp_path, folder):
    task = opened(tmp_path, folder)
    batch = read_whole(task, "test")
    inside = (batch.targets != IGNORE) & (batch.targets < ELSEWHERE)
    boundaries = inside & (batch.targets & (PASSAGE | SENTENCE) > 0)
    question = inside.cumsum(1) == 0
    assert batch.inputs["global_attention_mask"].equal(boundaries | question)
    assert boundaries.sum(1).tolist() == [4 + 7] * 5
    few = read_whole(opened(tmp_path, folder, boundaries=3), "test")
    assert (few.inputs["global_attention_mask"] & inside).sum(1).tolist() == [3] * 5
    assert (
        "global_attention_mask"
        not in read_whole(opened(tmp_path, folder, global_tokens="none"), "test").inputs
    )
    first = read_whole(opened(tmp_path, folder, global_tokens="first"), "test").inputs[
        "global_attention_mask"
    ]
    assert first.sum(1).tolist() == [1] * 5


def test_predictions_have_the_official_form(tmp_path, folder):
    task = opened(tmp_path, folder)
    batch = read_whole(task, "test")
    logits = right_logits(batch)
    found = task.answers("test", batch.rows, logits, batch.targets)
    names = [f"h_{n}" for n in range(20, 25)]
    answers = {f"h_{n}": ANSWERS[n % 5] or f"Color{n}" for n in range(20, 25)}
    assert found["answer"] == answers
    assert set(found["sp"]) == set(names)
    assert found["sp"]["h_22"] == [["City 22", 1], ["Mayor 22", 0]]
    assert json.loads(json.dumps(found)) == found
    assert found["paragraphs"]["h_22"] == ["City 22", "Mayor 22", "Other 22", "River 22"]


def test_support_is_in_the_paragraphs_of_the_largest_scores(tmp_path, folder):
    """The best sentence of each is predicted, and all above one half; none elsewhere."""
    wanted = {
        2: [["City 21", 0], ["City 21", 1], ["River 21", 0]],
        1: [["City 21", 0], ["City 21", 1]],
        None: [["Other 21", 0], ["City 21", 0], ["City 21", 1]],
    }
    for count, facts in wanted.items():
        task = opened(tmp_path, folder, support_paragraphs=count)
        batch = read_whole(task, "test")
        tokens = {name: torch.full(batch.targets.shape, -1.0) for name in ("sentence", "paragraph")}
        types = torch.tensor([[0.0, 1.0, 0.0]]).expand(5, -1)
        for targets, sentence, paragraph in zip(
            batch.targets, tokens["sentence"], tokens["paragraph"], strict=True
        ):
            classes = targets.masked_fill((targets == IGNORE) | (targets >= ELSEWHERE), 0)
            sentences = (classes & SENTENCE).nonzero()[:, 0]
            paragraphs = (classes & PASSAGE).nonzero()[:, 0]
            sentence[sentences[[0, 2, 3]]] = torch.tensor([5.0, 0.5, 1.0])
            sentence[sentences[-1]] = -0.5
            paragraph[paragraphs[[1, 3]]] = torch.tensor([3.0, 2.0])
        zero = torch.zeros(batch.targets.shape)
        logits = MultiHopLogits(zero, zero, *tokens.values(), types).pack()
        found = task.answers("test", batch.rows, logits, batch.targets)
        assert found["sp"]["h_21"] == facts
        assert set(found["answer"].values()) == {"yes"}


def loss_of(task, logits, batch):
    """Return the joint loss of packed logits."""
    labels = task.label_arguments(batch.targets)
    weight = labels.pop("support_weight")
    scores = MultiHopLogits.unpack(logits)
    return multi_hop_losses(scores, MultiHopLabels(*labels.values()), weight).mean()


def test_weight_of_the_support_is_an_option(tmp_path, folder):
    losses = {}
    for weight in (0.0, 1.0, 3.0):
        task = opened(tmp_path, folder, support_weight=weight)
        batch = read_whole(task, "test")
        logits = torch.randn(right_logits(batch).shape, generator=torch.Generator().manual_seed(0))
        losses[weight] = loss_of(task, logits, batch)
    torch.testing.assert_close(
        losses[3.0] - losses[0.0], 3 * (losses[1.0] - losses[0.0]), rtol=1e-4, atol=1e-5
    )
    assert losses[1.0] > losses[0.0]


def test_questions_cut_before_their_answer_are_kept_and_counted(tmp_path, folder):
    task = opened(tmp_path, folder, length=96)
    counts = task.facts["answers"]["test"]
    assert (counts["behind_cut"], counts["no_span"]) == (3, 2)
    assert task.size("train") + task.size("validation") == 20
    batch = read_whole(task, "test")
    found = score_logits(task, "test", batch, right_logits(batch))
    # The supporting sentences are behind the cut, too.
    assert found["support_exact_match"] == 0
    assert found["exact_match"] == pytest.approx(2 / 5)
    assert loss_of(task, right_logits(batch), batch).isfinite()
    (grouping,) = task.groupings("test")
    assert np.bincount(grouping.group, minlength=4).tolist() == [0, 2, 3, 0]


def write_selection(path, names, ranked):
    titles = {f"h_{n}": [f"{title} {n}" for title in ranked] for n in names}
    path.write_text(json.dumps({"paragraphs": titles}))
    return str(path)


def test_second_stage_reads_the_ranked_paragraphs(tmp_path, folder):
    ranked = ("River", "City", "Other", "Mayor")
    path = write_selection(tmp_path / "ranked.json", range(25), ranked)
    task = opened(tmp_path, folder, selection=path, paragraphs=3, support_paragraphs=None)
    assert "Mayor 21 runs" not in task.show("test", 1)
    assert all(f"{title} 21\n" in task.show("test", 1) for title in ranked[:3])
    batch = read_whole(task, "test")
    found = score_logits(task, "test", batch, right_logits(batch))
    # One of two facts is lost in the first stage: precision 1, recall 1/2.
    assert found["support_f1"] == pytest.approx(2 / 3)
    assert found["exact_match"] == 1
    # Training reads all relevant paragraphs, and the best others.
    for row in range(task.size("train")):
        text = task.show("train", row)
        assert all(word in text for word in ("Mayor", "City", "River"))
        assert "Other" not in text
    again = write_selection(tmp_path / "copy.json", range(25), ranked)
    same = opened(tmp_path, folder, selection=again, paragraphs=3)
    assert same.dataset.folder == task.dataset.folder
    other = write_selection(tmp_path / "other.json", range(25), ranked[::-1])
    assert opened(tmp_path, folder, selection=other).dataset.folder != task.dataset.folder


def test_answers_of_a_first_stage_are_a_selection(tmp_path, folder):
    first, ranked = opened(tmp_path, folder), tmp_path / "ranked"
    ranked.mkdir()
    for split in SPLITS:
        batch = read_whole(first, split)
        found = first.answers(split, batch.rows, right_logits(batch), batch.targets)
        (ranked / f"{split}.json").write_text(json.dumps(found))
    second = opened(tmp_path, folder, selection=str(ranked), paragraphs=2)
    batch = read_whole(second, "test")
    assert score_logits(second, "test", batch, right_logits(batch))["joint_f1"] == 1
    assert "River" not in second.show("test", 0)
    assert max(second.dataset.splits["test"].tokens.lengths) < min(
        first.dataset.splits["test"].tokens.lengths
    )


def test_an_incomplete_selection_is_refused(tmp_path, folder):
    path = write_selection(tmp_path / "ranked.json", range(20), ("City",))
    with pytest.raises(DataError, match=r"ranked.json has no paragraph of the question 'h_20' of"):
        opened(tmp_path, folder, selection=path)
    with pytest.raises(DataError, match=r"no selection .*absent\.json; write it with"):
        opened(tmp_path, folder, selection=str(tmp_path / "absent.json"))


def test_published_questions_have_nearly_full_scores(tmp_path):
    sample = published("qa/hotpot_dev_distractor_100.json.gz")
    roberta = published("vocab/roberta-base/vocab.json").parent
    for name in ("hotpot_train_v1.1.json.gz", "hotpot_dev_distractor_v1.json.gz"):
        (tmp_path / name).symlink_to(sample)
    options = {"length": 4096, "question_length": 64, "vocabulary": f"tokenizer:{roberta}"}
    task = opened(tmp_path / "cache", tmp_path, **options)
    assert task.size("test") == 100
    batch = read_whole(task, "test")
    found = score_logits(task, "test", batch, right_logits(batch))
    # One answer has quotation marks that its mentions lack.
    expected = dict.fromkeys(task.info.metrics, 0.99)
    assert found == pytest.approx(expected | {"support_f1": 1, "support_exact_match": 1})
    counts = task.facts["answers"]["test"]
    assert counts["no_span"] == 8
    listed = (task.dataset.folder / "skipped.tsv").read_text().splitlines()
    assert (
        sum("\tnot_in_context\t" in x for x in listed if x.startswith("test"))
        == (counts["not_in_context"])
    )


def test_a_run_learns_the_support_and_writes_answers(tmp_path, folder, cli):
    """Each question has the same paragraphs, so their titles decide the support."""
    paths = tiny.paths(tmp_path / "runs", tmp_path / "cache")
    task = opened(paths.cache, folder)
    changes = {
        "training.steps": 14,
        "training.learning_rate": 0.03,
        "training.evaluate_every": 14,
        "training.gradient_accumulation_steps": 2,
        "training.batch_size": 8,
    }
    made = make_experiment(task, changes=changes)
    result = run(made, task, paths)
    (record,) = load_results([paths.runs])
    assert record.config == made.config
    assert tuple(record.scores["test"].metrics) == task.info.metrics
    assert record.scores["test"].num_targets == task.size("test")
    assert result.scores["test"].metrics["support_f1"] > 0.9
    assert measure_step_memory(make_model(made, task), task, made.config.training).working > 0
    output = tmp_path / "answers.json"
    arguments = ["--output", output, "--cache", paths.cache, "--data", folder, "--device", "cpu"]
    out, _ = cli.done("answers", paths.record_file(made), "--batch-size", "2", *arguments)
    assert out == f"answers to 5 questions of test in {output}\n"
    found = json.loads(output.read_text())
    scored = []
    for n in range(20, 25):
        answer = answer_agreement(found["answer"][f"h_{n}"], ANSWERS[n % 5] or f"Color{n}")
        facts = [tuple(fact) for fact in hotpotqa_record(n)["supporting_facts"]]
        support = support_agreement(map(tuple, found["sp"][f"h_{n}"]), facts)
        scored.append(answer.join(support).f1)
        assert len(found["paragraphs"][f"h_{n}"]) == 4
    assert np.mean(scored) == pytest.approx(result.scores["test"].metrics["joint_f1"])


def test_dummy_batches_have_the_shape_of_real_ones(tmp_path, folder):
    task = opened(tmp_path, folder, length=128)
    dummy, batch = make_dummy_batch(task, 3), read_whole(task, "train")
    wanted = {**batch.inputs, **task.label_arguments(batch.targets)}
    del wanted["support_weight"]
    assert {k: x.shape[1:] for k, x in dummy.items()} == {k: x.shape[1:] for k, x in wanted.items()}
