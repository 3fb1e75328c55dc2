"""Ways to classify long documents, and TF-IDF, on four sets of real documents.

    python benchmarks/document_ways.py --data DATA --folder runs --out FILE

DATA has mini_newsgroups, the Hyperpartisan articles, the archive of 100 English novels and pairs
of papers of the ACL Anthology Network. Posts and articles are split by content, with larger shares
for the smaller set. Novels are cut into excerpts, of which the model names the author: the earliest
of an author's three novels is training, the next validation, the last test. Of pairs it says
whether the first paper cites the second; no citing paper is in two splits. `longspan finetune
--compare` does the rest. The same command resumes. Posts and pairs are read whole, and as words
alone.

With `--pretrain`, two further ways start from an encoder with full attention over 256 tokens that
is pretrained first, for more than an hour, on reviews, papers and the novels of training: the first
512 tokens of a document, and the whole, by the same encoder with local attention.
"""

import argparse
import csv
import io
import os
import re
import subprocess
import sys
import tarfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from timing import environment, write_record

from longspan.results import DocumentScores, load_results, load_side_records
from longspan.tasks.documents import hyperpartisan, newsgroups
from longspan.tasks.lra import aan

NOVELS = "100_english_novels.tar.zst"
EXCERPTS = {"train": 24, "validation": 6, "test": 6}  # of a novel
EXCERPT = 1_000  # words
CITATIONS = {"train": 800, "validation": 200, "test": 400}  # pairs
POSTS, PAIRS = "posts", "citations"
WORDS = ("--set", "model.num_hidden_layers=0")
LONGEST = {POSTS: 640}  # tokens of a document, or each of a pair; as `longspan finetune` chooses
CORPUS = "mixed"
ENCODER = {
    "model.hidden_size": 128,
    "model.num_attention_heads": 2,
    "model.intermediate_size": 512,
    "model.classifier_hidden_size": 128,
    # Neighbors and distances are at hand, which a small encoder takes thousands of steps to learn.
    "model.short_convolution": 3,
    "model.position": "rotary",
    "task.length": 256,
    "training.steps": 4_000,
    "training.warmup_steps": 200,
    "training.learning_rate": 1e-3,
}
# As the recipe of the other ways: ten epochs or 200 steps, in batches as large, at the same rate.
TUNING = {"training.learning_rate": 1e-3, "training.batch_size": 32}
STEPS = {POSTS: 436, "articles": 200, "novels": 247, PAIRS: 250}
HEAD, WHOLE = (
    ("--set", "task.length=512"),
    ("--mechanism", "local", "--set", "mechanism.window=128"),
)
Rows = Iterable[tuple[str, ...]]  # texts and classes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the sources")
    parser.add_argument("--folder", type=Path, required=True, help="folder of tables and runs")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=SETS)
    parser.add_argument("--pretrain", action="store_true", help="pretrain an encoder first")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    start: tuple[str, ...] = ()
    if args.pretrain:
        start = (f"{pretrain(args.data, args.folder)}", *changes(TUNING))
    for name in args.sets:
        options = *SETS[name](args.data, args.folder), "--name", name
        whole_only = name in (POSTS, PAIRS)
        ways: list[tuple[str, ...]] = [(), WORDS] if whole_only else [("--compare",)]
        if start:
            tuned = (*start, *changes({"training.steps": STEPS[name]}))
            whole = (*tuned, *WHOLE, "--set", f"task.length={LONGEST.get(name, 1_024)}")
            ways += [whole] if whole_only else [whole, (*tuned, *HEAD)]
        for seed in args.seeds:
            for way in ways:
                run(args.folder, "finetune", *way, *options, "--seed", f"{seed}")
    if args.out:
        rows = list(read_rows(args.folder / "runs"))
        record = {"environment": environment(torch.device("cpu")), "rows": rows}
        if args.pretrain:
            record["encoder"] = read_encoder(args.folder / "runs" / "pretrain")
        write_record(record, args.out)


def run(folder: Path, *words: str) -> None:
    """Run a command with the runs and the cache of a folder."""
    where = ("--runs", f"{folder / 'runs'}", "--cache", f"{folder / 'cache'}")
    subprocess.run([sys.executable, "-m", "longspan", *words, *where], check=True)


def changes(values: dict) -> list[str]:
    return [word for pair in values.items() for word in ("--set", "{}={}".format(*pair))]


def pretrain(data: Path, folder: Path) -> Path:
    """Pretrain an encoder on reviews, papers and novels of training; return its record."""
    texts, record = folder / "texts", folder / "runs" / "pretrain" / CORPUS
    if not texts.is_dir():
        texts.mkdir()
        for author, novels in read_novels(data).items():
            (texts / f"{author}.txt").write_text(novels[0])
        reviews, papers = (
            next(data.rglob("imdb/full/train.parquet")),
            next(data.rglob("papers.parquet")),
        )
        paths = [f"{x}" for x in (texts, reviews, papers)]
        cache = ("--cache", f"{folder / 'cache'}")
        words = ("data", "import", "corpus", *paths, "--text", "text", "--name", CORPUS, *cache)
        subprocess.run([sys.executable, "-m", "longspan", *words], check=True)
    run(folder, "pretrain", "full", CORPUS, *changes(ENCODER))
    return next(record.glob("full-*.json"))


def read_encoder(folder: Path) -> dict:
    """Return what the pretrained encoder took, and its loss on masked tokens of validation."""
    (run,) = load_results([folder])
    perplexity = run.scores["validation"].metrics["perplexity"]
    return {"steps": run.steps, "seconds": run.seconds, "perplexity": perplexity}


def read_rows(folder: Path) -> Iterator[dict]:
    """Yield a row for each run, and for TF-IDF and the most frequent class of each set."""
    runs = {(x.task, x.filename): x for x in load_results([folder])}
    baselines = set()
    for scores in load_side_records(DocumentScores, [folder]):
        run, shared = runs[scores.task, scores.filename], {"set": scores.task}
        shared |= {"documents": scores.documents, "split": scores.split}
        row, *others = scores.rows
        yield {
            **shared,
            **{"name": row.name, "options": row.options, "seed": run.seed, "steps": run.steps},
            **{"seconds": row.seconds, "metrics": row.metrics, "p_value": scores.p_value},
            **{"fewer_errors": scores.fewer_errors, "covered_tokens": scores.covered_tokens},
            # Such as kernels of benchmarks/intel_kernels.py: times compare only among equals.
            "preloaded": "LD_PRELOAD" in os.environ,
        }
        for other in others:
            if (scores.task, other.name) not in baselines:
                baselines.add((scores.task, other.name))
                about = {"name": other.name, "options": other.options}
                yield {**shared, **about, "seconds": other.seconds, "metrics": other.metrics}


def write_posts(data: Path, folder: Path) -> list[str]:
    """Write the posts without headers, signatures and quotations; return options of finetune."""
    texts = []
    for post in newsgroups.read(newsgroups.find(data)):
        text = newsgroups.remove_quotes(newsgroups.remove_headers(post.text))
        if (text := newsgroups.remove_footer(text)).strip():
            texts.append((text, newsgroups.GROUPS[post.label]))
    shares = ("--validation", "0.1", "--test", "0.2")
    return ["--data", f"{write_table(folder / 'posts.csv', texts)}", *shares]


def write_articles(data: Path, folder: Path) -> list[str]:
    """Write the Hyperpartisan articles; return options of finetune."""
    articles = hyperpartisan.read(hyperpartisan.find(data))
    rows = [(x.text, hyperpartisan.CLASSES[x.label]) for x in articles]
    shares = ("--validation", "0.15", "--test", "0.3")
    return ["--data", f"{write_table(folder / 'articles.csv', rows)}", *shares]


def read_novels(data: Path) -> dict[str, list[str]]:
    """Return the novels of each author of three, by year."""
    archive = next(data.rglob(NOVELS))
    novels = defaultdict(list)  # years and texts by author
    unpacked = subprocess.run(["zstd", "-dc", archive], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(unpacked)) as tar:
        for member in tar:
            if found := re.fullmatch(r"(?:.*/)?(\w+)_\w+_(\d{4})\.txt", member.name):
                content = tar.extractfile(member)
                assert content is not None
                text = content.read().decode("utf-8-sig")
                novels[found[1]].append((int(found[2]), text))
    return {
        name: [text for _, text in sorted(x)]
        for name, x in sorted(novels.items())
        if len(x) == len(EXCERPTS)
    }


def write_novels(data: Path, folder: Path) -> list[str]:
    """Write excerpts of novels with their authors, a table for each split; return options."""
    paths, authors = {}, read_novels(data)
    for place, (split, count) in enumerate(EXCERPTS.items()):
        rows = [
            (excerpt, author)
            for author, texts in authors.items()
            for excerpt in cut(texts[place], count)
        ]
        paths[split] = write_table(folder / f"novels-{split}.csv", rows)
    return split_options(paths)


def cut(text: str, count: int) -> Iterator[str]:
    """Yield excerpts at equal distances."""
    words = text.split()
    step = max(len(words) - EXCERPT, 0) // count
    for i in range(count):
        yield " ".join(words[i * step : i * step + EXCERPT])


def write_citations(data: Path, folder: Path) -> list[str]:
    """Write the first pairs of each split, from the heads of both papers; return options."""
    rows = defaultdict(list)
    for pair in aan.read(aan.find(data)):
        if len(rows[pair.split]) < CITATIONS[pair.split]:
            heads = (" ".join(x.decode().split()[:EXCERPT]) for x in pair.texts)
            rows[pair.split].append((*heads, aan.LABELS[pair.label]))
    columns = ("text", "second", "label")
    paths = {x: write_table(folder / f"{PAIRS}-{x}.csv", rows[x], columns) for x in CITATIONS}
    return [*split_options(paths), "--pair", "second"]


def split_options(paths: dict[str, Path]) -> list[str]:
    """Return the options of finetune that name a table for each split."""
    flags = {"train": "--data", "validation": "--validation", "test": "--test"}
    return [x for split, path in paths.items() for x in (flags[split], f"{path}")]


def write_table(path: Path, rows: Rows, columns: tuple[str, ...] = ("text", "label")) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    return path


SETS = {
    POSTS: write_posts,
    "articles": write_articles,
    "novels": write_novels,
    PAIRS: write_citations,
}

if __name__ == "__main__":
    main()
