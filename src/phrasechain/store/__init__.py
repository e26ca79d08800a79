"""Region features on disk: memory-mapped, checked, resumable."""
