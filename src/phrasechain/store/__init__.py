"""Region features on disk: memory-mapped shards with checksums, written resumably."""
