"""Python for model cards that loads a model and calls it."""

import re

from transformers import PreTrainedModel

from longspan.models import LongspanModel
from longspan.publishing.remote_code import ENTRY, auto_classes
from longspan.tasks import Task
from longspan.tasks.encoded_text import EncodedTextTask
from longspan.tasks.pieces import PieceTask
from longspan.tasks.questions.question_data import QuestionTask
from longspan.training.arguments import takes_global_tokens

_LOAD = """import torch
from transformers import {imports}

folder = "FOLDER OR NAME ON THE HUB"
model = {auto}.from_pretrained(folder, trust_remote_code=True).eval()
"""
_LOAD_CLASS = """import torch
{imports}from transformers.dynamic_module_utils import get_class_from_dynamic_module

folder = "FOLDER OR NAME ON THE HUB"
model_class = get_class_from_dynamic_module("{reference}", folder)
model = model_class.from_pretrained(folder).eval()
"""
_TOKENIZER = "tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)\n"
_TEXTS = 'inputs = tokenizer(["A text."], truncation=True, return_tensors="pt")\n'
_PAIRS = """a = tokenizer(["A text."], truncation=True, return_tensors="pt")
b = tokenizer(["Another one."], truncation=True, return_tensors="pt")
inputs = {
    **a,
    "input_ids_b": b["input_ids"],
    "attention_mask_b": b["attention_mask"],
}
"""
_SEARCH = """a = tokenizer(["A question."], truncation=True, return_tensors="pt")
b = tokenizer(["A text.", "Another one."], padding=True, truncation=True, return_tensors="pt")
inputs = {
    "query_input_ids": a["input_ids"],
    "query_attention_mask": a["attention_mask"],
    "document_input_ids": b["input_ids"],
    "document_attention_mask": b["attention_mask"],
}
with torch.no_grad():
    print(model(**inputs, return_loss=False).similarities)
"""
_QUESTION = """texts = "Who asks?", "A document that answers the question."
inputs = tokenizer(
    *texts, truncation="only_second", return_token_type_ids=False, return_tensors="pt"
)
document = torch.tensor([x == 1 for x in inputs.sequence_ids(0)])
"""
_GLOBAL_QUESTION = """inputs["global_attention_mask"] = (document.cumsum(0) == 0)[None]
"""
_ANSWER = """with torch.no_grad():
    output = model(**inputs)
start = output.start_logits[0].masked_fill(~document, -torch.inf).argmax()
end = start + output.end_logits[0, start:].masked_fill(~document[start:], -torch.inf).argmax()
print(tokenizer.decode(inputs["input_ids"][0, start : end + 1]))
"""
_HEAD_TAIL = """

def encode(text):
    ids = tokenizer(text)["input_ids"]
    if len(ids) > {length}:  # head and tail are kept, as in training
        ids = ids[:{head}] + ids[{tail}:]
    return {{"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids)).bool()}}


"""
_DOCUMENT = """text = " ".join("A text.".split())  # white space as in training
inputs = tokenizer([text], truncation=True, return_tensors="pt")
"""
_GENERATE = """with torch.no_grad():
    print(tokenizer.batch_decode(model.generate(**inputs), skip_special_tokens=True))
"""
_GLOBAL = """for side in {sides}:
    places = torch.arange(inputs["input_ids" + side].shape[1])[None]
    is_global = ({places} == 0) & inputs["attention_mask" + side].bool()
    inputs["global_attention_mask" + side] = is_global
"""
_CALL = """with torch.no_grad():
    print(model(**inputs).logits)
"""
_CALL_ALL = """with torch.no_grad():
    print(model(**inputs))
"""


def example_of_use(model: PreTrainedModel, task: Task, *, has_tokenizer: bool) -> str:
    """Return Python that loads a model of a hub folder and calls it on an input of its task."""
    load = _loading(model, has_tokenizer=has_tokenizer)
    is_pair = "input_ids_b" in task.head.texts
    option = getattr(task.options, "global_tokens", None) if takes_global_tokens(model) else None
    if isinstance(task, PieceTask) and not (has_tokenizer and isinstance(task, QuestionTask)):
        # Inputs of several texts, and outputs of several parts.
        return load + _zeros(task, is_pair) + _CALL_ALL
    if isinstance(task, QuestionTask):
        is_global = option in ("question", "boundaries")
        return load + _TOKENIZER + _QUESTION + _GLOBAL_QUESTION * is_global + _ANSWER
    if has_tokenizer and task.head.compares_examples:
        return load + _TOKENIZER + _SEARCH
    if has_tokenizer and task.generation is not None:
        return load + _TOKENIZER + _DOCUMENT + _GENERATE
    if has_tokenizer:
        return load + _TOKENIZER + _encode(task, is_pair, option) + _CALL
    return load + _zeros(task, is_pair) + _CALL


def _loading(model: PreTrainedModel, *, has_tokenizer: bool) -> str:
    """Return the lines that load a model.

    Where longspan was imported, AutoModel is its model without a head, so that a class that no Auto
    class stands for is loaded by its name.
    """
    names = [name for name, cls in auto_classes(model).items() if cls is type(model)]
    auto = next((name for name in names if name != "AutoModel"), "AutoModel")
    if auto == "AutoModel" and type(model) is not LongspanModel:
        line = "from transformers import AutoTokenizer\n" if has_tokenizer else ""
        return _LOAD_CLASS.format(imports=line, reference=f"{ENTRY}.{type(model).__name__}")
    imports = [auto, "AutoTokenizer"] if has_tokenizer else [auto]
    return _LOAD.format(imports=", ".join(imports), auto=auto)


def _encode(task: Task, is_pair: bool, option: str | int | None) -> str:
    """Return the lines that encode texts; a tokenizer of transformers keeps the head of them."""
    lines = _PAIRS if is_pair else _TEXTS
    # The first token of a single text is global by the configuration.
    if isinstance(option, int) or (option == "first" and is_pair):
        places = "places" if option == "first" else f"places % {option}"
        lines += _GLOBAL.format(sides='("", "_b")' if is_pair else '("",)', places=places)
    if not isinstance(task, EncodedTextTask) or (kept := task.head_and_tail) is None:
        return lines
    head, tail = kept
    function = _HEAD_TAIL.format(length=head + tail, head=head, tail=-tail)
    calls = re.sub(r"tokenizer\(\[(.*?)\], .*\)", r"encode(\1)", lines)
    return function + calls


def _zeros(task: Task, is_pair: bool) -> str:
    """Return the line that makes inputs of the shape of the task."""
    if task.input_features is not None:
        shape = f"1, {task.length}, {task.input_features}"
        return f'inputs = {{"input_values": torch.zeros({shape})}}\n'
    ids = f"torch.ones(1, {task.length}, dtype=torch.long)"
    second = f', "input_ids_b": {ids}' if is_pair else ""
    return f'inputs = {{"input_ids": {ids}{second}}}  # ids below {task.vocab_size}\n'
