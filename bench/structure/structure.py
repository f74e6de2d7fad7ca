#!/usr/bin/env python3
"""Counts, in a checkout: type names that are defined more than once, cycles of files, public items.

    bench/structure/structure.py [DIRECTORY]

Only text is read: `use` lines and paths that begin with `crate::` are the edges between files. Unit tests are
left out.
"""

import collections
import os
import re
import sys

TYPE = re.compile(r"^(?:pub(?:\([^)]*\))? )?(?:struct|enum|trait|type) ([A-Z]\w*)", re.M)
PUBLIC = re.compile(r"^\s*pub (?:const |unsafe |async )*(?:fn|struct|enum|trait|type|const|static|mod|use)\b", re.M)
USE = re.compile(r"^\s*(?:pub(?:\([^)]*\))? )?use ((?:crate|super)[^;]*);", re.M)


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


main()
