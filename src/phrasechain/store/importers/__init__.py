"""Region features of other tools, as a store."""
