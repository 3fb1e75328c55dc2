"""Documents with summaries: published papers, and files of one's own."""
