#!/usr/bin/env python3
"""Opens pages of target/site in a browser: three widths, light and dark, and the search.

    packaging/site/look.py DIRECTORY [PAGE…]      pictures go to DIRECTORY; needs playwright (pip) and chromium

It fails if a page asks another address for something, is wider than the window, or has an error in its scripts, and if the
search does not find a page."""

import http.server
import sys
import threading
from functools import partial
from pathlib import Path

from playwright.sync_api import sync_playwright

SITE = Path(__file__).resolve().parents[2] / "target/site"
WIDTHS = {"phone": 390, "tablet": 820, "desktop": 1440}
HEIGHT = 900


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words):
        pass


def serve():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=SITE))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/"


def look(browser, address, page, out):
    """Returns what is wrong with a page."""
    wrong = []
    for size, width in WIDTHS.items():
        for scheme in ["light", "dark"]:
            view = browser.new_page(viewport={"width": width, "height": HEIGHT}, color_scheme=scheme)
            view.on("request", lambda request: request.url.startswith((address, "data:", "blob:")) or wrong.append(f"asks {request.url}"))
            view.on("pageerror", lambda error: wrong.append(f"error in a script: {error}"))
            view.on("response", lambda response: response.ok or wrong.append(f"{response.status} for {response.url}"))
            view.goto(address + page, wait_until="networkidle")
            beyond = view.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            if beyond > 0:
                wrong.append(f"{beyond} pixels wider than the window of {width}")
            if out:
                view.screenshot(path=out / f"{page.replace('/', '-').removesuffix('.html')}-{size}-{scheme}.png")
            view.close()
    return wrong


def search(browser, address):
    view = browser.new_page(viewport={"width": WIDTHS["desktop"], "height": HEIGHT})
    view.goto(address, wait_until="networkidle")
    view.locator(".md-search__input").click()
    view.keyboard.type("OOMKilled", delay=20)
    found = view.locator(".md-search-result__item a", has_text="OOMKilled").first
    found.wait_for(timeout=20_000)
    view.close()


def main():
    directory, *pages = sys.argv[1:] or sys.exit(__doc__)
    out = Path(directory)
    out.mkdir(parents=True, exist_ok=True)
    every = sorted(str(page.relative_to(SITE)) for page in SITE.rglob("*.html") if page.name != "404.html")
    address, wrong = serve(), []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        for page in pages or every:
            wrong += [f"{page}: {fault}" for fault in look(browser, address, page, out)]
        search(browser, address)
        browser.close()
    print(f"{len(pages or every)} pages in {len(WIDTHS)} widths, light and dark")
    sys.exit("\n".join(dict.fromkeys(wrong)) or 0)


main()
