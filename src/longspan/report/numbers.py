"""Numbers as text; the only place that rounds. None is shown as a dash."""

import math

from longspan.metrics import Metric

Number = int | float
MISSING = "–"


def percent(fraction: Number | None, digits: int = 1) -> str:
    """Return a fraction in percent, without the sign."""
    return MISSING if fraction is None else f"{100 * fraction:.{digits}f}"


def score(value: Number | None, metric: Metric) -> str:
    """Return a value of a metric in its display units, without the unit."""
    return MISSING if value is None else metric.format(value, unit=False)


def metric_name(metric: Metric, *, unit: bool = True) -> str:
    """Return the name of a metric within a sentence, with its unit unless the name says it."""
    title = metric.title
    # Names such as F1 and ROUGE-1 keep their capitals.
    name = title[0].lower() + title[1:] if title[1:2].islower() else title
    return f"{name}, {metric.unit}" if unit and metric.unit == "%" else name


def loss(value: Number | None, metric: Metric) -> str:
    """Return the loss of a task with a metric, with its unit."""
    return MISSING if value is None else f"{significant(value)} {metric.loss_unit}".rstrip()


def score_difference(value: Number | None, metric: Metric) -> str:
    """Return a difference of two values of a metric in its display units, with its sign."""
    return MISSING if value is None else signed(metric.shown(value), metric.decimals)


def signed(value: Number | None, digits: int = 1) -> str:
    """Return a number with its sign."""
    return MISSING if value is None else f"{value:+.{digits}f}".replace("-", "−")


def p_value(p: Number | None) -> str:
    """Return a p-value to three places; none is shown as zero."""
    return MISSING if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def magnitude(value: Number | None, units: str = " kMGT", base: int = 1000) -> str:
    """Return three significant digits and the letter of a unit: 1230000 is `1.23M`."""
    if value is None:
        return MISSING
    step, size = 0, float(value)
    # 999.5 would be shown as 1000, which is one of the next unit.
    while abs(size) >= base - 0.5 and step < len(units) - 1:
        step, size = step + 1, size / base
    return significant(size) + units[step].strip()


def memory(value: Number | None) -> str:
    """Return bytes in binary units: 1610612736 is `1.50 GiB`."""
    if value is None:
        return MISSING
    text = magnitude(value, " KMGT", 1024)
    return f"{text[:-1]} {text[-1]}iB" if text[-1].isalpha() else f"{text} B"


def significant(value: Number | None, digits: int = 3) -> str:
    """Return a number with so many significant digits, whole digits kept, without exponent."""
    if value is None:
        return MISSING
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    # Of the rounded number: 0.9996 is shown as 1.00, not as 1.000.
    exponent = math.floor(math.log10(abs(float(f"{value:.{digits}g}"))))
    places = max(0, digits - 1 - exponent)
    return f"{value:.{places}f}"


def duration(seconds: Number | None) -> str:
    """Return seconds as hours, minutes and seconds: 3725 is `1 h 2 min`."""
    if seconds is None:
        return MISSING
    if seconds < 60:
        return f"{significant(seconds)} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


def duration_of(seconds: float) -> str:
    """Return a time of less than a few minutes with three digits: 1.23 ms, 45.6 s."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{significant(seconds / size)} {unit}"
    return f"{significant(seconds / 1e-6)} µs"


def quotient(value: Number | None, base: Number | None) -> float | None:
    """Return a value over another; None where one is missing, or the other is 0."""
    return value / base if value is not None and base else None


def ratio(value: Number | None) -> str:
    """Return a quotient with a multiplication sign."""
    return MISSING if value is None else f"{significant(value)} ×"


def count(number: int, noun: str) -> str:
    """Return a number with its noun, plural unless it is one."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
