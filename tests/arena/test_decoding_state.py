"""Bytes of the decoding state of causal runs, of every mechanism and every kind of model."""

import dataclasses

import pytest
import torch

import tiny
import toy_heads
from longspan.arena import get, make_model, override, run
from longspan.arena.decoding_state import measure_state
from longspan.arena.experiment import hash_config
from longspan.attention import MECHANISMS
from longspan.config import TaskConfig
from longspan.errors import OptionError
from longspan.results import load_result
from longspan.tasks import build, register

LENGTH, WIDTH, LAYERS = 48, 16, 2
RECALL = {
    "task.length": LENGTH,
    "task.pairs": 4,
    "task.queries": 4,
    "task.vocabulary": 16,
    "task.train": 1_024,
    "task.validation": 64,
    "task.test": 64,
    "model.is_decoder": True,
    "model.hidden_size": WIDTH,
    "model.intermediate_size": WIDTH,
    "training.steps": 4,
    "training.evaluate_every": 4,
    "training.warmup_steps": 1,
}
CAUSAL = sorted(name for name, cls in MECHANISMS.items() if cls.traits.causal)


def recall(mechanism="full", **changes):
    changes = {name.replace("__", "."): x for name, x in changes.items()}
    return override(get("diagnostic").experiment("recall", mechanism, 0), {**RECALL, **changes})


def state_of(experiment):
    task = build("recall", experiment.config.task.options)
    precision = experiment.config.training.precision
    return measure_state(make_model(experiment, task), task, precision)


@pytest.mark.parametrize("mechanism", CAUSAL)
def test_state_is_constant_if_and_only_if_its_bytes_are(mechanism):
    """The claim of the mechanism against the bytes at lengths far beyond windows and blocks."""
    options = {"mechanism__segment": 8} if mechanism == "long_short" else {}  # within its window
    states = [
        state_of(recall(mechanism, task__length=length, model__position="none", **options))
        for length in (LENGTH * 8, LENGTH * 16)
    ]
    assert all(state.num_bytes > 0 for state in states)
    assert {state.grows for state in states} == {states[0].num_bytes != states[1].num_bytes}


def test_state_of_full_attention_is_its_keys_and_values():
    elements = 2 * LAYERS * LENGTH * WIDTH
    assert state_of(recall()).num_bytes == 4 * elements
    assert state_of(recall(training__precision="bf16")).num_bytes == 2 * elements
    assert state_of(recall(model__num_hidden_layers=0)).num_bytes == 0
    assert state_of(recall(model__is_decoder=False)) is None


def test_state_of_linear_attention_does_not_depend_on_the_length():
    heads, width = 1, WIDTH
    feature_sums = 4 * LAYERS * heads * (width * width + width)
    for length in (LENGTH, 4 * LENGTH):
        state = state_of(recall("linear", task__length=length))
        assert not state.grows
        # Sums of keys, of products of keys and values, and per head a few numbers.
        assert feature_sums <= state.num_bytes < 1.2 * feature_sums


def refusal(task, layers):
    """Return the reason why a head has no causal model of as many layers; None: it has one."""
    if task.head_name == "masked_lm":
        return "predicted from both sides"
    is_pair = "decoder_input_ids" in task.input_shapes
    return "cross_attention requires num_hidden_layers >= 1" if is_pair and not layers else None


@pytest.mark.parametrize("cls", toy_heads.TOYS)
@pytest.mark.parametrize("layers", [0, 1])
def test_every_head_trains_causally_and_without_layers(registries, tmp_path, cls, layers):
    """Encoder-decoders have a decoder anyway; masked tokens need both sides."""
    register(cls)
    encoder_decoder = "decoder_input_ids" in cls(cls.Options()).input_shapes
    changes = {"model.num_hidden_layers": layers, "model.is_decoder": not encoder_decoder}
    base = tiny.experiment("full", changes={**changes, "model.pooling": "last"})
    task = cls(cls.Options())
    task.open(tmp_path / "cache")
    config = TaskConfig(name=cls.info.name, version=1, options=dataclasses.asdict(cls.Options()))
    made = dataclasses.replace(base, config=dataclasses.replace(base.config, task=config))
    paths = tiny.paths(tmp_path / "runs", tmp_path / "cache")
    if reason := refusal(task, layers):
        with pytest.raises(OptionError, match=reason):
            run(made, task, paths)
        return
    result = run(made, task, paths)
    assert load_result(paths.record_file(made)) == result
    assert result.decoding_state is not None
    assert (result.decoding_state.num_bytes > 0) == (layers > 0)


def test_causal_field_keeps_the_hash_of_other_runs():
    plain = recall(model__is_decoder=False)
    assert "model.is_decoder" not in plain.overrides
    before = get("diagnostic").config("recall", "full")
    assert hash_config(override(plain, {}).config) == plain.hash
    assert hash_config(before) != recall().hash != plain.hash


@pytest.mark.parametrize("task_name", ["recall", "needle", "copying"])
def test_causal_diagnostics_answer_before_they_read_on(task_name):
    """Tokens after a query change no answer of a causal model, and those of an encoder."""
    changes = {name: x for name, x in RECALL.items() if not name.startswith("task.")}
    protocol = get("quick" if task_name == "needle" else "diagnostic")
    for is_decoder in (True, False):
        made = protocol.experiment(task_name, "linear", 0)
        made = override(made, {**changes, "task.length": LENGTH, "model.is_decoder": is_decoder})
        model = make_model(made, build(task_name, made.config.task.options)).eval()
        ids = torch.arange(LENGTH)[None] % 7 + 2
        later = ids.clone()
        later[:, LENGTH // 2 :] += 1
        first, second = (model(x).logits[:, : LENGTH // 2] for x in (ids, later))
        assert torch.allclose(first, second, atol=1e-6) == is_decoder
