import sys

import lmdb

env = lmdb.open(sys.argv[1], map_size=1 << 28, subdir=False, lock=False, writemap=False)
with env.begin(write=True) as txn:
    for key in range(200_000):
        txn.put(b"%08d" % key, (b"value %08d " % key) * 20, append=True)
env.close()
