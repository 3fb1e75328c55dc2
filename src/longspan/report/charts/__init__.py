"""Charts of leaderboards as Vega-Lite specifications, and matrices as PNG."""
