"""From the pixels of a photo to its candidate regions with features."""
