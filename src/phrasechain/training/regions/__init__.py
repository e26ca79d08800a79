"""Training the region network from photos and captions."""
