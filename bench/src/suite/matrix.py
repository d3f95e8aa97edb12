import sys

import numpy as np

both = np.random.default_rng(13).random((2, 2048, 2048), dtype=np.float32)
np.save(open(sys.argv[1], "wb"), both)
