"""Compare the Parquet reader with pyarrow on random files: random schemas, values, encodings, page sizes and compressions, written in
turn by each of the writers that people use.

    python check_parquet.py ../../build/release/tests/parquet_dump [FILES] [SEED]
    (pyarrow 26.0.1, polars 2.1.0, duckdb 2.0.0, fastparquet 2026.9.0)
"""
import json
import os
import random
import subprocess
import sys
import tempfile
import duckdb
import fastparquet
import polars
import pyarrow as pa
import pyarrow.parquet as pq
from parquet_rows import shown

WORDS = ["", "a", "Größe", "你好", "\\frac{1}{2}", 'say "x"', "line\nend", "x" * 300, "𝔘𝔫𝔦"]
SCALARS = {
    pa.string(): lambda r: r.choice(WORDS) + str(r.randrange(5)), pa.large_string(): lambda r: r.choice(WORDS),
    pa.int64(): lambda r: r.choice([0, -1, 2**63 - 1, -2**63, r.randrange(1000)]), pa.int32(): lambda r: r.randrange(-2**31, 2**31),
    pa.int8(): lambda r: r.randrange(-128, 128), pa.uint32(): lambda r: r.randrange(2**32), pa.bool_(): lambda r: r.random() < 0.5,
    pa.float64(): lambda r: r.choice([0.0, r.gauss(0, 1), 1e300, float("nan")]), pa.float32(): lambda r: r.randrange(100) / 4,
    pa.binary(): lambda r: bytes([255, r.randrange(256)]), pa.binary(4): lambda r: b"\xff" + r.randbytes(3),    # no text
}


def type_make(r, depth, writer):
    kind = r.randrange(6) if depth < 4 and writer is not by_fastparquet else 9    # fastparquet nests nothing
    if kind == 0:
        return pa.list_(pa.field("element", type_make(r, depth + 1, writer), nullable=r.random() < 0.7))
    if kind == 1:
        return pa.struct([pa.field(f"f{i}", type_make(r, depth + 1, writer), nullable=r.random() < 0.7) for i in range(r.randint(1, 3))])
    if kind == 2 and depth < 3 and writer is not by_polars:    # polars has no maps
        return pa.map_(pa.string(), type_make(r, depth + 1, writer))
    # DuckDB 2.0 takes binary(4) inside of a struct from Arrow one row late
    return r.choice([t for t in SCALARS if t != pa.binary(4) or writer is not by_duckdb])


def value_make(r, t, nullable):
    if nullable and r.random() < 0.2:
        return None
    if pa.types.is_list(t):
        return [value_make(r, t.value_type, t.value_field.nullable) for _ in range(r.choice([0, 1, 2, 5]))]
    if pa.types.is_struct(t):
        return {f.name: value_make(r, f.type, f.nullable) for f in t}
    if pa.types.is_map(t):
        return [(f"k{i}", value_make(r, t.item_type, True)) for i in range(r.choice([0, 1, 3]))]
    return SCALARS[t](r)


def by_pyarrow(r, table, path):
    encodings = {}
    pq.write_table(table, path)
    for i in range(len(pq.ParquetFile(path).schema)):
        leaf = pq.ParquetFile(path).schema.column(i)
        choices = {"INT32": ["PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"], "INT64": ["PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"],
                   "BYTE_ARRAY": ["PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"], "BOOLEAN": ["PLAIN", "RLE"],
                   "FIXED_LEN_BYTE_ARRAY": ["PLAIN", "DELTA_BYTE_ARRAY", "BYTE_STREAM_SPLIT"]}.get(leaf.physical_type, ["PLAIN", "BYTE_STREAM_SPLIT"])
        encodings[leaf.path] = r.choice(choices)
    own = r.random() < 0.5
    pq.write_table(table, path, compression=r.choice(["none", "snappy", "gzip", "zstd", "lz4"]), data_page_version=r.choice(["1.0", "2.0"]),
                   use_dictionary=not own, column_encoding=encodings if own else None, data_page_size=r.choice([64, 1000, 1 << 20]),
                   write_batch_size=r.choice([1, 16, 1024]), dictionary_pagesize_limit=r.choice([50, 1 << 20]), row_group_size=r.choice([3, 100, 10000]),
                   write_page_checksum=r.random() < 0.5, store_schema=True)


def by_polars(r, table, path):
    polars.from_arrow(table).write_parquet(path, compression=r.choice(["uncompressed", "snappy", "gzip", "zstd", "lz4"]),
                                           row_group_size=r.choice([3, 100, 10000]), data_page_size=r.choice([64, 1000, 1 << 20]))


def by_duckdb(r, table, path):
    con = duckdb.connect()
    con.register("t", table)
    con.execute(f"COPY t TO '{path}' (FORMAT parquet, COMPRESSION {r.choice(['uncompressed', 'snappy', 'gzip', 'zstd', 'lz4_raw'])},"
                f" PARQUET_VERSION {r.choice(['V1', 'V2'])}, ROW_GROUP_SIZE {r.choice([100, 10000])})")


def by_fastparquet(r, table, path):
    fastparquet.write(path, table.to_pandas(), compression=r.choice([None, "SNAPPY", "GZIP", "ZSTD"]), row_group_offsets=r.choice([3, 100, 10000]),
                      stats=False)


WRITERS = [by_pyarrow, by_polars, by_duckdb, by_fastparquet]


def file_make(r, writer, path):
    """Write a random file; its rows."""
    schema = pa.schema([pa.field(f"c{i}", type_make(r, 0, writer), nullable=r.random() < 0.8) for i in range(r.randint(1, 5))])
    n = r.choice([0, 1, 7, 50, 400])
    table = pa.Table.from_pylist([{f.name: value_make(r, f.type, f.nullable) for f in schema} for _ in range(n)], schema=schema)
    writer(r, table, path)
    if writer is by_fastparquet:    # through pandas, where integers with nulls become floats
        table = pq.ParquetFile(path).read()
    return [shown(row) for row in table.to_pylist(maps_as_pydicts="strict")]    # reading some of these back is beyond pyarrow itself


def main():
    dump, n, seed = sys.argv[1], int((sys.argv + ["500"])[2]), int((sys.argv + ["", "1"])[3] or 1)
    wrong = dict.fromkeys(WRITERS, 0)
    rows = dict.fromkeys(WRITERS, 0)
    files = dict.fromkeys(WRITERS, 0)
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "t.parquet")
        for i in range(n):
            writer = WRITERS[i % len(WRITERS)]
            try:
                want = file_make(random.Random(seed * 1000003 + i), writer, path)
            except Exception as e:    # beyond that writer
                print(f"file {i}: {writer.__name__} cannot write it: {str(e).splitlines()[0][:150]}")
                continue
            got = subprocess.run([dump, path], capture_output=True, text=True, timeout=120)
            files[writer] += 1
            rows[writer] += len(want)
            if got.returncode != 0 or [json.loads(x) for x in got.stdout.splitlines()] != want:
                wrong[writer] += 1
                print(f"file {i}, {writer.__name__}: differs {got.stderr.strip()}")
                os.replace(path, f"/tmp/check_parquet_{i}.parquet")
    for w in WRITERS:
        print(f"{w.__name__}: {files[w]} files, {rows[w]} rows: {wrong[w]} differ")
    return any(wrong.values())


if __name__ == "__main__":
    sys.exit(main())
