"""Dual encoder: embeddings of queries and documents whose similarity ranks the documents.

Karpukhin et al. 2020, Dense passage retrieval, section 3.2 (https://arxiv.org/abs/2004.04906): the
documents of the other queries in a batch are the negatives.
"""

import dataclasses
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.modeling_outputs import ModelOutput

from longspan.attention.dispatch import without_autocast
from longspan.attention.ops.precision import at_least_float32
from longspan.errors import InputError, OptionError
from longspan.models.base import LongspanOutput
from longspan.models.config import LongspanConfig
from longspan.models.heads.base import HeadModel, Shapes, encode_texts, exclude
from longspan.models.heads.losses import label_loss
from longspan.models.inputs import TextInputs, TokenIds, TokenMask
from longspan.models.model import LongspanModel
from longspan.shapes import Bool, Float, Int, Mask

DocumentIds = Int[Tensor, "D U"]
DocumentMask = Mask[Tensor, "D U"]
NegativeIds = Int[Tensor, "B N V"]
NegativeMask = Mask[Tensor, "B N V"]
Embedded = tuple[Tensor | None, LongspanOutput | None]


@dataclasses.dataclass
class DualEncoderOutput(ModelOutput):
    """Output of a dual encoder.

    Attributes:
        loss: mean cross entropy of each query's document among all documents of the batch, plus the
            mechanisms' auxiliary losses in training.
        similarities: of queries and documents (B, D), followed by those of queries and all hard
            negatives (B, B N), row by row; the lowest number of their type for negatives without
            real tokens, and for those that answer the query too.
        query_embeddings: embeddings of the queries (B, M), or None.
        document_embeddings: embeddings of the documents (D, M), or None.
        negative_embeddings: embeddings of the hard negatives (B, N, M), or None.
    """

    loss: Float[Tensor, ""] | None = None
    similarities: Float[Tensor, "B _"] | None = None
    query_embeddings: Float[Tensor, "B M"] | None = None
    document_embeddings: Float[Tensor, "D M"] | None = None
    negative_embeddings: Float[Tensor, "B N M"] | None = None


class LongspanDualEncoder(HeadModel):
    """Transformers that embed queries and documents as their pooled states.

    With `shared_towers` one Transformer embeds both, otherwise `document_model` embeds the
    documents. `similarity` is the dot product or the cosine of two embeddings; with "cosine" the
    embeddings have norm one, so that an index of dot products ranks the documents.

    A tower is a `LongspanModel`: `encoder.model.save_pretrained(folder)` saves that of the queries.
    In sentence-transformers, `Transformer(folder)` loads it, and `Pooling` with the mode "mean"
    computes the embeddings of `pooling="mean"`, "max" those of "max", "cls" those of "first", and
    "lasttoken" those of "last". There is no counterpart of `pooling="cls"`, whose summary token is
    no input.
    """

    main_input_name = "query_input_ids"
    card_kind = "sentence-similarity"
    texts = ("query_input_ids", "document_input_ids")
    compares_examples = True
    has_one_loss = True
    document_model: LongspanModel | None

    def __init__(self, config: LongspanConfig):
        super().__init__(config)
        self.document_model = None if config.shared_towers else LongspanModel(config)
        self.post_init()

    def copy_query_tower(self) -> None:
        """Give the document tower the weights of the query tower.

        A checkpoint of a `LongspanModel` has weights of one tower: `from_pretrained` loads them
        into the query tower.

        Raises:
            OptionError: there is one tower only.
        """
        if self.document_model is None:
            raise OptionError("shared_towers=True has one tower, which needs no copy")
        self.document_model.load_state_dict(self.model.state_dict())

    def encode_query(
        self,
        input_ids: TokenIds,
        attention_mask: TokenMask | None = None,
        global_attention_mask: TokenMask | None = None,
    ) -> Float[Tensor, "B M"]:
        """Return the embeddings of queries; see `LongspanModel.forward` for the inputs."""
        inputs = TextInputs(input_ids, attention_mask, global_attention_mask)
        return cast(Tensor, self._embed(self.model, inputs, "queries")[0])

    def encode_document(
        self,
        input_ids: TokenIds,
        attention_mask: TokenMask | None = None,
        global_attention_mask: TokenMask | None = None,
    ) -> Float[Tensor, "B M"]:
        """Return the embeddings of documents; see `LongspanModel.forward` for the inputs."""
        inputs = TextInputs(input_ids, attention_mask, global_attention_mask)
        return cast(Tensor, self._embed(self._document_tower, inputs, "documents")[0])

    def forward(
        self,
        query_input_ids: TokenIds | None = None,
        document_input_ids: DocumentIds | None = None,
        query_attention_mask: TokenMask | None = None,
        document_attention_mask: DocumentMask | None = None,
        query_global_attention_mask: TokenMask | None = None,
        document_global_attention_mask: DocumentMask | None = None,
        negative_input_ids: NegativeIds | None = None,
        negative_attention_mask: NegativeMask | None = None,
        negative_global_attention_mask: NegativeMask | None = None,
        document_numbers: Int[Tensor, " D"] | None = None,
        negative_numbers: Int[Tensor, "B N"] | None = None,
        answer_numbers: Int[Tensor, "B A"] | None = None,
        return_loss: bool = True,
        return_dict: bool | None = None,
    ) -> DualEncoderOutput | tuple:
        """Compare each query with all documents of the batch.

        Without a loss, queries or documents may be left out: the others are embedded.

        Args:
            query_input_ids: token ids of the queries.
            document_input_ids: token ids of the documents; with a loss, document i answers query i,
                and no other one does unless `answer_numbers` says so.
            query_attention_mask: see `LongspanModel.forward`, as for the other masks.
            document_attention_mask: mask of the documents.
            query_global_attention_mask: global tokens of the queries.
            document_global_attention_mask: global tokens of the documents.
            negative_input_ids: token ids of N documents for each query that do not answer it, such
                as those that a lexical search ranks high. Every query has all of them as negatives.
            negative_attention_mask: mask of the negatives; one without real tokens is padding.
            negative_global_attention_mask: global tokens of the negatives.
            document_numbers: number that identifies each document.
            negative_numbers: likewise, of each negative.
            answer_numbers: numbers of the documents that answer each query, -1 for padding. Those
                of them that are other columns of its similarities are no negatives of the query.
            return_loss: whether to compute the loss.
            return_dict: False: return a tuple.

        Raises:
            InputError: the Transformer refuses the inputs, with a loss there are not as many
                documents as queries, or documents have no numbers to compare with those of answers.
        """
        if return_loss:
            _check_pairs(query_input_ids, document_input_ids)
        texts = [
            TextInputs(query_input_ids, query_attention_mask, query_global_attention_mask),
            TextInputs(document_input_ids, document_attention_mask, document_global_attention_mask),
            TextInputs(negative_input_ids, negative_attention_mask, negative_global_attention_mask),
        ]
        queries, of_queries = self._embed(self.model, texts[0], "queries")
        documents, of_documents = self._embed(self._document_tower, texts[1], "documents")
        negatives, of_negatives = self._embed_negatives(texts[2])
        similarities = _compare(queries, documents, negatives, texts[2].real_parts)
        if similarities is not None and answer_numbers is not None:
            columns = _join_numbers(similarities, document_numbers, negative_numbers)
            similarities = exclude(similarities, ~_are_other_answers(answer_numbers, columns))
        loss = self._contrastive_loss(cast(Tensor, similarities)) if return_loss else None
        fields = {
            "similarities": similarities,
            "query_embeddings": queries,
            "document_embeddings": documents,
            "negative_embeddings": negatives,
        }
        outputs = [x for x in (of_queries, of_documents, of_negatives) if x is not None]
        return self.finish(DualEncoderOutput, outputs, loss, {"return_dict": return_dict}, **fields)

    @staticmethod
    def scores(output: Any) -> Float[Tensor, "B _"]:
        """Return the similarities of each query, that of its own document first: class 0.

        The columns of the first B documents are rotated, so that document i is first in row i.
        """
        B, similarities = len(output.similarities), output.similarities
        places = torch.arange(B, device=similarities.device)
        order = (places[:, None] + places) % B
        return torch.cat((similarities[:, :B].gather(1, order), similarities[:, B:]), dim=1)

    @classmethod
    def label_shapes(cls, shapes: Shapes) -> Shapes:
        """Return nothing: documents are in the order of their queries."""
        return {}

    @property
    def _document_tower(self) -> LongspanModel:
        return self.model if self.document_model is None else self.document_model

    def _embed_negatives(self, texts: TextInputs) -> Embedded:
        """Return the embeddings (B, N, M) of hard negatives."""
        flat = texts.flatten_parts("candidates")
        embeddings, encoded = self._embed(self._document_tower, flat, "negatives")
        return None if embeddings is None else embeddings.unflatten(0, texts.shape[:2]), encoded

    def _embed(self, tower: LongspanModel, texts: TextInputs, name: str) -> Embedded:
        """Return the embeddings of texts and the output of their Transformer, or None."""
        if all(x is None for x in texts):
            return None, None
        encoded = encode_texts(tower, texts, name=name)
        pooled = cast(Tensor, encoded.pooler_output)
        if self.config.similarity == "cosine":
            pooled = F.normalize(at_least_float32(pooled), dim=-1).to(pooled.dtype)
        return pooled, encoded

    def _contrastive_loss(self, similarities: Tensor) -> Tensor:
        """Return the mean cross entropy of the documents that answer their queries."""
        scale = self.config.similarity_scale
        if scale is None:
            scale = 20.0 if self.config.similarity == "cosine" else 1.0
        scores = float(scale) * at_least_float32(similarities)
        answers = torch.arange(len(scores), device=scores.device)
        loss = label_loss(scores, answers)
        if not self.config.symmetric_loss:
            return loss
        # Hard negatives answer no query, so there is none to find for them.
        return (loss + label_loss(scores[:, : len(scores)].mT, answers)) / 2


def _check_pairs(queries: Tensor | None, documents: Tensor | None) -> None:
    counts = [0 if x is None else len(x) for x in (queries, documents)]
    if counts[0] != counts[1] or queries is None:
        raise InputError(
            f"each query must have its document, got {counts[0]} queries and {counts[1]} "
            "documents; pass return_loss=False to rank documents or to embed texts"
        )


def _compare(
    queries: Tensor | None,
    documents: Tensor | None,
    negatives: Tensor | None,
    real: Tensor | None,
) -> Float[Tensor, "B _"] | None:
    """Return the similarities of queries and all documents, the lowest number for padding.

    They are of float32 or wider, as in a ranking: half precision rounds near ones to one number.
    """
    if queries is None or documents is None:
        return None
    queries, documents = at_least_float32(queries), at_least_float32(documents)
    with without_autocast(queries.device):
        similarities = queries @ documents.mT
        if negatives is None:
            return similarities
        negative_similarities = queries @ at_least_float32(negatives).flatten(0, 1).mT
    negative_similarities = exclude(negative_similarities, None if real is None else real.flatten())
    return torch.cat((similarities, negative_similarities), dim=1)


def _join_numbers(
    similarities: Tensor, documents: Tensor | None, negatives: Tensor | None
) -> Int[Tensor, " _"]:
    """Return the number of the document of each column of the similarities."""
    numbers = [x.flatten() for x in (documents, negatives) if x is not None]
    count = sum(map(len, numbers))
    if count != similarities.shape[1]:
        raise InputError(
            f"answer_numbers needs document_numbers (and negative_numbers) of all "
            f"{similarities.shape[1]} documents and negatives, got {count}"
        )
    return torch.cat(numbers)


def _are_other_answers(answers: Tensor, columns: Tensor) -> Bool[Tensor, "B _"]:
    """Return which columns have a document that answers the query, apart from its own one."""
    return (answers.unsqueeze(-1) == columns).any(1).fill_diagonal_(False)


HEAD = LongspanDualEncoder
