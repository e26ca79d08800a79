"""The noun phrases of a caption: detected by a tagger, or given by the user."""
