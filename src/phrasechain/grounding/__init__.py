"""The grounder: a photo and a caption in, a box for every phrase out."""
