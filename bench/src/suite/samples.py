import sys

import numpy as np

rows = np.random.default_rng(7).random((384_000, 64), dtype=np.float32)
np.save(open(sys.argv[1], "wb"), rows)
