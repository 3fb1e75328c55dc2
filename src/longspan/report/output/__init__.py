"""Output formats of a report: terminal, Markdown, LaTeX, CSV, JSON and one HTML page."""
