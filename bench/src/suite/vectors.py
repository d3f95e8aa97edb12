import sys

import numpy as np
from usearch.index import Index

vectors = np.random.default_rng(3).random((60_000, 256), dtype=np.float32)
index = Index(ndim=256, metric="cos", dtype="f32")
index.add(np.arange(len(vectors)), vectors, threads=2)
index.save(sys.argv[1])
