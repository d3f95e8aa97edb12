import sys

import numpy as np

a, b = np.load(sys.argv[1], mmap_mode="r")
size, step = len(a), 256
trace = 0.0
for i in range(0, size, step):
    rows = np.array(a[i : i + step])
    for j in range(0, size, step):
        # A column block of b: a piece of every one of its rows.
        block = rows @ b[:, j : j + step]
        trace += float(block.sum(dtype=np.float64))
print(f"{trace:.1f}")
