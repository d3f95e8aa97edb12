"""Text for a search. Words follow Zipf's law; those to look for, some in most files and some in few,
are in the file `queries`."""

import argparse
import os
import random

arguments = argparse.ArgumentParser()
arguments.add_argument("out", help="folder to make")
arguments.add_argument("files", nargs="?", type=int, default=96, help="files of 256 KiB")
arguments.add_argument("queries", nargs="?", type=int, default=32, help="words to look for")
arguments = arguments.parse_args()
out = arguments.out
random.seed(17)
words = ["".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=random.randint(3, 10))) for _ in range(20_000)]
weights, total = [], 0.0
for rank in range(1, len(words) + 1):
    total += 1 / rank
    weights.append(total)
os.makedirs(os.path.join(out, "texts"))
for file in range(arguments.files):
    with open(os.path.join(out, f"texts/{file:03}.txt"), "w") as text:
        while text.tell() < 1 << 18:
            text.write(" ".join(random.choices(words, cum_weights=weights, k=1000)) + "\n")
with open(os.path.join(out, "queries"), "w") as queries:
    queries.writelines(f"{words[[2000, 5000, 12000][i % 3] + i]}\n" for i in range(arguments.queries))
