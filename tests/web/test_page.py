"""The page in a real browser: Chromium, driven by Playwright, against a server with the embedded model."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paths import ROOT
from phrasechain.draw.colours import PALETTE
from phrasechain.grounding.grounder import Grounder
from web_client import started_server

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

playwright.expect.set_options(timeout=60_000)  # a busy machine is no failure
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
if CHROMIUM is None:
    pytest.skip("no Chromium here: apt-get install chromium, or set CHROMIUM to its path", allow_module_level=True)

CAPTION = "A man in a black coat looks through a camera on a tripod in a field"
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with started_server() as (address, _):
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def problems() -> list[str]:
    """What the browser complained of, and requests to other hosts."""
    return []


@pytest.fixture
def page(browser: Any, address: str, problems: list[str], request: pytest.FixtureRequest) -> Iterator[Any]:
    """A page of its own for each test; at the end, the browser must have nothing to complain of."""
    context = browser.new_context(**getattr(request, "param", {"viewport": {"width": 1280, "height": 900}}))
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("request", lambda sent: None if sent.url.startswith((address, "blob:")) else problems.append(sent.url))
    yield page
    context.close()
    assert problems == []


def opened(page: Any, address: str, link: str = "") -> Any:
    page.goto("about:blank")
    page.goto(f"{address}/{link}")
    if link != "docs":
        playwright.expect(page.locator("#samples button")).to_have_count(3)
    return page


def labels(page: Any) -> list[str]:
    return page.locator("#boxes .chip.chosen text").all_text_contents()


def wait_for_labels(page: Any, count: int) -> list[str]:
    playwright.expect(page.locator("#boxes .chip.chosen")).to_have_count(count)
    return labels(page)


def asked(page: Any, address: str, **body: Any) -> Any:
    """The API's own answer on a photo of the project."""
    photo = page.request.post(
        f"{address}/api/photos",
        multipart={"image": {"name": "x.jpg", "mimeType": "image/jpeg", "buffer": photographer().read_bytes()}},
    ).json()["photo"]
    return page.request.post(f"{address}/api/ground", data={"photo": photo, "caption": CAPTION, **body}).json()


def photographer() -> Path:
    return ROOT / "photos" / "photographer.jpg"


def test_upload_and_type(page: Any, address: str) -> None:
    opened(page, address)
    playwright.expect(page.locator("#hint")).to_be_visible()
    page.locator("#caption").press_sequentially("A man in a coat")
    playwright.expect(page.locator("#backdrop mark")).to_have_text(["A man", "a coat"])  # without a photo yet
    page.set_input_files("#file", photographer())
    assert sorted(label.rsplit(" ", 2)[0] for label in wait_for_labels(page, 2)) == ["A man", "a coat"]
    page.locator("#caption").press_sequentially(" with a camera")
    wait_for_labels(page, 3)
    playwright.expect(page.locator("#backdrop mark")).to_have_text(["A man", "a coat", "a camera"])
    playwright.expect(page.locator("#phrases .phrase .text")).to_have_text(["A man", "a coat", "a camera"])
    assert page.locator("#status").inner_text().startswith("3 phrases. A man, ")


def test_boxes_are_where_the_api_says(page: Any, address: str) -> None:
    opened(page, address, "#photo=photographer")
    wait_for_labels(page, 5)
    wanted = asked(page, address)
    view = page.locator("#boxes").bounding_box()
    scale = view["width"] / wanted["image"]["width"]
    assert view["height"] / wanted["image"]["height"] == pytest.approx(scale, rel=0.01)
    for index, phrase in enumerate(wanted["phrases"]):
        shown = page.locator(f'#boxes .box.chosen[data-index="{index}"] rect:nth-child(2)')
        sides = [float(shown.get_attribute(name)) for name in ("x", "y", "width", "height")]
        found = [sides[0] - 1.5, sides[1] - 1.5, sides[0] + sides[2] + 1.5, sides[1] + sides[3] + 1.5]
        assert found == pytest.approx([side * scale for side in phrase["box"]], abs=1.5)
        colour = "rgb({} {} {} / 1)".format(*PALETTE[index])
        assert shown.get_attribute("stroke") == colour
        likely = page.locator("#phrases .phrase").nth(index).locator(".likely").inner_text()
        assert likely == f"{phrase['probability']:.0%}".replace("%", " %")


def test_the_colours_are_those_of_the_pictures() -> None:
    source = (ROOT / "src/phrasechain/web/page/colours.js").read_text(encoding="utf-8")
    block = source[source.index("PALETTE = [") : source.index("];")]
    assert [tuple(map(int, each)) for each in re.findall(r"\[(\d+), (\d+), (\d+)\]", block)] == list(PALETTE)


def test_jointly_or_each_alone(page: Any, address: str) -> None:
    opened(page, address, "#photo=photographer")
    wait_for_labels(page, 5)
    differ = page.locator("#differ")
    playwright.expect(differ).to_contain_text("different boxes")
    names = re.findall("“(.*?)”", differ.inner_text())
    moved = page.locator("#phrases .phrase", has_text="differs alone").locator(".text").all_inner_texts()
    assert moved == names
    index = page.locator("#phrases .text").all_inner_texts().index(names[0])
    box = page.locator(f'#boxes .box.chosen[data-index="{index}"] rect:nth-child(2)')
    before = box.get_attribute("x"), box.get_attribute("width")
    page.get_by_label("each phrase alone").check()
    assert (box.get_attribute("x"), box.get_attribute("width")) != before
    assert "mode=alone" in page.url


def test_a_look_at_a_phrase_shows_alternatives_and_a_heat_map(page: Any, address: str) -> None:
    opened(page, address, "#photo=photographer")
    wait_for_labels(page, 5)
    is_drawn = "document.getElementById('heat').getContext('2d').getImageData(0, 0, 60, 60).data.some((v) => v > 0)"
    page.locator("#phrases .phrase").nth(2).hover()
    others = asked(page, address)["phrases"][2]["alternatives"]
    playwright.expect(page.locator("#boxes .box.other")).to_have_count(len(others))
    playwright.expect(page.locator("#boxes .box.dim")).to_have_count(4)
    assert page.evaluate(is_drawn)
    page.locator("#caption").hover()
    playwright.expect(page.locator("#boxes .box.other")).to_have_count(0)
    assert not page.evaluate(is_drawn)
    page.locator('#boxes .chip.chosen[data-index="1"]').click()
    playwright.expect(page.locator("#phrases .details")).to_contain_text("Box: ")


def test_phrases_are_edited_by_selecting_words(page: Any, address: str) -> None:
    opened(page, address, "#photo=photographer")
    wait_for_labels(page, 5)
    select = "(word) => { const area = document.getElementById('caption'); const at = area.value.indexOf(word);"
    page.evaluate(select + " area.setSelectionRange(at + 1, at + word.length - 1); }", "camera on a tripod")
    page.click("#add-phrase")
    texts = ["A man", "a black coat", "camera on a tripod", "a field"]
    playwright.expect(page.locator("#phrases .phrase .text")).to_have_text(texts)
    page.get_by_label("Remove the phrase a black coat").click()
    texts.remove("a black coat")
    playwright.expect(page.locator("#phrases .phrase .text")).to_have_text(texts)
    page.locator("#caption").press("Control+Home")
    page.locator("#caption").press_sequentially("Look: ")
    playwright.expect(page.locator("#backdrop mark")).to_have_text(texts)
    wait_for_labels(page, 3)
    page.click("#find-phrases")
    wait_for_labels(page, 5)


def test_the_best_groundings_one_after_the_other(page: Any, address: str) -> None:
    opened(page, address, "#photo=photographer")
    wait_for_labels(page, 5)
    best = asked(page, address, k_best=8)["k_best"]
    assert page.locator("#rank-back").is_disabled()
    for rank in range(1, len(best) + 1):
        page.click("#rank-next")
        playwright.expect(page.locator("#rank")).to_contain_text(f"sequence {rank} of {len(best)}")
    assert page.locator("#rank-next").is_disabled()
    box = page.locator('#boxes .box.chosen[data-index="0"] rect:nth-child(2)')
    scale = page.locator("#boxes").bounding_box()["width"] / 512
    assert float(box.get_attribute("x")) == pytest.approx(best[-1]["boxes"][0][0] * scale + 1.5, abs=1)


def test_the_slider_hides_what_is_unlikely(page: Any, address: str) -> None:
    opened(page, address, "#photo=photographer")
    wait_for_labels(page, 5)
    page.locator("#least").fill("70")
    kept = [phrase for phrase in asked(page, address)["phrases"] if phrase["probability"] >= 0.7]
    wait_for_labels(page, len(kept))
    assert page.locator("#phrases .is-hidden").count() == 5 - len(kept)


def test_a_link_restores_caption_and_settings(page: Any, address: str) -> None:
    opened(page, address, "#photo=coffee")
    page.fill("#caption", "a spoon & 😀 a cup, 100 %")
    playwright.expect(page.locator("#phrases .phrase .text")).to_have_text(["a spoon", "a cup"])
    page.get_by_label("Remove the phrase a spoon").click()
    page.locator("#least").fill("5")
    page.get_by_label("each phrase alone").check()
    playwright.expect(page.locator("#phrases .phrase .text")).to_have_text(["a cup"])
    link = page.url
    page.goto("about:blank")
    page.goto(link)
    playwright.expect(page.locator("#phrases .phrase .text")).to_have_text(["a cup"])
    assert page.input_value("#caption") == "a spoon & 😀 a cup, 100 %"
    assert page.input_value("#least") == "5"
    assert page.get_by_label("each phrase alone").is_checked()
    playwright.expect(page.locator("#backdrop mark")).to_have_text(["a cup"])


def test_what_can_be_taken_away(page: Any, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the Python lines give the same boxes."""
    opened(page, address, "#photo=photographer")
    wait_for_labels(page, 5)
    for button, suffix in (("#save-png", ".grounded.png"), ("#save-json", ".json"), ("#save-coco", ".coco.json")):
        with page.expect_download() as waiting:
            page.click(button)
        assert waiting.value.suggested_filename == f"photographer{suffix}"
        waiting.value.save_as(tmp_path / suffix)
    assert (tmp_path / ".grounded.png").read_bytes().startswith(b"\x89PNG")
    shown = json.loads((tmp_path / ".json").read_text())
    assert len(json.loads((tmp_path / ".coco.json").read_text())["annotations"]) == 5
    page.click("#copy-python")
    playwright.expect(page.locator("#status")).to_have_text("The Python lines are copied.")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photographer.jpg").write_bytes(photographer().read_bytes())
    names: dict[str, Any] = {}
    exec(page.evaluate("navigator.clipboard.readText()"), names)
    assert isinstance(names["grounder"], Grounder)
    for mine, theirs in zip(names["found"].phrases, shown["phrases"], strict=True):
        assert list(mine.box) == pytest.approx(theirs["box"], abs=0.1)


def test_by_keyboard_alone(page: Any, address: str) -> None:
    opened(page, address, "#photo=photographer")
    wait_for_labels(page, 5)
    page.locator("#caption").focus()
    seen = []
    for _ in range(14):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.dataset.focus ?? document.activeElement.id"))
    assert seen[:4] == ["add-phrase", "look-0", "remove-0", "look-1"]
    assert "save-png" in seen
    for _ in range(seen.index("save-png") - seen.index("look-1") + (len(seen) - 1 - seen.index("save-png"))):
        page.keyboard.press("Shift+Tab")
    playwright.expect(page.locator("#phrases .is-active .text")).to_have_text("a black coat")
    page.keyboard.press("Enter")
    playwright.expect(page.locator('#phrases .phrase[aria-pressed="true"] .text')).to_have_text("a black coat")
    assert page.evaluate("document.activeElement.dataset.focus") == "look-1", "the focus stays"
    page.keyboard.press("Escape")
    playwright.expect(page.locator("#phrases .details")).to_have_count(0)
    page.get_by_label("jointly").focus()
    page.keyboard.press("ArrowRight")
    assert page.get_by_label("each phrase alone").is_checked()


def test_pasting_and_dropping(page: Any, address: str) -> None:
    opened(page, address)
    page.fill("#caption", "a cup")
    send = """async ([kind, name, type]) => {
      const blob = await (await fetch('/photos/coffee.jpg')).blob();
      const data = new DataTransfer();
      data.items.add(new File([blob], name, { type }));
      const event = kind === 'paste'
        ? new ClipboardEvent('paste', { clipboardData: data, bubbles: true, cancelable: true })
        : new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true });
      document.getElementById('stage').dispatchEvent(event);
    }"""
    page.evaluate(send, ["drop", "notes.txt", "text/plain"])
    playwright.expect(page.locator("#alert")).to_contain_text("That is no picture")
    for kind in ("paste", "drop"):
        page.evaluate(send, [kind, f"{kind}.jpg", "image/jpeg"])
        wait_for_labels(page, 1)


def test_an_error_is_told_kindly(page: Any, address: str, problems: list[str], tmp_path: Path) -> None:
    opened(page, address)
    (tmp_path / "photo.jpg").write_text("this is no photo")
    page.set_input_files("#file", tmp_path / "photo.jpg")
    alert = page.get_by_role("alert")
    playwright.expect(alert).to_contain_text("The given picture: not an image of a known format")
    page.get_by_label("Close the message").click()
    playwright.expect(page.locator("#alert")).to_be_hidden()
    page.context.set_offline(True)
    page.fill("#caption", "a dog")
    playwright.expect(alert).to_contain_text("The server cannot be reached. Is phrasechain serve still running?")
    page.context.set_offline(False)
    page.fill("#caption", "a dog!")
    playwright.expect(page.locator("#alert")).to_be_hidden()
    assert all("Failed to load resource" in problem for problem in problems)
    problems.clear()


def test_a_photo_that_the_server_has_dropped_is_sent_again(page: Any, address: str, problems: list[str]) -> None:
    opened(page, address, "#photo=coffee")
    wait_for_labels(page, 4)
    page.route(
        "**/api/ground",
        lambda route: route.fulfill(status=404, json={"error": "no photo has this id"}),
        times=1,
    )
    page.fill("#caption", "a cup")
    wait_for_labels(page, 1)
    assert page.locator("#alert").is_hidden()
    problems.clear()  # the browser's own line on the 404


def test_what_is_not_in_the_photo_is_shown_as_such(page: Any, address: str) -> None:
    def without_coat(route: Any) -> None:
        record = route.fetch().json()
        for phrase in record["phrases"]:
            is_there = "coat" not in phrase["text"]
            phrase |= {"presence": 0.9 if is_there else 0.1, "found": is_there}
        route.fulfill(json=record)

    page.route("**/api/ground", without_coat)
    opened(page, address, "#photo=photographer")
    wait_for_labels(page, 4)
    entry = page.locator("#phrases .is-absent")
    playwright.expect(entry.locator(".likely")).to_have_text("not in the photo")
    playwright.expect(page.locator("#backdrop mark.absent")).to_have_text("a black coat")
    playwright.expect(page.locator("#phrases .facts").first).to_have_text("people · in the photo 90 %")
    entry.locator(".phrase").focus()
    playwright.expect(page.locator("#boxes .box.absent")).to_have_count(1)
    playwright.expect(page.locator("#status")).to_contain_text("a black coat: not in the photo")


def test_a_token_is_asked_for(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("0123456789abcdef")
    with started_server("--token-file", str(tmp_path / "token")) as (guarded, _):
        page = browser.new_page()
        opened(page, guarded, "#photo=coffee")
        for token in ("wrong", "0123456789abcdef"):
            page.locator("#token").fill(token)
            page.get_by_role("button", name="Use it").click()
        wait_for_labels(page, 4)
        page.close()


@pytest.mark.parametrize(
    "page",
    [
        {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
        {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
        {**PHONE, "color_scheme": "light"},
        {**PHONE, "color_scheme": "dark"},
    ],
    indirect=True,
    ids=["light", "dark", "phone", "phone, dark"],
)
def test_everybody_can_use_it(page: Any, address: str) -> None:
    """Axe finds nothing serious, nothing is wider than the screen, and buttons are large enough for a thumb."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    for link in ("", "#photo=photographer", "docs"):
        opened(page, address, link)
        if link.startswith("#"):
            wait_for_labels(page, 5)
            page.locator("#phrases .phrase").first.click()
        found = axe.Axe().run(page).response["violations"]
        serious = [each["help"] for each in found if each["impact"] in ("serious", "critical")]
        assert serious == [], link
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    small = "[...document.querySelectorAll('button')].filter((b) => b.offsetParent && b.offsetHeight < 32).length"
    assert page.evaluate(small) == 0


def test_the_page_of_the_api(page: Any, address: str) -> None:
    opened(page, address, "docs")
    for path in ("/api/photos", "/api/ground", "/api/batch", "/api/phrases", "/api/metrics"):
        playwright.expect(page.locator("#routes h2", has_text=path)).to_have_count(1)
