#!/usr/bin/env python3
"""Counts, in a checkout: bytes, files, functions, type names that are defined more than once, cycles of files,
public items.

    bench/structure/structure.py [DIRECTORY]

Only text is read: `use` lines and paths that begin with `crate::` are the edges between files. Unit tests are
left out. The length of a function is that of its body, without comments and blank lines, as clippy counts it.
"""

import collections
import os
import re
import subprocess
import sys

TYPE = re.compile(r"^(?:pub(?:\([^)]*\))? )?(?:struct|enum|trait|type) ([A-Z]\w*)", re.M)
PUBLIC = re.compile(r"^\s*pub (?:const |unsafe |async )*(?:fn|struct|enum|trait|type|const|static|mod|use)\b", re.M)
USE = re.compile(r"^\s*(?:pub(?:\([^)]*\))? )?use ((?:crate|super)\b[^;]*);", re.M)


FUNCTION = re.compile(r"^( *)(?:pub(?:\([^)]*\))? )?(?:const |async |unsafe |extern \"C\" )*fn \w+")
COMMENT = re.compile(r"\s*//")


def functions(lines):
    """The lengths of the functions in a file."""
    for start, line in enumerate(lines):
        found = FUNCTION.match(line)
        if not found or line.endswith(";"):
            continue
        if line.endswith("}"):
            yield 1
            continue
        ends = (n for n in range(start + 1, len(lines)) if lines[n] in (found[1] + "}", found[1] + ");"))
        end = next(ends, start)
        opened = next((n for n in range(start, end) if lines[n].endswith("{")), end)
        body = lines[opened + 1 : end]
        yield sum(1 for text in body if text.strip() and not COMMENT.match(text))


def spread(name, values):
    """Prints the median, the 90th and 99th percentile and the maximum."""
    values = sorted(values)
    at = [values[int((len(values) - 1) * share)] for share in (0.5, 0.9, 0.99, 1)]
    print(f"{name}: {len(values)}; median {at[0]}, p90 {at[1]}, p99 {at[2]}, max {at[3]}")


def sizes():
    """Prints the bytes of the tree, and the lengths of files and functions."""
    tracked = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.split("\n")
    tracked = [path for path in tracked if os.path.isfile(path)]
    size = lambda paths: sum(os.path.getsize(path) for path in paths) / 1e6
    print(f"tree: {size(tracked):.1f} MB in {len(tracked)} files", end="; ")
    print(f"bench: {size(path for path in tracked if path.startswith('bench/')):.1f} MB")
    rust = [path for path in tracked if path.endswith(".rs")]
    texts = {path: open(path, encoding="utf-8").read().splitlines() for path in rust}
    lines = [line for text in texts.values() for line in text]
    comments = sum(1 for line in lines if COMMENT.match(line))
    print(f"Rust: {len(rust)} files, {len(lines)} lines, {comments / len(lines):.0%} comments")
    source = {path: text for path, text in texts.items() if re.match(r"crates/\w+/src/", path)}
    spread("files of src, lines", [len(text) for text in source.values()])
    lengths = [length for text in source.values() for length in functions(text)]
    spread("functions of src, lines", lengths)
    print(f"functions over 60 lines: {sum(1 for length in lengths if length > 60)}")
    blocks = [(text, n) for text in source.values() for n, line in enumerate(text)
              if re.search(r"\bunsafe \{", line) and not COMMENT.match(line)]
    reasons = sum(1 for text, n in blocks if "SAFETY:" in "\n".join(text[max(0, n - 8) : n]))
    print(f"unsafe blocks of src: {len(blocks)}, with a reason: {reasons}")


def leaves(tree):
    """The paths of a `use` tree."""
    tree = tree.strip()
    start = tree.find("{")
    if start < 0:
        return [tree]
    parts, depth, part = [], 0, ""
    for char in tree[start + 1 : tree.rfind("}")] + ",":
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += char
    return [tree[:start] + leaf for part in parts if part.strip() for leaf in leaves(part)]


def modules(source):
    """The files of a crate by their module paths."""
    found = {}
    for folder, _, files in os.walk(source):
        for file in (f for f in files if f.endswith(".rs") and f != "tests.rs"):
            path = os.path.relpath(os.path.join(folder, file), source)[:-3].split(os.sep)
            found[tuple(path[:-1] if path[-1] in ("mod", "lib", "main") else path)] = os.path.join(folder, file)
    return found


def edges(module, text, all_modules):
    """The modules that a file uses."""
    paths = []
    for tree in USE.findall(text):
        for leaf in leaves(tree):
            words = [word.split(" as ")[0].strip() for word in leaf.split("::")]
            base = list(module)
            if words[0] == "crate":
                base, words = [], words[1:]
            while words and words[0] == "super":
                base, words = base[:-1], words[1:]
            paths.append(base + words)
    paths += [path.split("::")[1:] for path in re.findall(r"\bcrate((?:::[a-z_]\w*)+)", text)]
    for path in paths:
        while path and tuple(path) not in all_modules:
            path = path[:-1]
        if path and tuple(path) != module:
            yield tuple(path)


def cycles(graph):
    """The strongly connected components of more than one file."""
    reach = {}
    for node in graph:
        seen, left = set(), [node]
        while left:
            for other in graph[left.pop()] - seen:
                seen.add(other)
                left.append(other)
        reach[node] = seen
    groups = {frozenset(b for b in graph if b in reach[a] and a in reach[b]) for a in graph}
    return [group for group in groups if len(group) > 1]


def main():
    os.chdir(sys.argv[1] if len(sys.argv) > 1 else ".")
    sizes()
    crates = {name: f"crates/{name}/src" for name in sorted(os.listdir("crates"))}
    if os.path.isdir("allocators"):
        crates["allocators"] = "allocators/src"
    names, public, found = collections.defaultdict(list), collections.Counter(), []
    for crate, source in crates.items():
        files = modules(source)
        graph = {}
        for module, file in files.items():
            with open(file, encoding="utf-8") as opened:
                text = opened.read().split("#[cfg(test)]\nmod tests")[0]
            text = re.sub(r"(?m)^\s*//.*", "", text)
            for name in TYPE.findall(text):
                names[name].append(file)
            public[crate] += len(PUBLIC.findall(text))
            graph[module] = set(edges(module, text, files))
        found += [(crate, sorted("::".join(m) or "lib" for m in group)) for group in cycles(graph)]
    twice = {name: len(files) for name, files in names.items() if len(files) > 1}
    print(f"type names that are defined more than once: {len(twice)}")
    print("  " + ", ".join(f"{name} {count}" for name, count in sorted(twice.items(), key=lambda n: (-n[1], n[0]))))
    print(f"cycles of files: {len(found)}, with {sum(len(files) for _, files in found)} files")
    for crate, files in sorted(found):
        print(f"  {crate}: {', '.join(files)}")
    print(f"public items: {sum(public.values())}")
    print("  " + ", ".join(f"{crate} {count}" for crate, count in public.items()))
    sys.exit(bool(found))


main()
