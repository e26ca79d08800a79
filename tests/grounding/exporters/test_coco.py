"""COCO's format: boxes as x, y, width and height, ids that fit together."""

import json

from phrasechain.core.schema import CATEGORIES, GroundedPhrase
from phrasechain.grounding.exporters.coco import coco_of
from phrasechain.grounding.result import PhotoGrounding
from records import FOUND


def test_a_phrase_is_an_annotation() -> None:
    coco = FOUND.to_coco()
    assert coco["images"] == [{"id": 1, "file_name": "photo.jpg", "width": 400, "height": 300}]
    (dog,) = coco["annotations"]
    names = {category["id"]: category["name"] for category in coco["categories"]}
    assert names[dog["category_id"]] == "animals"
    assert tuple(names.values()) == CATEGORIES
    assert dog["bbox"] == [1.5, 2.0, 28.5, 38.0]
    assert (dog["area"], dog["iscrowd"], dog["score"]) == (28.5 * 38, 0, 0.75)
    assert (dog["phrase"], dog["span"], dog["caption"]) == ("a dog", [2, 7], FOUND.caption)
    json.dumps(coco, allow_nan=False)


def test_captions_on_one_image_share_its_entry() -> None:
    failed = PhotoGrounding("gone.jpg", 0, 0, "a dog", "small", "viterbi", error="gone.jpg: missing")
    memory = PhotoGrounding(None, 400, 300, "nothing", "small", "viterbi")
    odd = PhotoGrounding(
        "photo.jpg", 400, 300, "x", "small", "viterbi", (GroundedPhrase("x", 0, 1, "new", (0, 0, 1, 1), 1),)
    )
    coco = coco_of(each.to_dict() for each in (FOUND, failed, memory, memory, odd))
    assert [(image["id"], image["file_name"]) for image in coco["images"]] == [(1, "photo.jpg"), (2, ""), (3, "")]
    assert [(each["id"], each["image_id"]) for each in coco["annotations"]] == [(1, 1), (2, 1)]
    assert coco["categories"][-1] == {"id": len(CATEGORIES) + 1, "name": "new"}


def test_what_is_not_in_the_photo_has_no_annotation() -> None:
    record = FOUND.to_dict()
    record["phrases"][0]["found"] = False
    assert coco_of([record])["annotations"] == []
