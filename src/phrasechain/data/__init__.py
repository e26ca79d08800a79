"""Annotated captions: Flickr30k Entities, JSON lines, and the photos that a user means."""
