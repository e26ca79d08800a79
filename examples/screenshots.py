"""The pictures of the page in the README: ``docs/page.png`` and ``docs/page-phone.png``.

    python examples/screenshots.py [FOLDER]        # by default docs/

Starts a server, opens its page in Chromium (``CHROMIUM`` or the one on the path) with a photo that comes with the
project, and takes a picture of a desktop's window in light colours and of a phone's in dark ones.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DESKTOP = {"viewport": {"width": 1280, "height": 930}, "color_scheme": "light"}
PHONE = {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark", "device_scale_factor": 1.5}


def start_server() -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "phrasechain", "serve", "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.match(r"(http://\S+) is ready", line):
            return process, found[1]
    raise SystemExit("the server did not start")


def take(browser: Any, address: str, photo: str, phrase: int | None, options: dict[str, Any], path: Path) -> None:
    page = browser.new_page(**options)
    page.set_default_timeout(120_000)
    page.goto(f"{address}/#photo={photo}")
    page.locator("#differ").wait_for()  # the last of the answers is there
    if phrase is not None:
        page.locator("#phrases .phrase").nth(phrase).click()
        page.evaluate("scrollTo(0, 0)")
    page.wait_for_function("document.getAnimations().every((each) => each.playState === 'finished')")
    page.screenshot(path=path)
    page.close()


def main() -> None:
    from PIL import Image
    from playwright.sync_api import sync_playwright

    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs"
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    process, address = start_server()
    try:
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            take(browser, address, "photographer", None, DESKTOP, folder / "page.png")
            take(browser, address, "astronaut", 2, PHONE, folder / "page-phone.png")
            browser.close()
    finally:
        process.terminate()
        process.wait()
    for name in ("page.png", "page-phone.png"):  # 256 colours are enough, and a third of the bytes
        with Image.open(folder / name) as picture:
            picture.convert("RGB").quantize(256).save(folder / name, optimize=True)


if __name__ == "__main__":
    main()
