"""C sources: the headers of this system and its compiler, and translation units that include those of
the kernel."""

import argparse
import os
import shutil
import subprocess

arguments = argparse.ArgumentParser()
arguments.add_argument("out", help="folder to make")
arguments.add_argument("units", nargs="?", type=int, default=32, help="translation units")
arguments.add_argument("headers", nargs="?", type=int, help="headers that they include [all]")
arguments = arguments.parse_args()
out = arguments.out


def said(option):
    return subprocess.run(["cc", option], check=True, capture_output=True, text=True).stdout.strip()


include = "/usr/include"
folders = "arpa asm-generic drm linux misc mtd net netinet rdma scsi sound video xen".split()
shutil.copytree(os.path.join(include, said("-print-multiarch")), out, ignore=shutil.ignore_patterns("c++"))
for folder in filter(lambda folder: os.path.isdir(os.path.join(include, folder)), folders):
    shutil.copytree(os.path.join(include, folder), os.path.join(out, folder), dirs_exist_ok=True)
for name in os.listdir(include):
    if name.endswith(".h"):
        shutil.copy(os.path.join(include, name), out)
shutil.copytree(said("-print-file-name=include"), os.path.join(out, "compiler"))

headers = sorted(
    os.path.relpath(os.path.join(folder, name), out)
    for folder, _, names in os.walk(out)
    for name in names
    if name.endswith(".h")
)
with open(os.path.join(out, "cscope.files"), "w") as listed:
    listed.writelines(f"{name}\n" for name in headers)
kernels = [name for name in headers if name.startswith("linux/")][: arguments.headers]
os.mkdir(os.path.join(out, "units"))
for unit in range(arguments.units):
    with open(os.path.join(out, f"units/{unit:02}.c"), "w") as source:
        source.write("#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\n")
        source.writelines(f"#include <{name}>\n" for name in kernels[unit :: arguments.units])
