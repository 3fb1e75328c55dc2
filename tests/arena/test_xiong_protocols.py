"""Protocols of pretraining and finetuning after Xiong et al. 2022."""

import dataclasses
import random
import shutil
import string

import pytest

from corpus_files import CORPUS, make_task, write_folder
from dpr_files import write_dpr
from longspan.arena import get, load_protocol
from longspan.arena.budget_resolution import apply_budget, find_resolution
from longspan.arena.grid import find_refusal, grid
from longspan.arena.model import is_dense
from longspan.attention import MECHANISMS
from longspan.config import flatten
from longspan.data.word_pieces import load_word_pieces
from longspan.errors import DataError, UnknownNameError
from longspan.tasks import build, register_imported
from longspan.tasks.ranking.imports import import_collection
from published_values import check_sources, unsourced_fields

NAMES = ("xiong-pretrain", "xiong-small")
COMPARED = (
    *("full", "local", "blockwise", "disjoint", "longformer", "bigbird", "linformer", "nystrom"),
    *("performer", "linear", "long_short", "reformer", "sinkhorn"),
)
# Fields of longspan's own engine, which change no published value.
OWN = {
    *(
        "task.pack",
        "task.weights",
        "task.held_out_windows",
        "model.initializer_range",
        "model.classifier_hidden_size",
    ),
    *("model.pair_head", "model.stem", "training.gradient_accumulation_steps"),
    *("training.gradient_checkpointing", "training.eval_batch_size", "training.max_grad_norm"),
    *("training.evaluate_every", "training.train_eval_examples", "budget.kind", "budget.limit"),
    *("model.adaptive_cutoffs", "model.adaptive_factor", "training.schedule_over"),
    "training.stop_at",
    "training.patience",
    "training.word_vectors",
    *("model.short_convolution", "model.short_convolution_activation"),
    "model.is_decoder",
    *("model.output_norm", "model.output_gate"),
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("documents")
    make_task(folder, write_folder(folder / "files"), name=CORPUS)
    yield folder
    register_imported(folder / "none")


def test_every_difference_of_pretraining_from_its_sources_is_a_choice(cache):
    register_imported(cache)
    protocol = get("xiong-pretrain")
    checks = check_sources(protocol)
    assert len(checks) > 25
    assert [x for x in checks if x.verdict not in ("equal", "chosen")] == []
    found = unsourced_fields(protocol, [CORPUS])
    assert {x for x in found if not x.startswith("mechanism.")} <= OWN


@pytest.mark.parametrize("name", NAMES)
def test_tasks_start_from_the_corpus_with_its_tokenizer(cache, name):
    register_imported(cache)
    protocol = get(name)
    first, *others = protocol.available_tasks
    assert first == CORPUS
    start = protocol.experiment(CORPUS, "local", 0).config.start
    short = None if start is None else protocol.row(CORPUS, "full-short", 0).hash
    assert (start and start.run) == short
    assert (short is None) == (name == "xiong-pretrain")
    for task in others:
        config = protocol.experiment(task, "local", 0).config
        assert (config.start.task, config.task.options["vocabulary"]) == (
            *(CORPUS, f"tokenizer:corpus:{CORPUS}"),
        )
        pretrained = protocol.config(CORPUS, "local").model
        # Fields without a weight in the Transformer.
        own = {x: getattr(config.model, x) for x in ("hidden_dropout_prob", "pooling")}
        assert config.model == dataclasses.replace(pretrained, **own)
        # Positions of the corpus's run are all there are.
        assert config.task.options["length"] <= config.start.positions


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_the_ablations_change_one_thing_of_pretraining(cache, name):
    register_imported(cache)
    protocol = get(name)
    for row in protocol.named_rows:
        if row.source.startswith("Xiong et al. 2022, section 4.3"):
            config = protocol.row(CORPUS, row.name, 0).config
            plain = protocol.row(CORPUS, row.mechanism, 0).config
            values, expected = flatten(config), flatten(plain)
            changed = [x for x in expected if values[x] != expected[x]]
            name_of_change = "global_tokens" if row.name.endswith("globals") else "block"
            assert [x.rpartition(".")[2] for x in changed] == [name_of_change]
            assert config.start == plain.start
            assert find_refusal(protocol.row(CORPUS, row.name, 0)) is None


@pytest.mark.parametrize("name", NAMES)
def test_corpus_that_is_not_imported_is_named_with_its_command(cache, name):
    register_imported(cache / "none")
    for ask in (lambda: grid(name), lambda: get(name).experiment(CORPUS, "local", 0)):
        with pytest.raises(UnknownNameError, match=r"data import corpus FOLDER .*--name "):
            ask()


def test_every_compared_mechanism_fits_the_small_model(cache):
    register_imported(cache)
    protocol = get("xiong-small")
    rows = [*COMPARED, "full-short"]
    assert {row: find_refusal(protocol.row(CORPUS, row, 0)) for row in rows} == dict.fromkeys(rows)
    short = protocol.row(CORPUS, "full-short", 0).config
    assert (short.mechanism.name, short.task.options["length"]) == ("full", 256)
    assert short.start is None
    assert short.model == protocol.config(CORPUS, "full").model


def test_short_model_is_shortened_by_one_setting(cache):
    """The rows that start from it start from the shortened one."""
    register_imported(cache)
    changes = {"full-short.training.steps": 100}
    rows = {"tasks": [CORPUS], "mechanisms": ["full-short", "blockwise"]}
    experiments, _ = grid("xiong-small", **rows, changes=changes)
    short, blockwise = sorted(experiments, key=lambda x: x.mechanism != "full")
    assert (short.config.training.steps, blockwise.config.training.steps) == (100, 600)
    assert blockwise.config.start.run == short.hash
    assert short.overrides == {"row": "full-short", "training.steps": 100}


@pytest.mark.parametrize("name", NAMES)
def test_local_mechanisms_attend_to_equally_many_keys(cache, name):
    register_imported(cache)
    protocol = get(name)
    options = {x: protocol.config(CORPUS, x).mechanism.options for x in MECHANISMS}
    window, block = options["local"]["window"], options["blockwise"]["block"]
    # Its own block and half of one on each side; one block of twice the size; both sides.
    assert (
        2 * block
        == options["disjoint"]["block"]
        == 2 * window
        == 2 * options["longformer"]["window"]
    )


def test_tokenizer_of_a_corpus_is_known_by_name_wherever_the_cache_is(cache, tmp_path):
    register_imported(cache)
    found = load_word_pieces(f"corpus:{CORPUS}")
    assert found.name == build(CORPUS, {}).tokenizer.name == f"corpus:{CORPUS}"
    before = get("xiong-small").experiment(CORPUS, "local", 0).hash
    make_task(tmp_path, write_folder(tmp_path / "files"), name=CORPUS)
    assert load_word_pieces(f"corpus:{CORPUS}").sha256 == found.sha256
    assert get("xiong-small").experiment(CORPUS, "local", 0).hash == before
    register_imported(tmp_path / "none")
    with pytest.raises(DataError, match=f"run longspan data import corpus PATH --name {CORPUS}"):
        load_word_pieces(f"corpus:{CORPUS}")


QUESTIONS, IMPORT = "natural_questions", "longspan data import dpr FOLDER --name natural_questions"


def test_natural_questions_are_left_out_until_they_are_imported(cache, tmp_path):
    register_imported(cache)
    protocol = get("xiong-pretrain")
    reason = f"not imported; run {IMPORT}"
    assert protocol.optional_imports == {QUESTIONS: reason}
    assert set(protocol.tasks) - set(protocol.available_tasks) == {QUESTIONS}
    experiments, _ = grid("xiong-pretrain", mechanisms=["local"])
    assert {x.task for x in experiments} == set(protocol.available_tasks)
    named = f"^protocol 'xiong-pretrain' needs {QUESTIONS}, which is {reason}$"
    for ask in (
        lambda: grid("xiong-pretrain", tasks=[QUESTIONS]),
        lambda: protocol.row(QUESTIONS, "local", 0),
    ):
        with pytest.raises(UnknownNameError, match=named):
            ask()
    # Without the corpus, which all tasks start from, there is nothing to leave out.
    register_imported(tmp_path / "none")
    assert set(get("xiong-pretrain").missing_imports) == {CORPUS, QUESTIONS}
    assert set(get("xiong-pretrain").optional_imports) == {QUESTIONS}
    assert get("char-small").optional_imports == {}


def test_imported_questions_are_a_task_beside_the_papers_of_aan(cache):
    folder = write_dpr(cache / "dpr")
    import_collection(cache, QUESTIONS, folder, {}, lambda *_: None, layout="dpr")
    register_imported(cache)
    protocol = get("xiong-pretrain")
    assert protocol.optional_imports == {}
    experiment = protocol.row(QUESTIONS, "blockwise", 0)
    assert experiment.config.start.task == CORPUS
    assert experiment.config.task.options["query_length"] == 256
    assert protocol.grids[QUESTIONS] == protocol.grids["aan_retrieval"]
    of_papers = protocol.row("aan_retrieval", "blockwise", 0).config
    assert experiment.config.model == of_papers.model
    same = {x: getattr(of_papers.training, x) for x in ("evaluate_every",)}
    assert dataclasses.replace(experiment.config.training, **same) == of_papers.training
    assert find_refusal(experiment) is None
    shutil.rmtree(cache / "retrieval")


@pytest.mark.parametrize(
    ("name", "kind"), [("xiong-pretrain", "microbatch"), ("xiong-small", "memory")]
)
def test_rows_of_equal_time_and_memory_change_the_budget_alone(cache, name, kind):
    register_imported(cache)
    protocol = get(name)
    rows = [row for row in protocol.named_rows if row.budget is not None]
    assert {row.mechanism for row in rows} >= {"full", "local", "blockwise", "disjoint"}
    for row in rows:
        control = "seconds" if row.name == f"{row.mechanism}-equal-time" else kind
        experiment, plain = (protocol.row(CORPUS, x, 0) for x in (row.name, row.mechanism))
        assert experiment.config.budget.kind == control
        assert dataclasses.replace(experiment.config, budget=plain.config.budget) == plain.config
        # What it starts from is trained once, for all rows.
        assert experiment.source == plain.source


@pytest.fixture(scope="module")
def corpus_of_2048_ids(tmp_path_factory):
    """Import as many ids as the recipe asks for: the memory of a step depends on them."""
    folder, draws = tmp_path_factory.mktemp("ids"), random.Random(0)
    words = ["".join(draws.choices(string.ascii_lowercase, k=7)) for _ in range(1_500)]
    texts = [" ".join(draws.choices(words, k=500)) for _ in range(24)]
    make_task(folder, write_folder(folder / "files", texts), name=CORPUS, vocab_size=2_048)
    yield folder
    register_imported(folder / "none")


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("full", {}),
        pytest.param("local", {"mechanism.window": 256}, marks=pytest.mark.slow),
        pytest.param("blockwise", {"mechanism.block": 256}, marks=pytest.mark.slow),
        pytest.param("disjoint", {"mechanism.block": 512}, marks=pytest.mark.slow),
        pytest.param("linformer", {"mechanism.rank": 64}, marks=pytest.mark.slow),
    ],
)
def test_equal_memory_gives_the_largest_size_that_is_not_full_attention(
    corpus_of_2048_ids, name, changes
):
    register_imported(corpus_of_2048_ids)
    experiment = get("xiong-small").row(CORPUS, f"{name}-equal-memory", 0)
    task = build(CORPUS, experiment.config.task.options)
    task.open(corpus_of_2048_ids, None)
    assert task.vocab_size == 2_048
    resolved = find_resolution(experiment, task)
    assert resolved.changes == changes
    assert is_dense(apply_budget(experiment, resolved).config, task) is (name == "full")


@pytest.mark.usefixtures("registries")
def test_commands_and_files_do_without_natural_questions(cache, tmp_path, cli):
    register_imported(cache)
    end = ("--cache", cache)
    arena = ("arena", "--protocol", "xiong-pretrain", "--mechanisms", "local", "--dry-run")
    out, err = cli.done(*arena, "--runs", tmp_path, *end)
    assert f"left out: {QUESTIONS}: not imported; run {IMPORT}" in err
    assert CORPUS in out
    code, _, err = cli(*arena, "--tasks", QUESTIONS, "--runs", tmp_path, *end)
    expected = (
        f"error: protocol 'xiong-pretrain' needs {QUESTIONS}, which is not imported; run {IMPORT}"
    )
    assert (code, err.strip()) == (2, expected)
    out, _ = cli.done("protocols", "check", "xiong-pretrain", *end)
    assert "values with a source" in out
    path = tmp_path / "mine.toml"
    path.write_text('base = "xiong-pretrain"\n[tasks.aan_retrieval.training]\nsteps = 10\n')
    protocol = load_protocol(str(path))
    assert protocol.config("aan_retrieval", "local").training.steps == 10
    assert protocol.optional_imports.keys() == {QUESTIONS}
