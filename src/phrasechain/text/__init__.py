"""Captions as token vectors.

- ``tokens.py``: texts to tokens.
- ``encoders.py``: the encoders by name: ``words.py`` (with ``vocabulary.py`` and ``vectors.py``), ``elmo.py`` (with
  ``elmo_files.py``) and ``transformer.py``; ``base.py`` is their interface.
- ``cache.py``: the output of a frozen encoder on disk.
"""
