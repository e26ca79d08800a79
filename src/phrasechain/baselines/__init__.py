"""The five systems that the paper compares with, each a head over the same regions and words."""
