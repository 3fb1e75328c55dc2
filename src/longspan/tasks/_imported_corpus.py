"""Source and metadata that the tasks of imported corpora share."""

from pathlib import Path
from typing import Any, ClassVar

from longspan.data.cache import BuildOutput
from longspan.data.corpora import imports
from longspan.data.corpora.imports import CorpusDescription
from longspan.tasks.base import ProgressCallback, Task
from longspan.tasks.info import TaskInfo


class ImportedCorpus(Task):
    """Task whose documents were imported; subclasses define what is predicted."""

    folder: ClassVar[Path]
    description: ClassVar[CorpusDescription]

    def identify_source(self, data: Path | None) -> dict[str, Any]:
        """Return the identity of the documents and the tokenizer; `data` has no effect."""
        return self.description.identity

    def build_splits(
        self, data: Path | None, scratch: Path, progress: ProgressCallback
    ) -> BuildOutput:
        """Tokenize the documents of the files that were imported."""
        return imports.build_tokens(self.folder, self.description, scratch, progress)


def make_info(
    description: CorpusDescription,
    *,
    summary: str,
    metrics: tuple[str, ...],
    chance: float | None,
    head: str,
    notes: str,
) -> TaskInfo:
    """Return the metadata of the task of a corpus; arguments are those of `TaskInfo`."""
    paths = ", ".join(Path(source["path"]).name for source in description.sources)
    ids = description.tokenizer["ids"]
    return TaskInfo(
        name=description.name,
        version=1,
        title=f"{description.name} ({paths})",
        summary=summary,
        source=f"{paths}, imported",
        checksum=None,
        license="that of the files",
        sizes=description.documents,
        vocab_size=ids,
        num_classes=ids,
        metrics=metrics,
        chance=chance,
        head=head,
        published=(),
        notes=notes,
    )
