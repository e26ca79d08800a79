"""Training a grounding model from annotated captions and stored region features."""
