"""Published scores of left-to-right language models, in the metric of each task."""

from longspan.tasks.info import Published

_LONGFORMER = "Beltagy et al. 2020, Longformer"
_XL = "Dai et al. 2019, Transformer-XL"
_SHORTFORMER = "Press et al. 2021, Shortformer"
_COMPRESSIVE = "Rae et al. 2020, Compressive Transformers"
_LONGER = "a longer memory in evaluation"
_ABLATION = f"{_LONGFORMER}, table 4 (development set; 150K steps)"
_COMPRESSIONS = f"{_COMPRESSIVE}, table 5 (best of rates 2 to 4)"
# Row of the protocol, score, source.
_SCORES: dict[tuple[str, str], tuple[tuple[str, float, str], ...]] = {
    ("text8", "longformer-char"): (
        ("longformer-small", 1.10, f"{_LONGFORMER}, table 2"),
        ("decreasing", 1.24, _ABLATION),
        ("fixed", 1.23, _ABLATION),
        ("increasing", 1.21, _ABLATION),
        ("no-dilation", 1.21, _ABLATION),
        ("dilation-2-heads", 1.20, _ABLATION),
    ),
    ("text8", "transformer-xl"): (("transformer-xl-24", 1.08, f"{_XL}, table 3 ({_LONGER})"),),
    ("enwik8", "longformer-char"): (
        ("longformer-small", 1.00, f"{_LONGFORMER}, table 2"),
        ("longformer-large", 0.99, f"{_LONGFORMER}, table 3"),
    ),
    ("enwik8", "transformer-xl"): (
        ("transformer_xl", 1.06, f"{_XL}, table 2 ({_LONGER})"),
        ("transformer-xl-24", 0.99, f"{_XL}, table 2 ({_LONGER})"),
    ),
    ("enwik8", "compressive-transformer"): (
        ("compressive", 0.97, f"{_COMPRESSIVE}, table 4 ({_LONGER})"),
        ("transformer_xl", 0.98, f"{_COMPRESSIVE}, table 4 ({_LONGER})"),
        ("max-pooling", 0.986, _COMPRESSIONS),
        ("conv-autoencoding", 0.984, _COMPRESSIONS),
        ("mean-pooling", 0.982, _COMPRESSIONS),
        ("most-used", 0.980, _COMPRESSIONS),
        ("dilated-conv", 0.977, _COMPRESSIONS),
        ("compressive", 0.973, _COMPRESSIONS),
    ),
    ("enwik8", "long-short-char"): (
        ("long-short-large", 0.97, "Zhu et al. 2021, Long-Short Transformer, abstract"),
    ),
    ("wikitext_103", "transformer-xl"): (
        ("transformer_xl", 24.0, f"{_XL}, table 1 ({_LONGER})"),
        ("transformer-xl-large", 18.3, f"{_XL}, table 1 ({_LONGER})"),
    ),
    ("wikitext_103", "shortformer"): (
        ("full", 19.40, f"{_SHORTFORMER}, table 5: baseline, without overlap"),
        ("baseline-sliding", 18.70, f"{_SHORTFORMER}, table 5: baseline, sliding window"),
        ("pia-cache", 18.55, f"{_SHORTFORMER}, table 5"),
        ("staged-sliding", 17.56, f"{_SHORTFORMER}, table 5: staged training, sliding window"),
        ("shortformer", 18.15, f"{_SHORTFORMER}, table 5"),
    ),
    ("wikitext_103", "compressive-transformer"): (
        ("compressive", 17.1, f"{_COMPRESSIVE}, table 6 ({_LONGER})"),
        ("compressive", 17.6, f"{_COMPRESSIVE}, section 5.3 (the memories of training)"),
        ("transformer_xl", 18.1, f"{_COMPRESSIVE}, table 6"),
    ),
    ("pg19", "compressive-transformer"): (
        ("compressive", 33.6, f"{_COMPRESSIVE}, table 3"),
        ("transformer_xl", 36.3, f"{_COMPRESSIVE}, table 3"),
    ),
}


def published_language_scores(task: str, metric: str) -> tuple[Published, ...]:
    """Return the published scores of a task, in one metric."""
    return tuple(
        Published(mechanism=row, value=value, protocol=protocol, source=source, metric=metric)
        for (name, protocol), scores in _SCORES.items()
        if name == task
        for row, value, source in scores
    )
