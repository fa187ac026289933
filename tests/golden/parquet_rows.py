"""What make_data.py and check_parquet.py share: a value as the reader writes it where JSON has no word for it."""
import datetime
import decimal
import json
import math
import uuid


def shown(v):
    if isinstance(v, dict):
        return {k: shown(x) for k, x in v.items()}
    if isinstance(v, (list, tuple)):
        return [shown(x) for x in v]
    if isinstance(v, decimal.Decimal):
        return format(v, "f")
    if isinstance(v, (datetime.datetime, datetime.date, datetime.time)):
        return v.isoformat()
    if isinstance(v, uuid.UUID):
        return str(v)
    if isinstance(v, bytes):
        return v.hex()
    if isinstance(v, float) and not math.isfinite(v):
        return None
    if isinstance(v, int) and not isinstance(v, bool) and v > 2**63 - 1:
        return str(v)
    return v


def rows_of(path):
    """The rows that a file holds, as JSON values, by pyarrow."""
    import pyarrow.parquet as pq
    return [shown(r) for r in pq.ParquetFile(path).read().to_pylist(maps_as_pydicts="strict")]


def lines_write(path, rows):
    with open(path, "w", encoding="utf-8") as f:
        f.writelines(json.dumps(r, ensure_ascii=False) + "\n" for r in rows)
