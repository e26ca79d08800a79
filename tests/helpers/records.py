"""A grounding without its photo, and the JSON that is documented for it."""

from phrasechain.core.schema import Alternative, GroundedPhrase
from phrasechain.grounding.result import PhotoGrounding

DOG = GroundedPhrase("a dog", 2, 7, "animals", (1.5, 2.0, 30.0, 40.0), 0.75, (Alternative((0.0, 0.0, 9.0, 9.0), 0.2),))
FOUND = PhotoGrounding("photo.jpg", 400, 300, "é a dog \udcff", "small", "consensus", (DOG,))
RECORD = {
    "version": 1,
    "image": {"path": "photo.jpg", "width": 400, "height": 300},
    "caption": "é a dog \udcff",
    "model": "small",
    "decode": "consensus",
    "phrases": [
        {
            "text": "a dog",
            "start": 2,
            "end": 7,
            "category": "animals",
            "box": [1.5, 2.0, 30.0, 40.0],
            "probability": 0.75,
            "presence": None,
            "found": True,
            "alternatives": [{"box": [0.0, 0.0, 9.0, 9.0], "probability": 0.2}],
        }
    ],
}
