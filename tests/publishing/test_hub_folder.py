"""Folders for the hub: models load, compute and save where longspan is not installed."""

import dataclasses
import functools
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoModel, AutoTokenizer
from transformers.dynamic_module_utils import get_imports

from longspan.attention import MECHANISMS
from longspan.errors import OptionError
from longspan.models import (
    LongspanConfig,
    LongspanForCausalLM,
    LongspanForPairClassification,
    LongspanForSequenceClassification,
    LongspanModel,
    longify,
)
from longspan.publishing import flattening, write_hub_folder
from longspan.publishing.remote_code import ENTRY, auto_classes
from longspan.publishing.served_folder import Serving, load_serving
from longspan.tokenizers import ByteTokenizer, make_fast_tokenizer

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 260}
TEXTS = ["a long text, of bytes", "short"]

# Runs in a process that refuses to import longspan, and then in the same process with longspan.
SCRIPT = """
import json, sys
from pathlib import Path

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "longspan":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

blocker = Blocker()
sys.meta_path.insert(0, blocker)
import torch
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoTokenizer

folder, again = sys.argv[1:3]

def logits(folder, remote=True):
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=remote)
    model = AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=remote)
    inputs = tokenizer(json.loads(sys.argv[3]), padding=True, return_tensors="pt")
    with torch.no_grad():
        return model.eval()(**inputs).logits.tolist(), model

found, model = logits(folder)
# A later call of another Auto class loads the same classes.
config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
base = AutoModel.from_pretrained(folder, trust_remote_code=True)
same = type(config) is type(model.config) and isinstance(base, type(model).__mro__[-1])
model.save_pretrained(again)
AutoTokenizer.from_pretrained(folder, trust_remote_code=True).save_pretrained(again)
saved, _ = logits(again)
del model, base
blocked = "longspan" not in sys.modules
sys.meta_path.remove(blocker)
import longspan.models

local, model = logits(folder, remote=None)
trusted, other = logits(folder, remote=True)
print(json.dumps({
    "found": found, "saved": saved, "local": local, "trusted": trusted, "blocked": blocked,
    "same": same, "modules": [type(model).__module__, type(other).__module__],
}))
"""


@pytest.fixture(scope="module", autouse=True)
def flattened_once():
    """Rewrite each module of the package once for all folders."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flattening, "_flatten", functools.cache(flattening._flatten))
        yield


def make_model(cls=LongspanForSequenceClassification, **fields):
    torch.manual_seed(0)
    return cls(LongspanConfig(**{**SIZES, "max_position_embeddings": 64, **fields})).eval()


def run_without_longspan(folder, tmp_path):
    environment = {
        **os.environ,
        "HF_HOME": str(tmp_path / "hf"),
        "HF_MODULES_CACHE": str(tmp_path / "modules"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-c", SCRIPT, str(folder), str(tmp_path / "again")]
    done = subprocess.run(
        [*command, json.dumps(TEXTS)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_folder_loads_without_longspan_and_beside_it(tmp_path):
    """One process: loads, saves and loads again without longspan, then imports longspan."""
    model = make_model(attention="longformer", attention_options={"window": 4})
    tokenizer = make_fast_tokenizer(ByteTokenizer(), max_length=64)
    folder = write_hub_folder(model, tmp_path / "my.model-1", tokenizer=tokenizer)
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = model(**inputs).logits
    found = run_without_longspan(folder, tmp_path)
    for name in ("found", "saved", "local", "trusted"):
        torch.testing.assert_close(torch.tensor(found[name]), expected, msg=name)
    assert found["blocked"]
    assert found["same"]
    # An installed and imported longspan is preferred.
    assert all(module.startswith("longspan.models.") for module in found["modules"])
    again = json.loads((tmp_path / "again" / "config.json").read_text())
    assert again["auto_map"] == json.loads((folder / "config.json").read_text())["auto_map"]


def test_code_has_the_named_mechanisms_only(tmp_path):
    folder = write_hub_folder(make_model(attention="performer"), tmp_path / "model")
    names = {path.stem for path in folder.glob("*.py")}
    prefix = "longspan_attention_mechanisms_"
    default = LongspanConfig().attention
    assert {x.removeprefix(prefix) for x in names if x.startswith(prefix)} == {"performer", default}
    # What registers classes with transformers is left out.
    assert not names & {"longspan", "longspan_models", "longspan_attention"}
    text = "".join(path.read_text() for path in folder.glob("*.py"))
    assert "from longspan" not in text
    assert "import longspan" not in text


@pytest.mark.parametrize("backend", ["auto", "diagonals"])
def test_code_has_the_kernels_that_the_configuration_may_run(tmp_path, backend):
    model = make_model(attention="local", attention_backend=backend)
    folder = write_hub_folder(model, tmp_path / "model")
    names = {path.stem for path in folder.glob("*.py")}
    assert ("longspan_attention_kernels_diagonals" in names) == (backend == "diagonals")
    assert "longspan_attention_kernels_dense" in names
    assert not any("triton" in name or "flex" in name for name in names)


@pytest.fixture
def remote_code(tmp_path, monkeypatch):
    """Function that imports the code of a folder in this process, as a package."""
    monkeypatch.syspath_prepend(tmp_path)
    imported = []

    def load(folder):
        (folder / "__init__.py").touch()
        imported.append(folder.name)
        return importlib.import_module(f"{folder.name}.{ENTRY}")

    yield load
    for name in [x for x in sys.modules if x.partition(".")[0] in imported]:
        del sys.modules[name]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_code_of_every_mechanism_is_complete(mechanism, tmp_path, remote_code):
    """Import the code in this process, where it must not disturb the registered classes."""
    folder = write_hub_folder(make_model(attention=mechanism), tmp_path / f"code_{mechanism}")
    needed = {name for path in folder.glob("*.py") for name in get_imports(path)}
    # transformers requires numpy.
    needed -= {*sys.stdlib_module_names, "numpy"}
    assert needed == {"torch", "transformers", "huggingface_hub"}
    before = dict(MECHANISMS)
    module = remote_code(folder)
    remote = module.LongspanForSequenceClassification.from_pretrained(folder).eval()
    inputs = torch.arange(1, 33).reshape(1, 32)
    with torch.no_grad():
        expected = make_model(attention=mechanism)(inputs).logits
        torch.testing.assert_close(remote(inputs).logits, expected)
    assert type(remote).__module__ == module.__name__
    assert before == MECHANISMS


def test_code_of_decoder_generates_as_the_installed_one(tmp_path, remote_code):
    """The code has the mechanism of every layer, and the caches."""
    model = make_model(LongspanForCausalLM, is_decoder=True, attention=["local", "linear"])
    folder = write_hub_folder(model, tmp_path / "decoder")
    remote = remote_code(folder).LongspanForCausalLM.from_pretrained(folder).eval()
    prompt = torch.arange(1, 9).reshape(1, 8)
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(prompt, **options)
    assert torch.equal(remote.generate(prompt, **options), expected)
    assert expected.shape == (1, 16)


def test_auto_classes_are_those_of_the_registered_models():
    found = auto_classes(make_model())
    assert all(hasattr(transformers, name) and name.startswith("Auto") for name in found)
    assert found["AutoConfig"] is LongspanConfig
    assert found["AutoModel"] is LongspanModel
    assert found["AutoModelForSequenceClassification"] is LongspanForSequenceClassification
    pair = auto_classes(make_model(LongspanForPairClassification))
    assert pair["AutoModel"] is LongspanForPairClassification


def test_model_in_memory_and_auto_tokenizer_are_unchanged(tmp_path):
    model, tokenizer = make_model(), make_fast_tokenizer(ByteTokenizer(), max_length=64)
    folder = write_hub_folder(model, tmp_path / "model", tokenizer=tokenizer, card="# Card\n")
    assert getattr(model.config, "auto_map", None) is None
    assert AutoTokenizer.from_pretrained(folder)("é")["input_ids"] == [0xC3 + 1, 0xA9 + 1]
    assert isinstance(AutoModel.from_pretrained(folder), LongspanModel)
    assert (folder / "README.md").read_text() == "# Card\n"
    assert {"config.json", "model.safetensors"} <= {path.name for path in folder.iterdir()}


def test_longer_classifier_reads_texts_as_the_exported_one(tmp_path):
    """The threshold of its labels was 0.5 again; the columns, and the tail of texts, were lost."""
    serving = Serving(columns={"text": "body"}, threshold=0.25, kept=[16, 48], global_tokens=8)
    folder = write_hub_folder(make_model(), tmp_path / "model", serving=serving)
    longify(folder, max_length=100, out=tmp_path / "long")
    assert load_serving(tmp_path / "long") == dataclasses.replace(serving, kept=[16, 84])


def test_plugin_in_a_file_travels_with_the_model(tmp_path, registries):
    from longspan.arena import load_plugin

    text = (Path(__file__).parents[1] / "gated_window.py").read_text()
    source = tmp_path / "mine.py"  # another test may have imported the file itself
    source.write_text(text)
    load_plugin(str(source))
    (name,) = (x for x, cls in MECHANISMS.items() if not cls.__module__.startswith("longspan."))
    folder = write_hub_folder(make_model(attention=name), tmp_path / "model")
    module = MECHANISMS[name].__module__.replace(".", "_")
    assert f"from .{module} import" in (folder / f"{ENTRY}.py").read_text()
    text = (folder / f"{module}.py").read_text()
    assert "from .longspan_attention_" in text
    # The license of longspan is not that of the plug-in.
    assert "Apache" not in text
    assert "Apache-2.0" in (folder / "longspan_errors.py").read_text()


def test_existing_folder_and_failed_export_leave_nothing(tmp_path, monkeypatch):
    folder = tmp_path / "model"
    folder.mkdir()
    with pytest.raises(OptionError, match="exists; remove it"):
        write_hub_folder(make_model(), folder)
    folder.rmdir()

    class Own(LongspanForSequenceClassification):
        """Class of a function."""

    with pytest.raises(OptionError, match="Own is defined in a script or inside a function"):
        write_hub_folder(make_model(Own), folder)
    Own.__qualname__, Own.__module__ = "Own", "notebook_cell"
    with pytest.raises(OptionError, match="notebook_cell has no source file"):
        write_hub_folder(make_model(Own), folder)
    assert not list(tmp_path.iterdir())


def test_models_of_other_libraries_are_refused(tmp_path):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = transformers.BertModel(transformers.BertConfig(intermediate_size=16, **sizes))
    with pytest.raises(OptionError, match="BertModel is no model of longspan"):
        write_hub_folder(model, tmp_path / "model")
    assert not list(tmp_path.iterdir())
