"""The noun phrases of a caption: found, or given by the user."""
