"""The web page and the JSON API: ``phrasechain serve``."""
