#!/usr/bin/env python3
"""Every relative link and #anchor of the repository's markdown files leads somewhere."""
import os, re, subprocess, sys
os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
def text(path): return re.sub(r"(?ms)^ *```.*?^ *```", "", open(path, encoding="utf-8").read())
def anchors(path):
    found = {}
    for title in re.findall(r"(?m)^#+ +(.*?) *$", text(path)):
        slug = re.sub(r"[^\w\- ]", "", re.sub(r"\[(.*?)\]\(.*?\)", r"\1", title).lower()).replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
    return {slug if n == 0 else f"{slug}-{n}" for slug, last in found.items() for n in range(last + 1)}
wrong = []
for path in subprocess.check_output(["git", "ls-files", "*.md"], text=True).split():
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text(path))):
        if re.match(r"[a-z]+:", link): continue
        file, _, anchor = link.partition("#")
        target = os.path.normpath(os.path.join(os.path.dirname(path), file)) if file else path
        if not os.path.exists(target) or anchor and anchor not in anchors(target): wrong.append(f"{path}: {link}")
sys.exit("\n".join(wrong) or 0)
