"""Archives and folders as they are downloaded, with the further files that they have."""

import tarfile
import zipfile

import pytest

from conll_files import column_document
from longspan.tasks import SPLITS, build
from question_files import published

SAMPLES = "format_samples/hf_datasets_2.4.0_dummy.tar.gz"
# Folder of the samples, name of the download, its other files, and its sizes.
ARCHIVES = {
    "arxiv_summarization": (
        "scientific_papers_arxiv/arxiv-dataset.zip",
        "arxiv-dataset.zip",
        {"arxiv-dataset/vocab": "the 9\n", "__MACOSX/arxiv-dataset/._train.txt": "x"},
        {"train": 2, "validation": 2, "test": 2},
    ),
    "pubmed_summarization": (
        "scientific_papers_pubmed/pubmed-dataset.zip",
        "pubmed-dataset.zip",
        {"pubmed-dataset/vocab": "the 9\n"},
        {"train": 2, "validation": 2, "test": 2},
    ),
    "wikihop": (
        "wiki_hop",
        "qangaroo_v1.1.zip",
        {f"qangaroo_v1.1/medhop/{x}.json": "[]" for x in ("train", "dev")},
        {"train": 1, "validation": 1, "test": 2},
    ),
    "triviaqa": (
        "trivia_qa/triviaqa-rc.tar.gz",
        "triviaqa-rc.tar.gz",
        {"README": "x", "qa/verified-web-dev.json": "{}"},
        {"train": 2, "validation": 2, "test": 6},
    ),
}


def packed(path, folder, others):
    """Write a zip or tar of a folder and further files."""
    files = {str(x.relative_to(folder)): x.read_text() for x in folder.rglob("*") if x.is_file()}
    for name, text in others.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, text in {**files, **others}.items():
                archive.writestr(name, text)
    else:
        with tarfile.open(path, "w:gz") as archive:
            for one in folder.iterdir():
                archive.add(one, one.name)
    return path


@pytest.mark.parametrize("name", ARCHIVES)
def test_published_archives_are_read_as_they_are_downloaded(tmp_path, name):
    """They have the sizes of the samples, and the examples of the unpacked folder."""
    sample, file, others, sizes = ARCHIVES[name]
    with tarfile.open(published(SAMPLES)) as tar:
        members = [x for x in tar.getmembers() if x.name.startswith(f"{sample}/")]
        tar.extractall(tmp_path, members=members, filter="data")
    archive = packed(tmp_path / file, tmp_path / sample, others)
    checksums = []
    for place, data in (("packed", archive), ("folder", tmp_path / sample)):
        task = build(name, {"domain": "web"} if name == "triviaqa" else {})
        task.open(tmp_path / place, data)
        assert {split: task.size(split) for split in SPLITS} == sizes
        checksums.append([task._examples(split).checksum() for split in SPLITS])
    assert checksums[0] == checksums[1]


def write_release(root):
    """Write the folder of CoNLL-2012: two versions, two languages, and files without words."""
    for version, count in (("v4", 3), ("v12", 4)):
        for part in ("train", "development", "test"):
            for language in ("english", "chinese"):
                for n in range(count + (language == "chinese")):
                    name = f"nw/made/00/{part}_{n:04d}"
                    stem = f"conll-2012/{version}/data/{part}/data/{language}/annotations/{name}"
                    path = root / f"{stem}.{version}_gold_conll"
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(column_document(name, n))
                    for other in ("gold_skel", "auto_conll"):
                        (root / f"{stem}.{version}_{other}").write_text("[WORD]")
    return root


@pytest.mark.parametrize("place", [".", "conll-2012", "conll-2012/v4", "conll-2012/v4/data"])
def test_folder_of_the_shared_task_is_read_at_every_level(tmp_path, place):
    folder = write_release(tmp_path / "download")
    for language, count in (("english", 3), ("chinese", 4)):
        task = build("coreference", {"length": 64, "language": language})
        task.open(tmp_path / "cache", folder / place)
        assert [task.size(split) for split in SPLITS] == [count] * 3


def test_later_annotations_are_read_by_their_folder(tmp_path):
    task = build("coreference", {"length": 64})
    task.open(tmp_path / "cache", write_release(tmp_path / "download") / "conll-2012" / "v12")
    assert [task.size(split) for split in SPLITS] == [4] * 3
