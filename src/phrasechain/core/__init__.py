"""Values and small utilities that every other package uses."""
