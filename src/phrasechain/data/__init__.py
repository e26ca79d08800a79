"""Annotated datasets: Flickr30k Entities and JSON lines, and the photos that a command is given."""
