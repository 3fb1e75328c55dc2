"""Tasks made of imported summaries: one class of `OwnSummaries` for each import, by its name."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from longspan.data.questions.report import Report
from longspan.data.summaries import stored
from longspan.data.summaries.document import SummarizedDocument
from longspan.data.summaries.stored import SummariesDescription
from longspan.data.tokenizers import ByteTokenizer
from longspan.tasks._summaries import SummaryTask
from longspan.tasks._summary_options import METRICS
from longspan.tasks.base import SPLITS, Split, Task
from longspan.tasks.imported import imported_names, make_class, register_imported
from longspan.tasks.info import TaskInfo
from longspan.wording import first_of

_NOTES = (
    "Unless files were given for the splits, the different texts are ordered by their sha256, and "
    "the first ones are held out. Equal texts are in one split. Texts are split into sentences "
    "after periods, question and exclamation marks, and line breaks. ROUGE counts words of any "
    "script; with `rouge=rouge-score` it is the published one, of a-z and 0-9 alone."
)


class OwnSummaries(SummaryTask):
    """Texts of an imported file and their summaries; subclasses are made by `_make`."""

    is_own = True
    folder: ClassVar[Path]
    description: ClassVar[SummariesDescription]

    @property
    def sizes(self) -> dict[Split, int | None]:
        """Rows by split."""
        return {split: self.description.sizes[split] for split in SPLITS}

    def identify_source(self, data: Path | None) -> dict[str, Any]:
        """Return the identity of the imported rows; `data` has no effect."""
        return {"form": "import", "sha256": self.description.rows_sha256}

    def read(
        self, data: Path | None, reports: Mapping[Split, Report]
    ) -> Iterator[tuple[Split, SummarizedDocument]]:
        """Yield the imported rows."""
        known = {str(split): split for split in SPLITS}
        for split, one in stored.read_summaries(self.folder, self.description):
            yield known[split], one


def register_own_summaries(cache: Path) -> list[str]:
    """Register the imported summaries in a cache as tasks; return their names.

    See `register_imported` for those of another cache and damaged ones.
    """
    return register_imported(OwnSummaries, stored.SUMMARIES, cache, _make)


def own_summary_names() -> list[str]:
    """Return the names of the registered tasks that are imported summaries."""
    return imported_names(OwnSummaries)


def _make(folder: Path, description: SummariesDescription) -> type[Task]:
    """Return the task class of an import."""
    files, columns = first_of(description.files), description.columns
    info = TaskInfo(
        name=description.name,
        version=2,
        title=f"{description.name} ({files})",
        summary=f"Write {columns['summary']!r}, the summary of {columns['text']!r}.",
        source=f"{files}, imported",
        checksum=None,
        license="that of the file",
        sizes=description.sizes,
        vocab_size=ByteTokenizer.vocab_size + 1,
        num_classes=ByteTokenizer.vocab_size + 1,
        metrics=METRICS["unicode"],
        chance=None,
        head="seq2seq",
        published=(),
        notes=_NOTES,
    )
    return make_class(OwnSummaries, info, folder, description)
