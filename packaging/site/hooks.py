"""What mkdocs does not do by itself: pages and files of the repository outside of docs/, and llms.txt.

A link to a page of the repository that the site does not have becomes its text with the path. Files that pages link to,
such as schemas and manifests, are copied to repository/."""

import os
import re
import shutil
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
# Pages outside of docs/, by their path on the site.
PAGES = {"kubernetes.md": "deploy/kubernetes/README.md", "changelog.md": "CHANGELOG.md"}
SITE_OF = {ROOT / path: page for page, path in PAGES.items()}
# A link of Markdown to a path of the repository.
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"^ *```")


def source_of(page):
    """Returns the file of the repository that a page is made from."""
    return ROOT / PAGES[page] if page in PAGES else DOCS / page


def outside_fences(text, change):
    """Applies a function to each part of a text that is not a block of code."""
    parts, code = [[]], False
    for line in text.splitlines(keepends=True):
        if FENCE.match(line):
            parts += [[line]] if not code else [parts.pop() + [line], []]
            code = not code
        else:
            parts[-1].append(line)
    joined = ["".join(part) for part in parts]
    return "".join(part if FENCE.match(part) else change(part) for part in joined)


def linked_files(page):
    """Returns the files outside of docs/ that a page links to, other than pages."""
    source = source_of(page)
    for _, path, _ in LINK.findall(source.read_text()):
        file = (source.parent / path).resolve()
        if file.is_file() and file.suffix != ".md" and not file.is_relative_to(DOCS):
            yield file


def on_files(files, config):
    for page, path in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / path)))
    files.append(File.generated(config, "site.css", abs_src_path=str(ROOT / "packaging/site/site.css")))
    pages = [file.src_uri for file in files if file.src_uri.endswith(".md")]
    for file in sorted({file for page in pages for file in linked_files(page)}):
        path = f"repository/{file.relative_to(ROOT)}"
        files.append(File.generated(config, path, abs_src_path=str(file)))
    return files


def address(target, page):
    """Returns the link from a page to a file of the repository, or None if the site does not have it."""
    if target in SITE_OF:
        path = SITE_OF[target]
    elif target.is_relative_to(DOCS):
        path = str(target.relative_to(DOCS))
    elif target.is_file() and target.suffix != ".md":
        path = f"repository/{target.relative_to(ROOT)}"
    else:
        return None
    return os.path.relpath(path, Path(page).parent)


def on_page_markdown(markdown, page, config, files):
    name = page.file.src_uri
    source = source_of(name)

    def rewritten(link):
        text, path, anchor = link.groups()
        target = (source.parent / path).resolve()
        new = address(target, name)
        if new is None:
            where = target.relative_to(ROOT)
            return f"`{where}`" if text.strip("`") in str(where) else f"{text} (`{where}`)"
        return f"[{text}]({new}{anchor or ''})"

    return outside_fences(markdown, lambda text: LINK.sub(rewritten, text))


def on_post_build(config):
    """Copies the Markdown of each page beside it, for readers that prefer it. llms.txt, which is in docs/, names them."""
    site = Path(config["site_dir"])
    for page in [*(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")), *PAGES]:
        (site / page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source_of(page), site / page)
