"""Tasks made of imported collections in the layout of BEIR: one class for each import."""

from pathlib import Path
from typing import ClassVar

from longspan.config import Length, setting, settings
from longspan.data.cache import BuildOutput
from longspan.tasks.base import ProgressCallback, Task
from longspan.tasks.imported import ImportedTask, make_task, makes_tasks
from longspan.tasks.ranking.imports import BeirDescription, load_collection
from longspan.tasks.ranking.ranking import METRICS, RankingOptions, RankingTask

_NOTES = (
    "A document has its title before its text. As in BEIR's evaluation, a document with the id of "
    "a query is not ranked for it. Unless the folder judges a split, the different texts of the "
    "training queries are ordered by their sha256, and the first ones are held out. A query whose "
    "text is in a held-out split too is left out of training. Documents that are not judged count "
    "as wrong answers. Judgments of documents that the corpus lacks are left out; trec_eval keeps "
    "them, as answers that are never found."
)


@settings
class BeirOptions(RankingOptions):
    """Encoding of documents and queries, negatives, similarity and metric."""

    query_length: Length = setting("tokens of a query that are kept", 256)


class BeirTask(ImportedTask, RankingTask):
    """Queries and documents of an imported collection; subclasses are made by `_make`."""

    Options = BeirOptions
    options: BeirOptions
    description: ClassVar[BeirDescription]

    def build_splits(
        self, data: Path | None, scratch: Path, progress: ProgressCallback
    ) -> BuildOutput:
        """Encode the documents and queries, and mine hard negatives."""
        description = self.description
        progress(f"encoding {description.name}", 0, description.documents)
        collection = load_collection(self.folder, description, scratch)
        splits, facts = self.build_collection(collection, scratch, progress)
        return BuildOutput(
            splits=splits,
            facts={
                "files": description.files,
                "splits": description.splits,
                "left_out": description.counts,
                "unknown": description.unknown,
                **facts,
            },
        )


@makes_tasks(BeirDescription)
def _make(folder: Path, description: BeirDescription) -> type[Task]:
    """Return the task class of an import."""
    return make_task(
        BeirTask,
        folder,
        description,
        ", ".join(description.files),
        version=2,
        summary=f"Rank {description.documents:,} documents for each query, by a dual encoder.",
        num_classes=2,
        metrics=METRICS,
        head="dual_encoder",
        notes=_NOTES,
    )
