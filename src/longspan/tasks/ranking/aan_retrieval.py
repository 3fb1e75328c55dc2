"""Citation retrieval: rank the papers that a paper cites among all papers of a collection.

Radev et al., "The ACL Anthology Network Corpus", 2013 (AAN). The papers and citations are those of
the pairs of Long Range Arena's retrieval (Tay et al. 2021), which asks for one pair at a time.
"""

from pathlib import Path

from longspan.config import Length, setting, settings
from longspan.data import tokenizers
from longspan.data.cache import BuildOutput
from longspan.data.tokenizers import ByteTokenizer
from longspan.tasks.base import ProgressCallback
from longspan.tasks.info import TaskInfo
from longspan.tasks.lra import aan
from longspan.tasks.ranking.aan_files import collect_citations
from longspan.tasks.ranking.ranking import METRICS, RankingOptions, RankingTask
from longspan.tasks.registry import register


@settings
class AanRetrievalOptions(RankingOptions):
    """Encoding of the papers, negatives, similarity and metric."""

    query_length: Length = setting("tokens of a citing paper that are kept", 2_048)


@register
class AanRetrieval(RankingTask):
    """Papers, and the papers that they cite."""

    Options = AanRetrievalOptions
    options: AanRetrievalOptions
    info = TaskInfo(
        name="aan_retrieval",
        title="Citation retrieval (AAN)",
        summary="Rank the papers that a paper cites among all papers, by a dual encoder.",
        source="AAN pairs of the Long Range Arena release, Tay et al. 2021",
        license="none stated for the pairs; ACL papers before 2016 are CC BY-NC-SA 3.0",
        vocab_size=ByteTokenizer.vocab_size,
        num_classes=2,
        metrics=METRICS,
        head="dual_encoder",
        notes=(
            "A query is a citing paper, and every paper is a document; a paper is not ranked for "
            "itself. Splits are of citing papers: they are ordered by the sha256 of their ids, a "
            "tenth is held out for validation and a tenth for test, with all of their citations. "
            "Papers that cite each other, or have one text, are in one split. So no citation, in "
            "either direction, is in two splits; the manifest counts what they share all the same: "
            "papers that queries of both cite, and held-out papers that training queries cite. "
            "The latter are known as documents, as in any search. Citations that the pairs lack "
            "count as wrong answers. Texts are the first 10,000 bytes, as in Long Range Arena; "
            "where a short paper ends earlier, its references name the papers that it cites. "
            "Xiong et al. 2022 report one figure for document retrieval, a mean reciprocal rank "
            "(table 2); their data and candidates are not known here, so that no score of this "
            "task compares with it."
        ),
    )

    def find_source(self, data: Path | None) -> aan.AanFiles:
        """Return the files of pairs."""
        return aan.find(data)

    def split(self, text: str) -> list[str]:
        """Return the words of a paper for BM25, without the marks of letters.

        The committed records of version 1 have negatives of these words; papers are English.
        """
        return tokenizers.split_words(text.encode(), len(text))

    def build_splits(
        self, data: Path | None, scratch: Path, progress: ProgressCallback
    ) -> BuildOutput:
        """Read the papers and citations, encode them and mine hard negatives."""
        source = self.find_source(data)
        collection, counts = collect_citations(
            aan.read(source), scratch, lambda done: progress("reading AAN", done, 0)
        )
        splits, facts = self.build_collection(collection, scratch, progress)
        sizes = ", ".join(f"{len(x)} {split}" for split, x in collection.queries.items())
        return BuildOutput(
            splits=splits,
            source=f"AAN, {len(collection.documents)} papers ({sizes} queries)",
            license=self.info.license,
            facts={"source_sha256": source.checksums(), **counts, **facts},
        )
