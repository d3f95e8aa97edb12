import sys

import numpy as np

samples = np.load(sys.argv[1], mmap_mode="r+")
# Each run finds the same.
for epoch in range(4):
    for start in range(0, len(samples), 2000):
        samples[start : start + 2000] *= -1
samples.flush()
print(f"{samples[::10_000].sum(dtype=np.float64):.6f}")
