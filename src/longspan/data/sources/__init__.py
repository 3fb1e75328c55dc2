"""Files of a user's own: where they are, how they are packed, and their rows and documents."""
