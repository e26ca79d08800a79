"""Speed and memory, against named peers and a floor."""
