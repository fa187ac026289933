"""Compare the Parquet reader with pyarrow on random files: random schemas, values, encodings, page sizes and compressions.

    python check_parquet.py ../../build/release/tests/parquet_dump [FILES] [SEED]        (pyarrow 26.0.1)
"""
import json
import os
import random
import subprocess
import sys
import tempfile
import pyarrow as pa
import pyarrow.parquet as pq
from parquet_rows import shown

WORDS = ["", "a", "Größe", "你好", "\\frac{1}{2}", 'say "x"', "line\nend", "x" * 300, "𝔘𝔫𝔦"]
SCALARS = {
    pa.string(): lambda r: r.choice(WORDS) + str(r.randrange(5)), pa.large_string(): lambda r: r.choice(WORDS),
    pa.int64(): lambda r: r.choice([0, -1, 2**63 - 1, -2**63, r.randrange(1000)]), pa.int32(): lambda r: r.randrange(-2**31, 2**31),
    pa.int8(): lambda r: r.randrange(-128, 128), pa.uint32(): lambda r: r.randrange(2**32), pa.bool_(): lambda r: r.random() < 0.5,
    pa.float64(): lambda r: r.choice([0.0, r.gauss(0, 1), 1e300, float("nan")]), pa.float32(): lambda r: r.randrange(100) / 4,
    pa.binary(): lambda r: bytes([255, r.randrange(256)]), pa.binary(4): lambda r: r.randbytes(4),
}


def type_make(r, depth):
    kind = r.randrange(6) if depth < 4 else 9
    if kind == 0:
        return pa.list_(pa.field("element", type_make(r, depth + 1), nullable=r.random() < 0.7))
    if kind == 1:
        return pa.struct([pa.field(f"f{i}", type_make(r, depth + 1), nullable=r.random() < 0.7) for i in range(r.randint(1, 3))])
    if kind == 2 and depth < 3:
        return pa.map_(pa.string(), type_make(r, depth + 1))
    return r.choice(list(SCALARS))


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


def file_make(r, path):
    schema = pa.schema([pa.field(f"c{i}", type_make(r, 0), nullable=r.random() < 0.8) for i in range(r.randint(1, 5))])
    n = r.choice([0, 1, 7, 50, 400])
    table = pa.Table.from_pylist([{f.name: value_make(r, f.type, f.nullable) for f in schema} for _ in range(n)], schema=schema)
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
    return [shown(row) for row in table.to_pylist(maps_as_pydicts="strict")]    # reading some of these back is beyond pyarrow itself


def main():
    dump, n, seed = sys.argv[1], int((sys.argv + ["500"])[2]), int((sys.argv + ["", "1"])[3] or 1)
    wrong = rows = 0
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "t.parquet")
        for i in range(n):
            want = file_make(random.Random(seed * 1000003 + i), path)
            got = subprocess.run([dump, path], capture_output=True, text=True, timeout=120)
            rows += len(want)
            if got.returncode != 0 or [json.loads(x) for x in got.stdout.splitlines()] != want:
                wrong += 1
                print(f"file {i}: differs {got.stderr.strip()}")
                os.replace(path, f"/tmp/check_parquet_{i}.parquet")
    print(f"{n} files, {rows} rows: {wrong} differ")
    return wrong != 0


if __name__ == "__main__":
    sys.exit(main())
