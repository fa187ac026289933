"""Write tests/golden/data: small Parquet files of each encoding, compression and nesting, NAME.parquet with NAME.jsonl of its rows.

    python make_data.py            (pyarrow 26.0.1; what unit/parquet_test and integration tests read)
"""
import datetime as dt
import decimal
import os
import pyarrow as pa
import pyarrow.parquet as pq
from parquet_rows import lines_write, rows_of

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data")
MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
BASE = pa.schema([("q", pa.string()), ("n", pa.int64()), ("opt", pa.string()), ("messages", MESSAGES),
                  ("tests", pa.struct([("inputs", pa.list_(pa.list_(pa.string()))), ("k", pa.bool_())])), ("x", pa.float64())])


def base_row(i):
    return {"q": f"Größe {i % 10}? \u4f60" if i % 7 else "", "n": i * 1000003 - 5, "opt": None if i % 3 == 0 else f"a{i}",
            "messages": None if i % 20 == 9 else [{"role": r, "content": None if i % 11 == 0 else f"{r} {i}"} for r in ["system", "user"][: i % 3]],
            "tests": {"inputs": [[f"{i}", None], []][: i % 3] if i % 5 else None, "k": i % 2 == 0}, "x": i / 8}


def scalar_row(i):
    t = dt.datetime(2024, 2, 29, 12, 30, 1, 123456)
    return {"i8": -i, "u8": 255 - i, "u32": 2**32 - 1 - i, "u64": 2**64 - 1 - i, "f": i / 2, "h": i / 4, "b": i % 3 == 0,
            "dec": decimal.Decimal(-i * 7) / 100, "dec30": decimal.Decimal(10**20 + i) / 10000, "day": t.date() - dt.timedelta(days=20000 * i),
            "ts": (t + dt.timedelta(days=i)).replace(tzinfo=dt.timezone.utc), "ms": (t - dt.timedelta(days=30000)).replace(microsecond=1000 * i),
            "t": t.time(), "bin": bytes([i, 255]), "fix": b"ab" + bytes([i]), "null": None, "map": [("k", i), ("l", None)] if i % 2 else []}


SCALARS = pa.schema([("i8", pa.int8()), ("u8", pa.uint8()), ("u32", pa.uint32()), ("u64", pa.uint64()), ("f", pa.float32()), ("h", pa.float16()),
                     ("b", pa.bool_()), ("dec", pa.decimal128(9, 2)), ("dec30", pa.decimal128(30, 4)), ("day", pa.date32()),
                     ("ts", pa.timestamp("us", tz="UTC")), ("ms", pa.timestamp("ms")), ("t", pa.time64("us")), ("bin", pa.binary()),
                     ("fix", pa.binary(3)), ("null", pa.null()), ("map", pa.map_(pa.string(), pa.int64()))])


def write(name, table, **options):
    path = os.path.join(OUT, name)
    pq.write_table(table, path + ".parquet", **options)
    lines_write(path + ".jsonl", rows_of(path + ".parquet"))


def main():
    os.makedirs(OUT, exist_ok=True)
    base = pa.Table.from_pylist([base_row(i) for i in range(40)], schema=BASE)
    for codec in ["none", "snappy", "gzip", "zstd", "lz4"]:
        for v in ["1.0", "2.0"]:
            write(f"codec_{codec}_v{v[0]}", base, compression=codec, data_page_version=v, use_dictionary=codec in ("none", "zstd"))
    for v in ["1.0", "2.0"]:
        for enc, cols in [("DELTA_BINARY_PACKED", ["n"]), ("DELTA_LENGTH_BYTE_ARRAY", ["q", "opt", "messages.list.element.content"]),
                          ("DELTA_BYTE_ARRAY", ["q", "opt", "messages.list.element.role"]), ("BYTE_STREAM_SPLIT", ["n", "x"])]:
            write(f"enc_{enc.lower()}_v{v[0]}", base, use_dictionary=False, column_encoding={c: enc for c in cols}, data_page_version=v)
        write(f"pages_v{v[0]}", base, data_page_size=64, write_batch_size=4, dictionary_pagesize_limit=100, data_page_version=v,
              write_page_checksum=True, write_page_index=True)
    write("groups", base, row_group_size=17)
    write("old", base, version="1.0", store_schema=False)
    write("lists_old", base.select(["q", "messages"]), use_compliant_nested_type=False)
    write("empty", base.slice(0, 0))
    required = pa.schema([pa.field("q", pa.string(), nullable=False),
                          pa.field("l", pa.list_(pa.field("element", pa.int32(), nullable=False)), nullable=False)])
    write("required", pa.Table.from_pylist([{"q": str(i), "l": list(range(i % 4))} for i in range(9)], schema=required))
    scalars = pa.Table.from_pylist([scalar_row(i) for i in range(12)], schema=SCALARS)
    write("scalars", scalars)
    write("scalars_int_decimal", scalars, store_decimal_as_integer=True, use_dictionary=False, data_page_version="2.0")
    write("int96", scalars.select(["ts"]), use_deprecated_int96_timestamps=True)
    write("deep", pa.table({"a": pa.array([[[["x"], []], None], [], None, [[None, ["y", None]]]], pa.list_(pa.list_(pa.list_(pa.string()))))}))
    # what training reads
    sums = [{"question": f"What is {a} + {b}?", "answer": f"{a} + {b} = <<{a}+{b}={a + b}>>{a + b}\n#### {a + b}"}
            for a in range(1, 9) for b in range(1, 9)]
    write("gsm8k", pa.Table.from_pylist(sums))


if __name__ == "__main__":
    main()
