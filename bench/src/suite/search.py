import sys

import numpy as np
from usearch.index import Index

index = Index.restore(sys.argv[1], view=True)
queries = np.random.default_rng(9).random((150, 256), dtype=np.float32)
total = 0
for query in queries:
    total += int(index.search(query, 10).keys.sum())
print(total)
