"""Notes for the pages of tasks: files that can be imported, and issues known elsewhere."""

import dataclasses
from typing import Any

LRA = "https://github.com/google-research/long-range-arena"
NYSTROM = "https://github.com/mlpen/Nystromformer"
MEGA = "https://github.com/facebookresearch/mega"


def link_issues(repository: str, *numbers: int) -> str:
    name = repository.rpartition("/")[2]
    return ", ".join(f"[{name} #{n}]({repository}/issues/{n})" for n in numbers)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Notes:
    files: str = ""  # allowed PATH of `longspan data import`
    known_issues: tuple[str, ...] = ()
    example: dict[str, Any] = dataclasses.field(default_factory=dict)  # options of the example


RELEASE = f"the archive `lra_release.gz` ({LRA}; 8 GB), packed or unpacked, at any depth"

PAPERS = (
    "a folder with `train.txt`, `val.txt` and `test.txt` (one JSON object a line; or `.jsonl`, "
    "each optionally with `.gz`), or one above its subfolder `{0}`, or `{0}.zip`"
)
PAPER_ISSUES = (
    "Published scores differ in the stemming of ROUGE, in the number of beams and in the length of "
    "generated abstracts: report a score with its decoding, which is in the options of the task.",
    "Some papers have no text or no abstract. They are counted and listed in `skipped.tsv`.",
)

WIKITEXT_ISSUES = (
    "The raw form (`wiki.train.raw`) has other words: perplexities of word pieces of it do not "
    "compare with those of the tokenized form, unless they are per word of that form.",
    "A line that looks like a title inside of an article, such as a formula, begins an article in "
    "code that does not ask for blank lines around it.",
)

NOTES = {
    "listops": Notes(
        files=f"{RELEASE}; or a folder with `basic_train.tsv`, `basic_val.tsv` and "
        "`basic_test.tsv`, each optionally with `.gz`",
        known_issues=(
            "The released reader numbers the symbols in an order that depends on the hash seed of "
            "the Python process: a restored checkpoint sees other symbols, which may be why users "
            f"got 17 % on test ({link_issues(LRA, 15, 60)}). Here the ids are fixed.",
            "The source text is written with parentheses, about three times as many tokens as the "
            "model reads. Bounds on the length count operators, digits and closing brackets only.",
            "Paper and code disagree about the size of the model and the number of steps "
            f"({link_issues(LRA, 16, 17, 21, 33)}): report a score with its protocol.",
        ),
        example={"min_length": 20, "max_length": 60},
    ),
    "text": Notes(
        files="the archive `aclImdb_v1.tar.gz`, its folder `aclImdb`, or a folder with "
        "`train.parquet` and `test.parquet`",
        known_issues=(
            "The data set has no validation split. Published scores are of the last checkpoint or "
            f"were selected on test ({link_issues(LRA, 22)}).",
            "The length is 1,000 in the code of Long Range Arena, the best of 1K to 4K in its "
            f"paper, and 4K in Nystromformer ({link_issues(NYSTROM, 13, 18)}): report a score "
            "with its length.",
        ),
    ),
    "retrieval": Notes(
        files=f"{RELEASE}; a folder with `new_aan_pairs.{{train,eval,test}}.tsv`, each optionally "
        "with `.gz`; or a folder with `papers.parquet` and `pairs.{train,eval,test}.tsv`",
        known_issues=(
            "The first release held no texts, and links to the anthology are dead "
            f"({link_issues(LRA, 1, 18, 45, 52)}); the texts are in `lra_release.gz`.",
            "The tables have no header and no quoting: readers that interpret quotes join lines.",
            "The recipe moves the score of one model by 20 points "
            f"({link_issues(LRA, 18)}, {link_issues(NYSTROM, 1)}): compare within a protocol only.",
        ),
    ),
    "aan_retrieval": Notes(
        files=f"that of [`retrieval`](retrieval.md): {RELEASE}; a folder with "
        "`new_aan_pairs.{train,eval,test}.tsv`, each optionally with `.gz`; or a folder with "
        "`papers.parquet` and `pairs.{train,eval,test}.tsv`",
        known_issues=(
            "Xiong et al. 2022 report a mean reciprocal rank of document retrieval (table 2), but "
            "no code of it was published.",
        ),
    ),
    "image": Notes(
        files="the archive `cifar-10-python.tar.gz`, its folder `cifar-10-batches-py`, or a folder "
        "with `train.parquet` and `test.parquet`",
        known_issues=(
            "Most code masks id 0 as padding, and with it every black pixel. Here every pixel is "
            "real.",
            "The sizes of the published models differ by more than the rules allow: 52,266 "
            f"parameters of the Transformer, 248,458 of the Performer ({link_issues(LRA, 2)}).",
            "Copies in JPEG have other pixels; the data card names the kind of copy.",
        ),
    ),
    "pathfinder": Notes(
        files=f"{RELEASE}; or a folder `pathfinder32`",
        known_issues=(
            "The paper does not say which of the three levels of difficulty is the task; it is the "
            "hard one, `curv_contour_length_14` "
            f"({link_issues(LRA, 11)}, {link_issues(NYSTROM, 12)}).",
            "Users found models that stay at 50 % with the published configurations "
            f"({link_issues(LRA, 37, 41, 60)}, {link_issues(MEGA, 3)}).",
            "Most pixels are black, and most code masks them as padding. Here every pixel is real.",
            "Long Range Arena slices the files in the order of TensorFlow Datasets, by the md5 of "
            "difficulty and `FOLDER_FILE_LINE`. Readers that take the rows in order, or permute "
            "them, hold out other images. The option `split` selects the held-out images.",
            "The generator was repaired for NumPy 2 in 2026 and rounds since then in 32 bits: 6 of "
            "10 hard images of 32 x 32 differ by one gray level. The option `gray_levels` selects "
            "the rounding.",
        ),
    ),
    "path_x": Notes(
        files=f"{RELEASE}; or a folder `pathfinder128`",
        known_issues=(
            "The release holds `pathfinder128` twice; the outer copy is reported unlearnable "
            f"({link_issues(LRA, 38)}) and is rejected here.",
            "For 256 x 256 the release has images, the repository a configuration, but the paper "
            f"has no score ({link_issues(LRA, 56)}, {link_issues(MEGA, 15)}).",
        ),
    ),
    "arxiv_summarization": Notes(
        files=f"{PAPERS.format('arxiv-dataset')}",
        known_issues=PAPER_ISSUES,
    ),
    "pubmed_summarization": Notes(
        files=f"{PAPERS.format('pubmed-dataset')} or `pubmed_sum`",
        known_issues=(
            *PAPER_ISSUES,
            "SumPubMed has other papers of PubMed in this format: its scores are not comparable.",
        ),
    ),
    "squad": Notes(
        files="a folder with `train-v1.1.json` and `dev-v1.1.json`, each optionally with `.gz`, or "
        "one above its subfolder `squad` or `qa`; other files of this format may have these names",
        known_issues=(
            "SQuAD 2.0 has questions without an answer. They are left out, counted and listed.",
            "An answer may begin or end within a word piece: even a perfect model of word pieces "
            "has an exact match below 100 %.",
        ),
    ),
    "xquad": Notes(
        files="the file `xquad.LANGUAGE.json`, such as `xquad.en.json`, optionally with `.gz`, or "
        "its folder; the language is the option `language`",
        known_issues=(
            "The set is published for evaluation of models that are trained on SQuAD. Splitting it "
            "makes a small task that trains in minutes, and whose scores compare with no paper.",
        ),
    ),
    "triviaqa": Notes(
        files="`triviaqa-rc.tar.gz`, or its unpacked folder, with the subfolders `qa` and "
        "`evidence`, or a folder above it",
        known_issues=(
            "Answers are found by distant supervision: some mentions do not answer the question.",
            "Published scores differ in the length at which documents are cut, and in whether a "
            "window that slides over them reads the rest. Here they are cut, as in Longformer: "
            "report a score with its length.",
            "The domain web scores each document, the domain wikipedia each question; their scores "
            "do not compare.",
        ),
    ),
    "hotpotqa": Notes(
        files="a folder with `hotpot_train_v1.1.json` and `hotpot_dev_distractor_v1.json`, each "
        "optionally with `.gz`, or one above its subfolder `hotpotqa` or `qa`",
        known_issues=(
            "Some supporting facts name a sentence that their paragraph does not have. They count "
            "in scores, as in the official evaluation, and are listed.",
            "The files give the text of an answer, not its place. Its mentions in the supporting "
            "sentences are marked, or else those elsewhere in their paragraphs; other code marks "
            "all mentions.",
            "The code of Longformer for HotpotQA is not published.",
        ),
    ),
    "wikihop": Notes(
        files="`qangaroo_v1.1.zip`, or its unpacked folder or its subfolder `wikihop`",
        known_issues=(
            "The answers of the test set are not public. Papers select the checkpoint on the "
            "development set and report its score.",
            "The published code of Longformer adds the scores of a candidate over the windows of "
            "a question, the paper averages them, as here.",
        ),
    ),
    "coreference": Notes(
        files="a folder with `train.english.v4_gold_conll`, `dev.english.v4_gold_conll` and "
        "`test.english.v4_gold_conll`, or the folders `train`, `development` and `test` of the "
        "shared task (`conll-2012`, or `v4/data` in it), made from OntoNotes 5 by its scripts",
        known_issues=(
            "Public code predicts mentions of any word pieces; here they are whole words.",
            "The published recipe trains the head with a higher learning rate than the "
            "Transformer; runs have one rate.",
        ),
    ),
    "text8": Notes(
        files="`text8.zip`, the unpacked file `text8`, or a folder with one of them",
        known_issues=(
            "Some papers train the reported model on the training and the validation split; here "
            "the validation split selects the checkpoint.",
        ),
    ),
    "enwik8": Notes(
        files="`enwik8.zip`, the unpacked file `enwik8`, or a folder with one of them",
        known_issues=(
            "Some code reads characters of the decoded text, which are fewer than bytes: its bits "
            "per character do not compare.",
        ),
    ),
    "wikitext_2": Notes(
        files="`wikitext-2-v1.zip`, its unpacked folder `wikitext-2`, or a folder with one of them",
        known_issues=WIKITEXT_ISSUES,
    ),
    "wikitext_103": Notes(
        files="`wikitext-103-v1.zip`, its unpacked folder `wikitext-103`, or a folder with one of "
        "them",
        known_issues=WIKITEXT_ISSUES,
    ),
    "pg19": Notes(
        files="the published folder with `train`, `validation` and `test`, or one above its "
        "subfolder `pg19`",
        known_issues=(
            "Papers report perplexity per word of models of word pieces, and scores per word piece "
            "of another tokenizer do not compare.",
        ),
    ),
    "masked_listops": Notes(example={"min_length": 20, "max_length": 60}),
    "recall": Notes(example={"length": 24, "pairs": 4, "vocabulary": 32}),
    "copying": Notes(example={"length": 32, "count": 4}),
    "in_context_recall": Notes(example={"length": 23, "keys": 4, "values": 4}),
    "noisy_recall": Notes(example={"length": 23, "keys": 4, "values": 4, "noise": 2}),
    "fuzzy_recall": Notes(example={"length": 31, "keys": 3, "values": 3, "key_size": 2}),
    "duplication": Notes(example={"length": 24}),
    "memorization": Notes(example={"length": 16, "keys": 5, "values": 5}),
}
