"""Importers: region features of other tools to a store."""
