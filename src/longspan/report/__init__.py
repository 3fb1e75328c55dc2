"""Reports from records, in five steps; each reads the one before it.

Records: results, failures and analyses, from `longspan.results`. Cells: means over seeds with their
uncertainty, in `leaderboard` and `statistics`. Tables: rows under declared columns, in `tables`.
Charts: Vega-Lite specifications and pictures, in `charts`. Sections: one list of tables and charts,
in `sections`, that the page, the terminal, Markdown, LaTeX, CSV and JSON in `output` walk.
"""
