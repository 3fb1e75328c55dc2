"""Language modeling of published and imported texts."""
