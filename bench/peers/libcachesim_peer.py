"""Replays an oracleGeneral trace through one of libCacheSim's policies, with unit sizes, and prints
how long the replay took and its miss ratio as JSON. Reading is part of libCacheSim's replay: it maps
the file, which is in memory by then."""

import json
import sys
import time

import libcachesim


def main() -> None:
    path, policy, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
    parameters = libcachesim.ReaderInitParam(ignore_obj_size=True)
    reader = libcachesim.TraceReader(
        path, libcachesim.TraceType.ORACLE_GENERAL_TRACE, parameters
    )
    cache = getattr(libcachesim, policy)(size)
    started = time.perf_counter()
    miss_ratio, _ = cache.process_trace(reader)
    seconds = time.perf_counter() - started
    print(json.dumps({"seconds": seconds, "miss_ratio": miss_ratio}))


main()
