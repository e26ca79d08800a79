"""Values and small tools that every other package speaks in."""
