"""Traits of a mechanism."""

import dataclasses
from typing import Literal

Cost = Literal["T", "T log T", "T^1.5", "T^2"]
Growth = Literal["1", "log T", "T^0.5", "T", "T log T", "T^1.5", "T^2"]
_PER_TOKEN: dict[Cost, Growth] = {"T": "1", "T log T": "log T", "T^1.5": "T^0.5", "T^2": "T"}
# Classes of Tay et al. 2022, "Efficient Transformers: A Survey", table 1, and `dense` for attention
# to every pair. A mechanism that combines two classes is a hybrid. The survey's further classes,
# memory (global tokens) and downsampling (landmarks), join the fixed patterns and low rank. Later
# than the survey: a linear recurrence has a state of fixed size, and a convolution, which is no
# attention, weights of the distance.
Family = Literal[
    "dense",
    "fixed pattern",
    "learned pattern",
    "low rank",
    "kernel",
    "recurrence",
    "linear recurrence",
    "hybrid",
    "convolution",
]
Size = Literal["heads", "head_dim", "width", "max_length", "layer"]
Projected = Literal["qkv", "qv", "v"]
RowSums = Literal["one", "at most one", "any"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Traits:
    """Properties of a mechanism. Each is a claim with a contract test.

    Attributes:
        paper: authors, year and address; None: unpublished.
        family: technique that makes it efficient.
        cost: growth of time and memory with the length; that of an instance follows its options.
        exact: softmax over the pattern, up to a factor per row that `row_sums` allows; False: an
            approximation or another kernel function.
        row_sums: sum of the weights of a row that has keys. "one": a softmax or an average; "at
            most one": weights >= 0, and a gate, a sink without a value or an off-by-one softmax
            takes a share; "any": signed weights, or gates above one.
        causal: has a causal form.
        cross: supports cross-attention (S != T).
        global_tokens: supports `global_mask`.
        scale: supports `scale`: queries meet keys in products q . k / sqrt(D) only, whose factor a
            call can replace.
        bias: supports `bias`: an exact softmax to whose scores a call can add numbers.
        relative: supports `relative`: an exact softmax to whose scores a call can add numbers that
            depend on the distance, at the growth of `cost`.
        sink_logits: supports `sink_logits`: an exact softmax with one more term in its denominator.
        weight_dropout: supports `weight_dropout`: forms weights, of which training can drop some.
        inputs: which of q, k and v it uses; a model creates only these projections.
        mixes_queries: a row of the output depends on other queries as well (they form landmarks or
            keys), so that `query_mask` hides rows of the output but no query.
        anchored: divides a row into blocks, segments or a grid from its first position, so that
            padding there changes the result of the tokens after it.
        ignores_gaps: padding between the tokens changes nothing: no distance or block counts it.
        carries_positions: distinguishes positions by itself; a model with the position "auto" adds
            none.
        needs_layer_input: uses `layer_input`, the tensor that q, k and v were projected from.
        shares_parameter: takes `shared`, a parameter that all layers of a model may share.
        packed: `packed` computes all documents at once: the number of operations does not grow with
            that of documents. Without it they are computed one after another, with equal results.
        recomputes: a causal step computes the rows of all tokens again, at the `cost` of the whole.
            Without it a step of one token takes, on average, the share of one token (`step_cost`).
        state_size: growth of a causal mechanism's state with the tokens seen; "1": it is bounded.
            That of an instance follows its options.
        sizes: sizes that `build` passes to the constructor.
    """

    paper: str | None = None
    family: Family
    cost: Cost
    exact: bool
    row_sums: RowSums = "one"
    causal: bool = False
    cross: bool = False
    global_tokens: bool = False
    scale: bool = False
    bias: bool = False
    relative: bool = False
    sink_logits: bool = False
    weight_dropout: bool = False
    inputs: Projected = "qkv"
    mixes_queries: bool = False
    anchored: bool = False
    ignores_gaps: bool = False
    carries_positions: bool = False
    needs_layer_input: bool = False
    shares_parameter: bool = False
    packed: bool = False
    recomputes: bool = False
    state_size: Growth = "T"
    sizes: tuple[Size, ...] = ()

    @property
    def step_cost(self) -> Growth:
        """Growth of the time of a causal step of one token with the tokens seen, on average."""
        return self.cost if self.recomputes else _PER_TOKEN[self.cost]
