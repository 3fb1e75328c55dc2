"""Examples that the help of each command prints, and the names of earlier versions."""

from collections.abc import Sequence

from longspan.errors import OptionError

RECORD = "runs/quick/recall/local-….json"
EXAMPLES: dict[str, tuple[str, ...]] = {
    "arena": (
        "",
        "--protocol lra-small --tasks listops --mechanisms local,full --seeds 0,1,2",
        "--protocol lra-small --dry-run",
    ),
    "train": (
        "local recall --protocol quick",
        "longformer listops --set mechanism.window=64 --set training.steps=100",
    ),
    "pretrain": ("local novels", "roberta-long novels --mechanism longformer --seed 1"),
    "finetune": (
        "runs/pretrain/novels/local-….json hyperpartisan --data FOLDER",
        "roberta-long --data reviews.csv --text text --label label",
    ),
    "eval": (RECORD, f"{RECORD} --split train --examples 5000"),
    "predict": ("runs/own/reviews/local-….json new.csv --text text --output predicted.csv",),
    "generate": ("runs/pretrain/novels/local-….json --prompt 'It was' --max-new-tokens 100",),
    "answers": ("RECORD --output answers.json",),
    "export": (f"{RECORD} --output folder --license apache-2.0",),
    "longify": ("roberta-base --mechanism longformer --max-length 4096 --output roberta-long",),
    "convert": (
        "google/bigbird-roberta-base --output bigbird",
        "bigbird --to big_bird --output back",
    ),
    "report": (
        "",
        "results/quick --wide --legend",
        "runs --section significance",
        "runs --mechanisms local,full --style paper --output table.tex",
    ),
    "analyze": (f"{RECORD} --rollout 0",),
    "context": ("runs/pretrain/novels/local-….json --max-context 1024",),
    "bench": ("--mechanisms local,linear --lengths 1024,4096", "scaling --dtypes bfloat16"),
    "list": ("", "tasks", "protocols"),
    "show": ("local", "listops", "quick"),
    "protocols check": ("lra-paper",),
    "protocols diff": ("lra-paper lra-repo --tasks listops", "quick mine.toml"),
    "data list": ("",),
    "data build": ("listops --set length=512", "text --data aclImdb"),
    "data import TASK": ("text hub", "hyperpartisan FOLDER"),
    "data import texts": (
        "reviews.csv --text text --label label",
        "FOLDER_OF_CLASSES --name mail",
    ),
    "data import summaries": ("papers.jsonl --text article --summary abstract",),
    "data import corpus": (
        "novels/ --name novels --vocab-size 16000",
        "novels/ papers.jsonl.gz --name mixed --weights 2,1 --objective next",
    ),
    "data import beir": ("scifact --name scifact",),
    "data import dpr": ("nq --name natural_questions",),
    "data tokenizer": ("novels/ --output tokens --vocab-size 16000",),
    "data verify": ("", "listops"),
    "data card": ("listops",),
    "data show": ("listops --count 3", "image --row 7 --output digit.png"),
    "results list": ("", "results --commands"),
    "results check": ("", "--contribution mine"),
    "results export": ("results/quick --output logs",),
    "results rerun": (RECORD,),
    "results diff": ("runs/quick runs/smoke", "HEAD~1 results"),
    "results score-rules": ("results/quick",),
}

# Words or a flag behind a command in earlier versions, and what to write now.
RENAMED = {
    "analyze --plot": "--figures FOLDER",
    "bench --out": "--output FILE",
    "convert --out": "--output FOLDER",
    "data show --png": "--output FILE.png",
    "data show --svg": "--output FILE.svg",
    "finetune --task": "longspan finetune CHECKPOINT TASK",
    "longify --attention": "--mechanism NAME",
    "longify --out": "--output FOLDER",
    "pretrain --start": "longspan pretrain CHECKPOINT CORPUS",
    "protocols list": "longspan list protocols",
    "protocols show": "longspan show PROTOCOL",
    "results export --schema": "longspan results export without it",
}


def refuse_earlier_names(words: Sequence[str]) -> None:
    """Refuse a command line that names a command or an option as earlier versions did.

    Raises:
        OptionError: one does; the message has the name of today.
    """
    for name, successor in RENAMED.items():
        *command, last = name.split()
        rest = words[len(command) :]
        if [*words[: len(command)]] == command and (
            any(x.partition("=")[0] == last for x in (rest if last.startswith("-") else rest[:1]))
        ):
            raise OptionError(f"longspan {name} was renamed; use {successor}")
