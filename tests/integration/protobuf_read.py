"""Reading protobuf messages without their definitions; the standard library has nothing for it."""


def fields(data):
    """A protobuf message as [(number, value)]."""
    out, i = [], 0

    def varint():
        nonlocal i
        v = shift = 0
        while True:
            v |= (data[i] & 127) << shift
            shift += 7
            i += 1
            if not data[i - 1] & 128:
                return v
    while i < len(data):
        key = varint()
        kind = key & 7
        if kind == 0:
            v = varint()
        else:
            n = {1: 8, 5: 4}.get(kind) or varint()
            v, i = data[i:i + n], i + n
        out.append((key >> 3, v))
    return out
