"""Classification and coreference of documents."""
