import sys

import numpy as np

samples = np.load(sys.argv[1], mmap_mode="r+")
for epoch in range(3):
    for start in range(0, len(samples), 2000):
        # The same values again, so that each run finds the same.
        samples[start : start + 2000] *= 1
samples.flush()
print(f"{samples[::10_000].sum(dtype=np.float64):.6f}")
