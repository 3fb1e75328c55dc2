"""Notes for the pages of mechanisms: the idea in plain words, when to use it, and relatives.

A mechanism without an entry has a page too, which starts with its own docstring.
"""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Notes:
    idea: str
    use: tuple[str, ...]  # situations in which the mechanism fits
    avoid: tuple[str, ...]  # situations in which another one fits better
    relatives: dict[str, str]  # mechanism: the difference


NOTES = {
    "full": Notes(
        idea=(
            "Each token asks a question, its query. Every token offers a label, its key, and a "
            "content, its value. The better query and key match, the larger the weight of the "
            "pair; the output is the weighted mean of the values. So any token can read any other "
            "in one layer, however far away it is. The price is that every query meets every key: "
            "twice the length costs four times the time."
        ),
        use=(
            "The length is affordable. Begin here: all other mechanisms are compared with it.",
            "Tokens must look up one particular token anywhere in the input.",
            "Queries and keys come from different sequences (cross-attention).",
        ),
        avoid=(
            "Inputs are so long that the square of the length dominates the time.",
            "Decoding is long: the cache keeps the key and value of every token.",
        ),
        relatives={
            "local": "the same softmax over nearby tokens only",
            "bigbird": "the same softmax over a sparse set of pairs",
            "linear": "all pairs, at linear cost, with another weight in place of the softmax",
        },
    ),
    "local": Notes(
        idea=(
            "Much of what a token needs is close to it. Each token attends to the tokens at most w "
            "positions away: its window slides along with it. Layers pass information on, as in a "
            "convolution: after L layers a token depends on tokens up to L times w positions away."
        ),
        use=(
            "Neighbors carry the information: characters, pixels, language modeling.",
            "Cost must grow in proportion to the length, with an exact softmax.",
            "Decoding with a cache that stops growing.",
            "Texts without end: `sink_tokens` keeps the first tokens in sight and in the cache.",
        ),
        avoid=(
            "A token must read another that is further away than all layers together reach.",
            "One summary token must collect the whole input: it needs global tokens, see "
            "`longformer`.",
        ),
        relatives={
            "blockwise": "a window that moves in steps of a block",
            "dilated": "a window with gaps, which reaches further",
            "longformer": "the same window, and global tokens",
            "transformer_xl": "a segment and a memory in place of a window",
        },
    ),
    "dilated": Notes(
        idea=(
            "A window with gaps: a token attends to every g-th token around it. It compares as "
            "many pairs as a window without gaps and reaches g times as far. One layer sees only "
            "every g-th token; heads or layers with different gaps fill in the others."
        ),
        use=(
            "Reach matters more than resolution, at the cost of a window.",
            "Heads or layers can have different gaps, such as 1 below and larger ones above.",
        ),
        avoid=(
            "All heads and layers have the same gap: tokens in different residue classes then "
            "never exchange information.",
            "Adjacent tokens matter, as in text: use `local` in some heads.",
        ),
        relatives={
            "local": "no gaps",
            "longformer": "dilation in chosen heads, and global tokens",
            "strided_local": "gaps so large that a group spans the whole input",
        },
    ),
    "longformer": Notes(
        idea=(
            "Most tokens attend to a window of neighbors. A few chosen tokens are global: they "
            "attend to all tokens and all tokens attend to them. A classification token, or the "
            "tokens of a question, thus collects and spreads information over the whole document "
            "in one layer. Global tokens may have projections of their own."
        ),
        use=(
            "Long documents with a token, or a question, that must read all of it: classification, "
            "question answering.",
            "The window should differ between layers, or be dilated in some heads.",
            "Checkpoints published for Longformer are the starting point.",
            "Decoding with a window and sink tokens, in a bounded cache (`sink_tokens`).",
        ),
        avoid=(
            "No token has a special role, and every token must find a distant one.",
            "Decoding with per-sample global tokens: steps have no `global_mask`.",
        ),
        relatives={
            "local": "the window alone",
            "dilated": "the dilated window alone",
            "bigbird": "blocks in place of a window, and random blocks",
            "long_short": "learned summaries in place of global tokens",
        },
    ),
    "blockwise": Notes(
        idea=(
            "The sequence is cut into blocks of b tokens. All tokens of a block see the same keys: "
            "their own block and half a block on either side. The neighborhood moves in steps of a "
            "block instead of one token, so the work is a few dense products of equal size, which "
            "hardware does fast."
        ),
        use=(
            "As for `local`, where speed matters more than an exactly centered window.",
            "Decoding with a cache that stops growing.",
        ),
        avoid=(
            "A token must read another that is further away than all layers together reach.",
            "Inputs are padded on the left, which moves the grid of blocks.",
        ),
        relatives={
            "local": "a window around each token",
            "disjoint": "blocks without overlap",
            "bigbird": "blocks, with global tokens and random blocks",
        },
    ),
    "disjoint": Notes(
        idea=(
            "The sequence is cut into blocks, and each token attends within its own block. It is "
            "full attention on short pieces that are side by side. Nothing passes from one block "
            "to another, in any number of layers, except through global tokens."
        ),
        use=(
            "A lower bound: it shows how much of a task can be solved within a block.",
            "The input consists of independent pieces of equal length.",
        ),
        avoid=(
            "Information must cross the border of a block. `blockwise` does that at similar cost.",
        ),
        relatives={
            "blockwise": "half a block of overlap on either side",
            "sinkhorn": "the own block, and one that is chosen by content",
        },
    ),
    "bigbird": Notes(
        idea=(
            "Three kinds of connections in one pattern of blocks: neighbors, a few global blocks "
            "that see and are seen by all, and a few blocks drawn at random for each block. The "
            "random and global connections give a short path between any two tokens over a few "
            "layers, as random edges do in a graph."
        ),
        use=(
            "Long documents where both local context and distant passages matter.",
            "An encoder that should work without a choice of global tokens (form `itc`).",
        ),
        avoid=(
            "Short inputs: with few blocks the pattern covers nearly all pairs and costs more than "
            "full attention.",
            "One token must find another by content in one layer: most pairs are not connected.",
        ),
        relatives={
            "longformer": "a sliding window and chosen global tokens, nothing random",
            "blockwise": "the neighboring blocks alone",
            "sparse_transformer": "a regular grid in place of random blocks",
        },
    ),
    "sparse_transformer": Notes(
        idea=(
            "Each token attends to its neighbors and to a regular grid of distant tokens, each "
            "about the square root of the length. A neighbor of any distant token is on its grid, "
            "so two layers connect every pair of tokens."
        ),
        use=(
            "The input has a period, such as the width of an image or a bar of music: set the "
            "stride to it.",
            "Every token must be reachable within two layers, by a fixed pattern.",
        ),
        avoid=(
            "The length varies widely and the stride is not set: it follows `max_length`.",
            "Cost must grow in proportion to the length.",
        ),
        relatives={
            "local": "the near keys alone",
            "strided_local": "the far keys alone",
            "bigbird": "random blocks in place of a grid",
        },
    ),
    "strided_local": Notes(
        idea=(
            "Token t belongs to group t modulo m, and each token attends within its group: to "
            "tokens at multiples of m positions away, never to its neighbors. It is the pattern "
            "that the released code of Long Range Arena computes under the name local attention."
        ),
        use=("Reproducing the local attention row of Long Range Arena.",),
        avoid=(
            "Anything else: groups never exchange information, in any number of layers.",
            "A model of causal sequences: there is no causal form.",
        ),
        relatives={
            "local": "the window that the name local attention stands for",
            "dilated": "gaps of a chosen size",
            "sparse_transformer": "neighbors and a grid together",
        },
    ),
    "reformer": Notes(
        idea=(
            "A softmax is dominated by the few keys that are most similar to the query. Locality-"
            "sensitive hashing finds candidates without comparing all pairs: similar vectors "
            "probably fall into the same bucket. Tokens are sorted by bucket and cut into chunks, "
            "and each token attends within its chunk and the one before. Several rounds of hashing "
            "make it less probable that a similar pair is missed."
        ),
        use=(
            "Tokens must find similar tokens anywhere in a long input.",
            "More rounds can be bought: quality grows with `hashes`, and so does the cost.",
        ),
        avoid=(
            "Queries and keys must differ: one projection serves both.",
            "Decoding with a small cache: it keeps every token.",
        ),
        relatives={
            "sinkhorn": "blocks are sorted, by a learned rule, instead of tokens by hash",
            "full": "the softmax over all keys",
        },
    ),
    "sinkhorn": Notes(
        idea=(
            "The sequence is cut into blocks. The model learns to sort the blocks, so that the "
            "block which matters comes next to the block that needs it. Each token attends to its "
            "own block and to the one that was sorted next to it. Sorting is soft, a weighted "
            "mixture of blocks, so that it can be trained; Sinkhorn's normalization of rows and "
            "columns makes the mixture close to a permutation."
        ),
        use=(
            "Each part of the input needs one other part, and which one depends on the content.",
            "A learned pattern is wanted at the cost of a fixed one.",
        ),
        avoid=(
            "A token needs several distant parts: it sees one sorted block.",
            "A mixture of several blocks blurs single tokens, as in exact lookups.",
            "Decoding with a small cache: it keeps every token.",
        ),
        relatives={
            "disjoint": "the own block alone",
            "reformer": "tokens are grouped by hash instead",
        },
    ),
    "moba": Notes(
        idea=(
            "The sequence is cut into blocks, and each block is summarized by the mean of "
            "its keys. "
            "Each query compares itself with these means, and attends to its own block and to the "
            "few blocks that match best, token by token, in one softmax. Which blocks are read "
            "depends on the content, separately for each query and head, and nothing is added to "
            "be learned: the choice improves because queries and keys do."
        ),
        use=(
            "Long inputs in which each token needs a few passages, and which ones is known only "
            "from the content.",
            "A trained model with full attention should read less: there are no new parameters, "
            "and with enough blocks the output is the same.",
        ),
        avoid=(
            "Inputs of a few blocks: nothing is saved.",
            "A single token must be recognized within a block of others: the mean hides it.",
            "Decoding with a small cache: it keeps every token.",
        ),
        relatives={
            "native_sparse": "compressed blocks and a window beside the selected blocks",
            "indexed": "single keys, selected by a part that is trained for it",
            "bigbird": "blocks are drawn at random instead",
        },
    ),
    "native_sparse": Notes(
        idea=(
            "Three views of the past in one layer. The first is coarse: groups of tokens are "
            "compressed to one key and value each, and every query reads all of them. Their "
            "weights show where to look closely: the second view has all tokens of the blocks "
            "with the largest weights. The third is a window of neighbors. Gates, computed from "
            "the token, add the three."
        ),
        use=(
            "Long inputs that need an overview, exact passages and neighbors at once.",
            "Training a sparse model from the start: the compressed view has gradients, so that "
            "the selection learns.",
        ),
        avoid=(
            "Short inputs: three views of little cost more than one of all.",
            "Decoding with a small cache: it keeps every token.",
        ),
        relatives={
            "moba": "the selected blocks alone, by means of keys",
            "long_short": "a window and a summary of everything, nothing selected",
            "compressive": "old tokens are compressed, and the originals forgotten",
        },
    ),
    "indexed": Notes(
        idea=(
            "A small second attention, the indexer, looks at all pairs first. Its products are "
            "cheap: few heads of small width. Each query then attends, with all heads, to the keys "
            "with the highest scores of the indexer and to no others. The indexer is trained by a "
            "loss of its own, to give high scores to the keys that the attention weighs most."
        ),
        use=(
            "Single tokens anywhere in the input must be found, not passages.",
            "A trained model with full attention should read less: the indexer is trained "
            "beside it, and changes no other weight.",
        ),
        avoid=(
            "Speed on CPU: all pairs are scored, and all keys are multiplied; a training step "
            "takes longer than with `full`. A few new tokens of a long text gather their keys.",
            "Training without the auxiliary loss: the indexer then stays random.",
            "Decoding with a small cache: it keeps every token.",
        ),
        relatives={
            "moba": "blocks in place of single keys, without a part to train",
            "full": "the softmax over all keys",
        },
    ),
    "linformer": Notes(
        idea=(
            "A long list of keys holds less information than its length suggests. A learned matrix "
            "mixes the keys of all positions into a fixed number of slots, and the values in the "
            "same way. Queries attend to the slots, so the cost per token no longer depends on the "
            "length."
        ),
        use=(
            "Encoders with inputs of one, fixed maximum length.",
            "Cross-attention to a long input.",
        ),
        avoid=(
            "Lengths beyond the one at construction: the mixing matrices have a column for each "
            "position.",
            "Causal models: every slot mixes the future.",
            "Parameters are scarce: the matrices grow with the length, unless `projection` is "
            "`mean` or `max`.",
        ),
        relatives={
            "nystrom": "slots are means of segments, without parameters for each position",
            "long_short": "slots are computed from the content, and a window is added",
            "compressive": "old tokens are compressed, step by step",
        },
    ),
    "nystrom": Notes(
        idea=(
            "The table of weights between all pairs is nearly redundant: a few of its rows and "
            "columns determine the others. Segments of the input are averaged to landmarks. The "
            "mechanism computes the weights from tokens to landmarks, between landmarks, and from "
            "landmarks to tokens, and reconstructs the whole table from these three small ones. A "
            "convolution over the values adds local detail."
        ),
        use=(
            "Encoders in which tokens mix information globally and smoothly.",
            "Speed at long lengths, without parameters for each position.",
        ),
        avoid=(
            "Causal models: landmarks average the future.",
            "Exact lookups of single tokens, which an average over a segment hides.",
        ),
        relatives={
            "linformer": "learned mixtures in place of landmarks",
            "performer": "random features in place of landmarks",
        },
    ),
    "linear": Notes(
        idea=(
            "In a softmax the weight of a pair exists only once query and key have met. If the "
            "weight is instead a product of a function of the query and a function of the key, the "
            "sums can be rearranged: keys and values are summed once, to a small matrix, and every "
            "query reads from this matrix. All pairs count, and no pair is ever formed. When "
            "causal, the matrix is a running sum: the mechanism is a recurrent network. The "
            "function, the feature map, decides how sharp the weights can be: it may be fixed, or "
            "learned, also from the weights of a softmax."
        ),
        use=(
            "Decoding at constant cost and memory per token, whatever the length.",
            "Very long inputs whose tokens contribute to a summary.",
        ),
        avoid=(
            "Looking up one token among many: weights are flat, without the peaks of a softmax, "
            "and the matrix has a fixed size.",
        ),
        relatives={
            "performer": "a function that estimates the softmax",
            "based": "the Taylor series of the softmax, and the softmax itself nearby",
            "full": "the softmax itself",
        },
    ),
    "performer": Notes(
        idea=(
            "Random features turn a softmax into a product of a function of the query and a "
            "function of the key. Each feature is an exponential along a random direction; the "
            "mean over many features estimates the weight of the softmax. Then, as in linear "
            "attention, keys and values are summed once for all queries. More features estimate "
            "better, and cost more."
        ),
        use=(
            "Linear cost is needed, and weights that are close to a softmax.",
            "Decoding at constant cost and memory per token.",
        ),
        avoid=(
            "Weights are sharply peaked: the variance of the estimate grows with the norms of "
            "queries and keys.",
            "Looking up one token among many with few features.",
        ),
        relatives={
            "linear": "a fixed function in place of random features",
            "nystrom": "landmarks in place of random features",
            "full": "the softmax that is estimated",
        },
    ),
    "retention": Notes(
        idea=(
            "Linear attention sums all keys and values into one matrix, in which old tokens never "
            "fade. Here each head lets them fade at a rate of its own: the weight of a token "
            "shrinks by the same factor with every step of distance. Slow heads remember, fast "
            "heads look nearby, and no softmax is computed."
        ),
        use=(
            "Decoding at constant cost and memory per token, with recent tokens first.",
            "A baseline without gates for the recurrences that decide what to forget.",
        ),
        avoid=(
            "A token must be kept until it is needed: it fades at a rate that nothing can stop.",
            "Looking up one token among many: nothing removes the others from the matrix.",
        ),
        relatives={
            "linear": "without decay, divided by the sum of weights",
            "ssd": "a decay that the token decides",
            "gated_linear": "a decay for each channel, which the token decides",
        },
    ),
    "ssd": Notes(
        idea=(
            "The layer of Mamba-2, read as attention: a step size, computed from each token, says "
            "how strongly the token is written into the state, and by how much everything before "
            "it fades. A large step starts anew, a small one skips the token. The sum over tokens "
            "is a matrix product within a chunk and a recurrence between chunks."
        ),
        use=(
            "Long inputs in which a few tokens matter and most can be skipped.",
            "Decoding at constant cost and memory per token.",
        ),
        avoid=("Looking up one of many pairs: what is written adds up, nothing is replaced.",),
        relatives={
            "retention": "the same decay for every token",
            "gated_linear": "a decay for each channel, and no step size",
            "gated_delta": "replaces the value of a key in place of adding to it",
        },
    ),
    "gated_linear": Notes(
        idea=(
            "Linear attention whose state forgets. Every channel of the keys has a gate, computed "
            "from the token: close to one, the channel keeps what it holds; lower, it fades. So "
            "the model learns which part of the state to keep for long."
        ),
        use=(
            "Decoding at constant cost and memory per token, with a memory that the content rules.",
            "Channels need different time scales within one head.",
        ),
        avoid=(
            "Looking up one of many pairs: what is written adds up, nothing is replaced.",
            "The cheapest recurrence on a CPU is wanted: a decay per channel costs 1.2 to 1.7 "
            "times one per head.",
        ),
        relatives={
            "ssd": "one decay for each head",
            "kimi_delta": "the same decay, with the delta rule",
            "linear": "without decay, divided by the sum of weights",
        },
    ),
    "delta": Notes(
        idea=(
            "Linear attention adds: two values for one key leave their sum. The delta rule first "
            "reads what the state holds for the key, and writes the difference, so that the key "
            "afterwards gives the new value. The state is a small table that is corrected, not a "
            "pile that grows; a step size, computed from the token, says how far."
        ),
        use=(
            "Pairs of keys and values are to be looked up, at constant memory.",
            "Keys come again with other values, and the last one counts.",
        ),
        avoid=(
            "More pairs than the head dimension: keys begin to overlap.",
            "The past must be forgotten at once: nothing fades, see `gated_delta`.",
        ),
        relatives={
            "gated_delta": "with a decay of the whole state",
            "linear": "adds in place of correcting",
        },
    ),
    "gated_delta": Notes(
        idea=(
            "Two ways to forget, together: the delta rule replaces the value of one key, and a "
            "decay, computed from the token, clears the whole state of a head when the context "
            "changes."
        ),
        use=(
            "Language models with constant memory per token; every fourth layer may be `full`.",
            "Pairs to be looked up in a stream whose subject changes.",
        ),
        avoid=(
            "Exact copies of long passages: the state has a fixed size.",
            "The cheapest recurrence is wanted: the rule solves a triangular system per chunk.",
        ),
        relatives={
            "delta": "without decay",
            "kimi_delta": "a decay for each channel",
            "ssd": "the decay without the delta rule",
        },
    ),
    "kimi_delta": Notes(
        idea=(
            "Gated DeltaNet with a decay for each channel of the keys: the delta rule replaces the "
            "value of one key, and the token decides channel by channel how much of the rest is "
            "kept."
        ),
        use=(
            "Language models with constant memory per token, three such layers to one of `full`.",
            "Channels need different time scales, and pairs are to be looked up.",
        ),
        avoid=("Time matters most: of these recurrences it is the slowest.",),
        relatives={
            "gated_delta": "one decay for each head",
            "gated_linear": "the decay without the delta rule",
        },
    ),
    "based": Notes(
        idea=(
            "Nearby tokens get the weights of a softmax, exactly. The exponential of a distant "
            "pair is replaced by the first three terms of its series, a product of a function of "
            "the query and a function of the key; so distant keys and values are summed once for "
            "all queries, as in linear attention. One sum of weights normalizes both."
        ),
        use=(
            "Neighbors must be told apart exactly, and distant tokens count as a whole.",
            "Decoding at constant cost and memory per token.",
        ),
        avoid=(
            "Looking up one distant token among many: the series grows as a square, not as an "
            "exponential, and the sums have a fixed size.",
            "Heads are wide and `feature_dim` is none: the features grow as a square.",
        ),
        relatives={
            "linear": "no window; the same series with `feature_map='taylor'`",
            "local": "the window alone",
            "long_short": "a window and learned sums of the whole input",
        },
    ),
    "convolution": Notes(
        idea=(
            "A fixed pattern of weights slides along the sequence: each output is a sum of the "
            "values nearby, with learned weights that depend on the distance alone, and the query "
            "scales it. No tokens are compared. It is a baseline: what it solves needs no "
            "attention."
        ),
        use=(
            "A baseline for tasks of neighbors: characters, pixels, signals.",
            "Decoding at constant cost, with a state of a few values.",
        ),
        avoid=(
            "What a token needs depends on content, or is further away than the kernel.",
            "Weights of attention are to be shown: kernels of channels have none. Use "
            "`kernels='head'`.",
        ),
        relatives={
            "lru": "a kernel as long as the input, from a state of fixed size",
            "local": "weights that compare the tokens nearby",
        },
    ),
    "lru": Notes(
        idea=(
            "A state is carried from token to token: at each step it shrinks and turns a little, "
            "and the value is added. The output is a sum of many such states, with different "
            "speeds, so the past is forgotten slowly or quickly, or repeats. No tokens are "
            "compared: weights depend on the distance alone. It is a baseline of the linear "
            "recurrences whose decay depends on the content."
        ),
        use=(
            "A baseline with a long reach: smooth signals, pixels, long-range tasks.",
            "Decoding at constant cost and memory per token.",
        ),
        avoid=("Tokens must be found by their content: no weight depends on it.",),
        relatives={
            "convolution": "a short kernel of any shape",
            "retention": "the same decay, of sums that are read by their content",
        },
    ),
    "transformer_xl": Notes(
        idea=(
            "The sequence is processed segment by segment, and each segment also reads the stored "
            "states of the tokens before it: its memory. Positions are expressed as distances "
            "between query and key, so stored states remain valid when the segment moves on. Over "
            "layers, information travels from memory to memory, far beyond one segment."
        ),
        use=(
            "Language modeling and decoding over text without an end, with a bounded cache.",
            "Relative positions should be part of the mechanism.",
        ),
        avoid=(
            "A token must read another that is further away than the memories of all layers.",
            "Training signals must reach the past: no gradient flows into the memory by default.",
        ),
        relatives={
            "compressive": "what leaves the memory is compressed instead of dropped",
            "position_infused": "absolute positions, added to queries and keys only",
            "local": "a window without segments and positions",
        },
    ),
    "compressive": Notes(
        idea=(
            "As in Transformer-XL, a segment reads a memory of the tokens before it. Tokens that "
            "leave the memory are not dropped: groups of them are compressed to one slot each, by "
            "a mean, a maximum, a convolution or the tokens that were used most. The past is kept "
            "at a coarser resolution, and reaches further for the same number of keys."
        ),
        use=(
            "Long texts, such as books, in which old content matters in summary.",
            "Decoding with a bounded cache and a longer past than `transformer_xl`.",
        ),
        avoid=(
            "Old tokens are needed exactly: a slot mixes a group of them.",
            "Simplicity matters: compression needs a loss of its own to be learned.",
        ),
        relatives={
            "transformer_xl": "the memory without compression",
            "long_short": "summaries of the whole input in place of the old part",
        },
    ),
    "position_infused": Notes(
        idea=(
            "Positions are added to queries and keys, not to the values. The stored states thus "
            "contain no position and can be used again at another one, as a cache for the next "
            "segment. Compared with Transformer-XL, positions need no separate scores."
        ),
        use=(
            "Decoding segment by segment with a bounded cache, at less cost than relative "
            "positions.",
            "Short segments that are trained quickly.",
        ),
        avoid=(
            "A token must read another that is further away than segment and cache, in all layers "
            "together.",
            "The model adds positions to its inputs itself: use position `none` or `auto`.",
        ),
        relatives={
            "transformer_xl": "relative positions, with learned vectors",
            "local": "a window without segments and positions",
        },
    ),
    "long_short": Notes(
        idea=(
            "Two views of the input in one softmax: nearby tokens at full resolution, and a few "
            "landmarks that summarize all tokens. The landmarks are mixtures whose weights are "
            "computed from the content, so that the model learns what is worth summarizing. "
            "Normalization puts both views on one scale."
        ),
        use=(
            "Local detail and global context are both needed, at linear cost, in an encoder.",
            "No token is known in advance to be global.",
        ),
        avoid=(
            "Causal models of very long inputs: each segment adds landmarks, so cost and cache "
            "grow with their number.",
            "Exact lookups of distant tokens, which a summary blurs.",
        ),
        relatives={
            "local": "the window alone",
            "longformer": "chosen global tokens in place of landmarks",
            "linformer": "landmarks alone, by position instead of content",
        },
    ),
    "synthesizer": Notes(
        idea=(
            "Weights come from the query alone, through a small network that outputs a weight for "
            "each position, or from a learned table that ignores the input. No query is compared "
            "with a key. The mechanism is an experiment: it shows how much of a task can be solved "
            "by attending to positions instead of contents."
        ),
        use=(
            "An ablation: it shows whether a task needs the comparison of queries with keys.",
            "Short inputs of one, fixed maximum length.",
        ),
        avoid=(
            "Long inputs: time and memory grow with the square of the length.",
            "Lengths beyond the one at construction.",
            "Tasks in which the place to look depends on the content of other tokens.",
        ),
        relatives={
            "full": "weights from queries and keys",
            "linformer": "learned mixtures by position, at linear cost",
        },
    ),
    "forgetting": Notes(
        idea=(
            "A softmax over all tokens, with a gate at each of them. A gate is a number "
            "between zero "
            "and one that a head reads from the token, and it multiplies the weights of all tokens "
            "before it. A head can so keep everything (gates of one), prefer what is near, or drop "
            "what came before a boundary. The products of gates say how far a token is, so a "
            "causal "
            "model needs no positions."
        ),
        use=(
            "Language models that need the exact softmax, and lengths beyond those of training.",
            "Old text loses its relevance at places that the input itself shows.",
        ),
        avoid=(
            "The square of the length dominates the time: every pair is still computed.",
            "Queries and keys come from different sequences.",
            "Encoders that must tell left from right without positions: the gates between two "
            "tokens are the same both ways, so let the model add positions.",
        ),
        relatives={
            "full": "all gates one",
            "local": "a window, where the weight falls to zero at a fixed distance",
            "log_linear": "a weight for each distance in powers of two, at nearly linear cost",
        },
    ),
    "differential": Notes(
        idea=(
            "A softmax gives some weight to every token, also to the many that do not matter. Each "
            "head therefore has two of them, and subtracts a share of the second from the first. "
            "What both give to irrelevant tokens cancels, and what only the first gives "
            "remains. The "
            "share is learned for each layer."
        ),
        use=(
            "Looking up few tokens among very many: weights of the others can be zero or below.",
            "The length is affordable, and twice the time of `full` as well.",
        ),
        avoid=(
            "Weights must be positive or sum to one, for example to be read as an explanation.",
            "Heads are already narrow: each softmax has half of their features.",
        ),
        relatives={
            "full": "one softmax per head, with all features",
            "forgetting": "weights that fall by gates, not by subtraction",
        },
    ),
    "log_linear": Notes(
        idea=(
            "Linear attention sums the whole past in one matrix, and forgets where things were. "
            "Here the past is divided into buckets of 1, 2, 4, 8, ... tokens, the newest the "
            "smallest, with a matrix each. A token reads all of them and weighs each by a number "
            "that it computes itself: near tokens at a fine resolution, distant ones in large "
            "groups. There are only as many buckets as the length has binary digits."
        ),
        use=(
            "Decoding of long texts with a small, bounded state.",
            "Nearly linear cost, where one sum of all tokens is too coarse.",
        ),
        avoid=(
            "Exact lookups of distant tokens: a bucket is one sum.",
            "Models without a norm behind the mechanism: rows are sums, which grow with the "
            "length.",
        ),
        relatives={
            "linear": "one sum for the whole past, normalized",
            "forgetting": "gates between all pairs of a softmax",
        },
    ),
}
