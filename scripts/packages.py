#!/usr/bin/env python3
"""Programs that keep their data with packages of others, for `scripts/stress.sh packages`.

packages.py NAME DIRECTORY writes files to the directory, reads them in the ways the package has, and
prints a digest of all that it found, the same each time.
"""

import hashlib
import os
import random
import sys

name, directory = sys.argv[1:]
os.makedirs(directory, exist_ok=True)
digest = hashlib.sha256()
numbers = random.Random(7)


def path(*parts):
    return os.path.join(directory, *parts)


def found(*what):
    digest.update(repr(what).encode())


def content(file):
    with open(path(file), "rb") as opened:
        found(hashlib.md5(opened.read()).hexdigest())


def duckdb():
    import duckdb

    db = duckdb.connect(path("x.duckdb"))
    db.execute("set memory_limit='64MB'; set threads=2")
    db.execute(f"set temp_directory='{path('tmp')}'")
    db.execute(
        "create table t as select i, (i*7919)%100003 k, repeat(chr(97+(i%26)::int), 40) s "
        "from range(600000) r(i)"
    )
    db.execute("checkpoint")
    db.execute("update t set s='zz'||s where k%10=3; delete from t where k%17=5; checkpoint")
    for query in (
        "select count(*), sum(k), sum(length(s)) from t",
        "select k%100 g, count(*), max(s) from t group by g order by g",
        "select count(*) from t a join t b on a.k=b.i",
    ):
        found(db.execute(query).fetchall())
    db.execute(f"copy t to '{path('t.parquet')}' (format parquet)")
    found(db.execute(f"select sum(i) from read_parquet('{path('t.parquet')}')").fetchall())
    db.close()
    db = duckdb.connect(path("x.duckdb"))
    found(db.execute("select count(*), sum(i), min(s), max(s) from t").fetchall())


def polars():
    import polars as pl

    table = pl.DataFrame({"a": range(1_000_000), "b": [i * 31 % 1009 for i in range(1_000_000)]})
    table.write_ipc(path("x.arrow"))
    table.write_parquet(path("x.parquet"))
    for _ in range(3):
        found(pl.read_ipc(path("x.arrow"))["b"].sum())
        sums = pl.scan_ipc(path("x.arrow")).group_by("b").agg(pl.col("a").sum()).sort("b")
        found(sums.collect().rows()[:50])
        found(pl.scan_parquet(path("x.parquet")).filter(pl.col("b") == 5).collect().height)


def pyarrow():
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import feather, ipc

    table = pa.table({"a": list(range(2_000_000)), "b": [i * i % 997 for i in range(2_000_000)]})
    feather.write_feather(table, path("x.feather"), compression="uncompressed")
    with pa.OSFile(path("y.arrow"), "wb") as sink, ipc.new_file(sink, table.schema) as writer:
        for batch in table.to_batches(50000):
            writer.write(batch)
    for _ in range(4):
        with pa.memory_map(path("y.arrow")) as source:
            batches = ipc.open_file(source)
            for i in range(batches.num_record_batches):
                found(pc.sum(batches.get_batch(i)["b"]).as_py())
        found(pc.sum(feather.read_table(path("x.feather"), memory_map=True)["a"]).as_py())
    sparse = pa.create_memory_map(path("z"), 8 << 20)
    sparse.write(b"q" * 1000)
    sparse.seek(5 << 20)
    sparse.write(b"r" * 5000)
    sparse.close()
    content("z")


def h5py():
    import h5py
    import numpy as np

    with h5py.File(path("x.h5"), "w") as file:
        chunked = file.create_dataset("a", (4000, 2000), "f4", chunks=(100, 100))
        for i in range(0, 4000, 100):
            rows = np.arange(i * 2000, (i + 100) * 2000, dtype="f4")
            chunked[i : i + 100] = rows.reshape(100, 2000)
        file.create_dataset("z", data=np.arange(1_000_000) % 1000, compression="gzip")
    with h5py.File(path("x.h5"), "r+") as file:
        for _ in range(300):
            i = numbers.randrange(3900)
            found(float(file["a"][i : i + 5, ::100].sum()))
        file["a"][10:20] = 5
        found(int(file["z"][:].sum()))
    with h5py.File(path("x.h5"), "r") as file:
        found(float(file["a"][:100].sum()))


def safetensors():
    import numpy as np
    from safetensors import safe_open
    from safetensors.numpy import save_file

    row = np.arange(2048, dtype="f4")
    weights = {f"w{i}": np.full((512, 2048), i, dtype="f4") + row for i in range(16)}
    save_file(weights, path("m.safetensors"))
    for _ in range(3):
        with safe_open(path("m.safetensors"), framework="np") as file:
            for key in sorted(file.keys()):
                found(key, float(file.get_tensor(key).sum()))
                found(float(file.get_slice(key)[7:9].sum()))


def faiss():
    import faiss
    import numpy as np

    vectors = np.random.default_rng(1).random((60000, 64), dtype="f4")
    faiss.omp_set_num_threads(2)
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(64), 64, 64)
    index.train(vectors[:5000])
    index.add(vectors)
    faiss.write_index(index, path("i.faiss"))
    mapped = faiss.read_index(path("i.faiss"), faiss.IO_FLAG_MMAP)
    mapped.nprobe = 8
    for i in range(0, 600, 100):
        found(mapped.search(vectors[i : i + 100], 5)[1].tolist())


def plyvel():
    import plyvel

    where = path("ldb")
    db = plyvel.DB(where, create_if_missing=True, write_buffer_size=1 << 20, max_open_files=20)
    for turn in range(3):
        with db.write_batch() as batch:
            for i in range(60000):
                batch.put(b"%08d" % (i * 7919 % 100003), (b"%d-%d;" % (turn, i)) * 8)
    db.compact_range()
    for i in range(0, 100003, 37):
        found(db.get(b"%08d" % i))
    found(sum(len(value) for _, value in db))
    db.close()
    db = plyvel.DB(where)
    found(sum(1 for _ in db))
    db.close()


def rocksdict():
    from rocksdict import Options, Rdict

    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(2 << 20)
    options.set_allow_mmap_reads(True)
    options.set_allow_mmap_writes(True)
    db = Rdict(path("rdb"), options)
    for i in range(120000):
        db[b"%08d" % (i * 7919 % 100003)] = (b"%d;" % i) * 12
    db.flush()
    db.compact_range(None, None)
    for i in range(0, 100003, 29):
        found(db.get(b"%08d" % i))
    db.close()
    db = Rdict(path("rdb"), options)
    found(sum(len(value) for _, value in db.items()))
    db.close()


def tantivy():
    import tantivy

    builder = tantivy.SchemaBuilder()
    builder.add_text_field("body", stored=True)
    builder.add_integer_field("n", stored=True, indexed=True)
    os.makedirs(path("index"), exist_ok=True)
    index = tantivy.Index(builder.build(), path=path("index"))
    writer = index.writer(20_000_000, 1)
    words = [f"w{i}" for i in range(2000)]
    for i in range(20000):
        writer.add_document(tantivy.Document(body=" ".join(numbers.choices(words, k=40)), n=i))
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    searcher = index.searcher()
    for i in range(0, 2000, 50):
        result = searcher.search(index.parse_query(f"w{i}", ["body"]), 5)
        found(result.count, [searcher.doc(at)["n"] for _, at in result.hits])


def annoy():
    from annoy import AnnoyIndex

    index = AnnoyIndex(32, "angular")
    index.on_disk_build(path("a.ann"))
    index.set_seed(1)
    for i in range(30000):
        index.add_item(i, [numbers.gauss(0, 1) for _ in range(32)])
    index.build(4, 1)
    index.unload()
    mapped = AnnoyIndex(32, "angular")
    mapped.load(path("a.ann"))
    for i in range(0, 30000, 111):
        found(mapped.get_nns_by_item(i, 5))


def hnswlib():
    import hnswlib
    import numpy as np

    vectors = np.random.default_rng(1).random((8000, 32), dtype="f4")
    index = hnswlib.Index("l2", 32)
    index.init_index(8000, random_seed=1)
    index.set_num_threads(1)
    index.add_items(vectors)
    index.save_index(path("h"))
    loaded = hnswlib.Index("l2", 32)
    loaded.load_index(path("h"))
    found(loaded.knn_query(vectors[:300], 5)[0].tolist())


def lmdb():
    import lmdb

    for writes_by_mapping in (False, True):
        which = int(writes_by_mapping)
        env = lmdb.open(path(f"l{which}"), map_size=64 << 20, writemap=writes_by_mapping)
        for turn in range(4):
            with env.begin(write=True) as writes:
                for i in range(20000):
                    writes.put(b"%08d" % (i * 7919 % 30011), (b"%d.%d" % (i, turn)) * 20)
        with env.begin() as reads:
            for key, value in reads.cursor():
                found(key, value[:9])
        os.makedirs(path(f"copy{which}"), exist_ok=True)
        env.copy(path(f"copy{which}"))
        env.close()
        env = lmdb.open(path(f"copy{which}"), readonly=True)
        found(env.begin().stat()["entries"])
        env.close()


def diskcache():
    import diskcache

    cache = diskcache.Cache(path("cache"), size_limit=1 << 30)
    for i in range(1500):
        cache[i] = b"%d" % i * (3000 if i % 7 else 20000)
    child = os.fork()
    if child == 0:
        wrong = any(cache[i][:3] != (b"%d" % i * 3)[:3] for i in range(0, 1500, 5))
        os._exit(int(wrong))
    for i in range(0, 1500, 3):
        found(len(cache[i]))
    found(os.waitpid(child, 0)[1])
    cache.close()


def zarr():
    import numpy as np
    import zarr

    array = zarr.create_array(store=path("z"), shape=(3000, 3000), chunks=(300, 300), dtype="f4")
    array[:] = np.arange(9_000_000, dtype="f4").reshape(3000, 3000)
    for _ in range(100):
        i = numbers.randrange(2900)
        found(float(array[i : i + 50, i : i + 50].sum()))


def pandas():
    import numpy as np
    import pandas as pd

    table = pd.DataFrame({"a": np.arange(300000), "b": [f"s{i % 999}" for i in range(300000)]})
    table.to_csv(path("x.csv"), index=False)
    table.to_parquet(path("x.pq"))
    for how in ({}, {"memory_map": True}, {"chunksize": 50000}):
        read = pd.read_csv(path("x.csv"), **how)
        read = pd.concat(read) if "chunksize" in how else read
        found(int(read.a.sum()), read.b.nunique())
    found(pd.read_parquet(path("x.pq")).shape)


def numpy():
    import numpy as np

    # A sparse file at first.
    made = np.lib.format.open_memmap(path("m.npy"), mode="w+", dtype="i8", shape=(4_000_000,))
    made[:] = np.arange(4_000_000)
    made[::1000] = -1
    made.flush()
    del made
    reader = np.load(path("m.npy"), mmap_mode="r")
    private = np.load(path("m.npy"), mmap_mode="c")
    private[5:500000:7] = 9
    found(int(reader.sum()), int(private.sum()))
    writer = np.load(path("m.npy"), mmap_mode="r+")
    writer[-5000:] = 3
    del writer
    found(int(reader.sum()))
    content("m.npy")


{
    run.__name__: run
    for run in (
        *(duckdb, polars, pyarrow, h5py, safetensors, faiss, plyvel, rocksdict),
        *(tantivy, annoy, hnswlib, lmdb, diskcache, zarr, pandas, numpy),
    )
}[name]()
print(name, digest.hexdigest()[:16])
