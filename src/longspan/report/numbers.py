"""How numbers are shown; the only place where anything is rounded. None is shown as a dash."""

import math

Number = int | float
MISSING = "–"


def percent(fraction: Number | None, digits: int = 2) -> str:
    """A fraction in percent, without the sign."""
    return MISSING if fraction is None else f"{100 * fraction:.{digits}f}"


def points(value: Number | None) -> str:
    """A difference of percentages, with its sign."""
    return MISSING if value is None else f"{value:+.1f}".replace("-", "−")


def unlikely(p: Number | None) -> str:
    """A p-value to three places, none shown as zero."""
    return MISSING if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def magnitude(value: Number | None, units: str = " kMGT", base: int = 1000) -> str:
    """Three significant digits and a letter: 1230000 is `1.23M`."""
    if value is None:
        return MISSING
    step, size = 0, float(value)
    # 999.5 would be shown as 1000, which is one of the next unit.
    while abs(size) >= base - 0.5 and step < len(units) - 1:
        step, size = step + 1, size / base
    return significant(size) + units[step].strip()


def memory(value: Number | None) -> str:
    """Bytes in binary units: 1610612736 is `1.50 GiB`."""
    if value is None:
        return MISSING
    shown = magnitude(value, " KMGT", 1024)
    return f"{shown[:-1]} {shown[-1]}iB" if shown[-1].isalpha() else f"{shown} B"


def significant(value: Number | None, digits: int = 3) -> str:
    """A number with so many significant digits, whole digits kept, no exponent."""
    if value is None:
        return MISSING
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    # Of the rounded number: 0.9996 is shown as 1.00, not as 1.000.
    exponent = math.floor(math.log10(abs(float(f"{value:.{digits}g}"))))
    places = max(0, digits - 1 - exponent)
    return f"{value:.{places}f}"


def duration(seconds: Number) -> str:
    """Seconds as hours, minutes and seconds: 3725 is `1 h 2 min`."""
    if seconds < 60:
        return f"{significant(seconds)} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
