"""Captions as vectors.

- ``encoders.py``: the encoders by name: ``words.py`` (with ``vocabulary.py`` and ``vectors.py``), ``elmo.py`` (with
  ``elmo_files.py``) and ``transformer.py``; ``base.py`` says what they have in common.
- ``bilstm.py``: token vectors to the vectors of phrases and of what stands between them; ``lstm.py`` reads them.
- ``cache.py``: the output of a frozen encoder on the disk.
"""
