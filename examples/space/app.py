"""A Space for the Hugging Face hub: a photo and a caption in, the photo with a box for each phrase out."""

from __future__ import annotations

import gradio as gr
from PIL import Image

from phrasechain import Grounder
from phrasechain.core.errors import DataError

COLUMNS = ["text", "category", "probability", "x0", "y0", "x1", "y1"]
grounder = Grounder.from_pretrained()


def ground(photo: Image.Image | None, caption: str, decode: str) -> tuple[Image.Image, list[list[object]]]:
    """The picture, and a row for each phrase."""
    if photo is None:
        raise gr.Error("Choose a photo first.")
    try:
        found = grounder.ground(photo, caption[:2000], decode=decode)
    except DataError as error:
        raise gr.Error(str(error)) from None
    return found.draw(probabilities=True), [[row[name] for name in COLUMNS] for row in found.to_rows()]


demo = gr.Interface(
    ground,
    [
        gr.Image(type="pil", label="Photo"),
        gr.Textbox(label="Caption"),
        gr.Radio(["consensus", "viterbi", "smoothing", "independent"], value=grounder.decode, label="Decode"),
    ],
    [gr.Image(label="What each phrase names"), gr.Dataframe(headers=COLUMNS, label="Phrases")],
    title="phrasechain",
    description="Write a sentence about a photo and see what each phrase names.",
    api_name="ground",
)

if __name__ == "__main__":
    demo.launch()
