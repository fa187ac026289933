"""How values cross between a test and the program it tests, which run in two processes (asserts.py).

Each process has one Peer. Plain data is copied. Lists, dictionaries, sets and the like are shared: each process has one of its own,
and every message first brings what has changed in them, so that sorting in place or keeping a list works. Every other object stays
where it was made and the other process has a stand-in for it, whose class stands for the object's class: isinstance, operators,
attributes and "except" work as usual, and each use asks the owner. The owner may ask back before it answers.

Messages are JSON lists, since no byte of a program may be trusted: ["q", operation, changes, arguments] is answered by ["a", changes,
value] or ["e", changes, exception]; ["w", stream, text] is printed text and has no answer."""
import _json
import _thread
import collections
import posix
import sys
from builtins import __dict__ as BUILTINS
from operator import is_

FUNCTION, MODULE = type(lambda: 0), type(sys)
GENERATOR = type((lambda: (yield))())
MESSAGE_MAX = 1 << 28
SCALARS = frozenset((int, float, str, bool, type(None)))


async def nothing():
    pass

coroutine = nothing()
COROUTINE, CODE, FRAME = type(coroutine), type(nothing.__code__), type(sys._getframe())
coroutine.close()
try:
    raise Exception
except Exception as error:
    TRACEBACK = type(error.__traceback__)

# The special methods that a stand-in's class has when the object's class has them.
ARITHMETIC = frozenset("__%s%s__" % (side, name) for side in ("", "r", "i") for name in (
    "add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "divmod", "pow", "lshift", "rshift", "and", "or", "xor"))
ORDER = frozenset(("__lt__", "__le__", "__gt__", "__ge__"))
NUMBERS = frozenset("__%s__" % name for name in "abs round int float complex index bool neg pos invert trunc floor ceil".split())
SPECIAL = ARITHMETIC | ORDER | NUMBERS | frozenset("__%s__" % name for name in (
    "call iter next reversed len length_hint getitem setitem delitem missing contains enter exit str repr format bytes hash fspath "
    "aiter anext aenter aexit await get set delete set_name").split())

# Containers that are shared: how to list what is in one, and to fill one; both as the base class does it.
def pairs_of(base):
    return lambda v: [*base.keys(v), *base.values(v)]


def pairs_fill(base):
    def fill(v, items):
        base.clear(v)
        for key, value in zip(items[:len(items) // 2], items[len(items) // 2:]):
            base.__setitem__(v, key, value)
    return fill


def items_fill(base, add):
    def fill(v, items):
        base.clear(v)
        add(v, items)
    return fill


ORDERED, DEFAULTS, COUNTER, DEQUE = collections.OrderedDict, collections.defaultdict, collections.Counter, collections.deque
SHARED = {
    list: (list.copy, lambda v, items: list.__setitem__(v, slice(None), items)),
    ORDERED: (pairs_of(ORDERED), pairs_fill(ORDERED)),
    DEFAULTS: (pairs_of(dict), pairs_fill(dict)),
    COUNTER: (pairs_of(dict), pairs_fill(dict)),
    dict: (pairs_of(dict), pairs_fill(dict)),
    set: (lambda v: list(set.__iter__(v)), items_fill(set, set.update)),
    DEQUE: (lambda v: list(DEQUE.__iter__(v)), items_fill(DEQUE, DEQUE.extend)),
    bytearray: (lambda v: list(bytearray.__iter__(v)), lambda v, items: bytearray.__setitem__(v, slice(None), bytes(items))),
}
# Immutable values whose subclasses keep a value of their own.
VALUES = {
    int: int.__pos__, float: float.__pos__, complex: complex.__pos__,
    str: lambda v: str.__getitem__(v, slice(None)), bytes: lambda v: bytes.__getitem__(v, slice(None)),
    tuple: lambda v: tuple(tuple.__iter__(v)), frozenset: lambda v: frozenset(frozenset.__iter__(v)),
}
# Data of the standard library that is copied: the arguments that make it again.
DATA = {
    "decimal.Decimal": lambda v: (str(v),),
    "fractions.Fraction": lambda v: (v.numerator, v.denominator),
    "datetime.date": lambda v: (v.year, v.month, v.day),
    "datetime.time": lambda v: (v.hour, v.minute, v.second, v.microsecond, v.tzinfo),
    "datetime.datetime": lambda v: (v.year, v.month, v.day, v.hour, v.minute, v.second, v.microsecond, v.tzinfo),
    "datetime.timedelta": lambda v: (v.days, v.seconds, v.microseconds),
    "datetime.timezone": lambda v: v.__getinitargs__(),
    "zoneinfo.ZoneInfo": lambda v: (v.key,),
    "uuid.UUID": lambda v: (str(v),),
    "pathlib.PosixPath": lambda v: (str(v),),
    "pathlib.PurePosixPath": lambda v: (str(v),),
    "time.struct_time": lambda v: (tuple(v),),
    "array.array": lambda v: (v.typecode, v.tolist()),
}
VIEWS = {type({}.keys()): "keys", type({}.values()): "values", type({}.items()): "items"}
# Classes and markers that both processes have, by name.
NAMED = {"builtins." + name: value for name, value in BUILTINS.items()
         if isinstance(value, type) and (issubclass(value, BaseException) or value in SHARED or value in VALUES
                                         or value in (object, type, bool, range, slice))}
NAMED["builtins.NoneType"] = type(None)
NAMED.update(("collections." + value.__name__, value) for value in (ORDERED, DEFAULTS, COUNTER, DEQUE))
NAMES = {id(value): name for name, value in NAMED.items()}
MARKERS = ("pathlib.Path", "pathlib.PurePath", "dataclasses._FIELD", "dataclasses._FIELD_CLASSVAR", "dataclasses._FIELD_INITVAR", "dataclasses.MISSING", "inspect._empty")


KEYWORDS = frozenset("False None True and as assert async await break class continue def del elif else except finally for from global if "
                     "import in is lambda nonlocal not or pass raise return try while with yield __debug__".split())


def refuse(value):
    raise TypeError(type(value).__name__)


class Reading:
    """What the JSON scanner wants to know."""
    strict, object_hook, object_pairs_hook, memo = False, None, None, {}
    parse_float, parse_int = float, int
    parse_constant = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": -float("inf")}.__getitem__


json_write = _json.make_encoder(None, refuse, _json.encode_basestring_ascii, None, ":", ",", False, False, True)
json_read = _json.make_scanner(Reading)


def object_at(name):
    """The object that 'module.name.name' means."""
    module, _, rest = name.partition(":")
    found = __import__(module, fromlist=["x"])
    for part in rest.split("."):
        found = getattr(found, part)
    return found


class Peer:
    """One end of the channel between the two processes."""
    def __init__(self, reads, writes, side):
        self.reads, self.writes, self.lock = reads, writes, _thread.RLock()
        self.kept, self.numbers = [], {}           # objects that the other process has stand-ins for; their numbers by id
        self.stand_ins, self.standing = {}, {}     # our stand-ins by number; their numbers by id
        self.shared, self.keys = {}, {}            # [container, base class, what was in it when both were the same]; keys by id
        self.next_key = side                       # one side counts the even keys, the other the odd ones
        self.others = []
        self.local = set()                         # classes made here that derive from a stand-in's class
        self.originals = {}                        # forwarding methods by id: their class and name

    # ---- the channel ----

    def send(self, *message):
        data = "".join(json_write(message, 0)).encode()
        data = len(data).to_bytes(8, "little") + data
        while data:
            data = data[posix.write(self.writes, data):]

    def receive(self):
        def take(n):
            parts = []
            while n > 0:
                part = posix.read(self.reads, min(n, 1 << 20))
                if not part:
                    raise EOFError
                parts.append(part)
                n -= len(part)
            return b"".join(parts)
        size = int.from_bytes(take(8), "little")
        if size > MESSAGE_MAX:
            raise EOFError
        return json_read(take(size).decode(), 0)[0]

    def ask(self, operation, *args):
        """Have the other process do something; returns what it returned or raises what it raised."""
        with self.lock:
            self.send("q", operation, self.changes(), self.pack(args))
            while True:
                kind, *rest = self.received()
                if kind == "q":
                    self.answer(*rest)
                elif kind == "w":
                    self.written(*rest)
                else:
                    value = self.opened(*rest)
                    if kind == "e":
                        raise value
                    return value

    def received(self):
        return self.receive()

    def opened(self, changes, value):
        self.merge(changes)
        return self.unpack(value)

    def answer(self, operation, changes, args):
        kind, args = "a", self.opened(changes, args)
        try:
            value = self.operations[operation](self, *args)
        except BaseException as error:
            kind, value = "e", error
        del args
        with self.lock:
            self.send(kind, self.changes(), self.pack(value))

    # ---- containers that both have ----

    def changes(self):
        gone, changed = [], []
        for key, entry in list(self.shared.items()):
            items = SHARED[entry[1]][0](entry[0])
            if len(items) != len(entry[2]) or not all(map(is_, items, entry[2])):
                entry[2] = items
                changed.append([key, self.pack_all(items)])
            if sys.getrefcount(entry[0]) == 2:    # nobody else here has it
                gone.append(key)
                del self.shared[key], self.keys[id(entry[0])]
        return [gone, changed]

    def merge(self, changes):
        gone, changed = changes[:2]
        for key, items in changed:
            if key in self.shared:
                self.fill(self.shared[key], items)
        for key in gone:
            if key in self.shared:
                del self.keys[id(self.shared.pop(key)[0])]

    def fill(self, entry, items):
        listed, fill = SHARED[entry[1]]
        fill(entry[0], self.unpack_all(items))
        entry[2] = listed(entry[0])

    def share(self, value, base):
        key = self.keys.get(id(value))
        if key is not None:
            return ["s", key]
        key = self.next_key
        self.next_key += 2
        items = SHARED[base][0](value)
        self.keys[id(value)] = key
        self.shared[key] = [value, base, items]
        extra = value.maxlen if base is DEQUE else value.default_factory if base is DEFAULTS else None
        return ["S", key, NAMES[id(base)], self.pack(extra), self.pack_all(items)]

    def unpack_s(self, key):
        return self.shared[key][0]

    def unpack_S(self, key, base, extra, items, cls=None):
        base, extra = NAMED[base], self.unpack(extra)
        if base not in SHARED or type(key) is not int or key in self.shared or key % 2 == self.next_key % 2:
            raise ValueError
        value = base.__new__(cls or base)
        if base is DEQUE:
            DEQUE.__init__(value, (), extra)
        elif base is DEFAULTS:
            DEFAULTS.__init__(value, extra)
        self.keys[id(value)] = key
        self.shared[key] = entry = [value, base, ()]
        self.fill(entry, items)
        return value

    # ---- values ----

    def pack_all(self, values):
        return values if SCALARS.issuperset(map(type, values)) else [self.pack(v) for v in values]

    def unpack_all(self, values):
        return values if SCALARS.issuperset(map(type, values)) else [self.unpack(v) for v in values]

    def pack(self, value):
        kind = type(value)
        if kind in SCALARS:
            return value
        if kind is tuple:
            return ["t", *map(self.pack, value)]
        if kind in SHARED:
            return self.share(value, kind)
        number = self.standing.get(id(value))
        if number is not None:
            set_here = [(k, v) for k, v in value.__dict__.items() if k[:2] != "__"] if kind is FUNCTION and not self.is_test else ()
            return ["y", number, *[[k, self.pack(v)] for k, v in set_here]]
        number = self.numbers.get(id(value))
        return ["m", number] if number is not None else self.pack_other(value, kind)

    def pack_other(self, value, kind):
        if kind in (TRACEBACK, FRAME, CODE):
            return None
        if kind is complex:
            return ["c", value.real, value.imag]
        if kind is bytes:
            return ["b", value.decode("latin1")]
        if kind is frozenset:
            return ["f", *map(self.pack, value)]
        if kind is range:
            return ["r", value.start, value.stop, value.step]
        if kind is slice:
            return ["l", self.pack(value.start), self.pack(value.stop), self.pack(value.step)]
        if value is Ellipsis or value is NotImplemented:
            return ["e", value is Ellipsis]
        if kind in VIEWS:
            return ["v", VIEWS[kind], *map(self.pack, value)]
        name = "%s.%s" % (kind.__module__, kind.__qualname__)
        if name in DATA and getattr(sys.modules.get(kind.__module__), kind.__name__, None) is kind:
            return ["x", name, *map(self.pack, DATA[name](value))]
        name = self.name_of(value, kind)
        if name:
            return ["g", name]
        if type in kind.__mro__:
            return self.describe(value)
        if kind is MODULE and sys.modules.get(value.__name__) is value:
            return self.pack_module(value)
        return self.pack_object(value, kind)

    def keep(self, value):
        self.numbers[id(value)] = len(self.kept)
        self.kept.append(value)
        return len(self.kept) - 1

    def pack_object(self, value, kind):
        number = self.keep(value)
        if kind is GENERATOR or kind is COROUTINE:
            return ["G" if kind is GENERATOR else "C", number]
        if kind is FUNCTION:
            code, defaults, keyword_defaults = value.__code__, value.__defaults__ or (), value.__kwdefaults__ or {}
            names, n, n_all = code.co_varnames, code.co_argcount, code.co_argcount + code.co_kwonlyargcount
            flags = [bool(code.co_flags & bit) for bit in (0x04, 0x08, 0x80, 0x20)]    # *args, **kwargs, async, generator
            shown = [] if self.is_test else [self.pack((defaults, tuple(keyword_defaults.values()))),
                                             self.pack(tuple(value.__annotations__.items())), self.pack(value.__dict__)]
            return ["F", number, value.__name__, value.__doc__, code.co_posonlyargcount, list(names[:n]), len(defaults), list(names[n:n_all]),
                    list(keyword_defaults), *flags, *shown]
        if BaseException in kind.__mro__:
            cls = ["g", NAMES[id(kind)]] if id(kind) in NAMES else self.describe(kind)
            args = self.pack(tuple(value.args))
            set_here = [[k, self.pack(v)] for k, v in vars(value).items() if type(k) is str]
            return ["E", number, cls, args, set_here, self.pack(value.__cause__), value.__suppress_context__]
        for base in kind.__mro__:
            if base in SHARED:
                return ["n", number, self.describe(kind), self.share(value, base)]
            if base in VALUES:
                return ["n", number, self.describe(kind), self.pack(VALUES[base](value))]
        return ["n", number, self.describe(kind)]

    def describe(self, cls):
        """A class, so that the other process can make one that stands for it."""
        if id(cls) in self.standing:
            return ["y", self.standing[id(cls)]]
        if id(cls) in self.numbers:
            return ["m", self.numbers[id(cls)]]
        number, own = self.keep(cls), vars(cls)
        methods = [name for name, value in own.items()
                   if name in SPECIAL and value is not None or type(value) is FUNCTION and (name == "__init__" or not name.startswith("__"))]
        bases = [["g", NAMES[id(base)]] if id(base) in NAMES else self.describe(base) for base in cls.__bases__]
        return ["k", number, cls.__name__, bases, methods, "__eq__" in own, "__hash__" in own and own["__hash__"] is None]

    def unpack(self, message):
        return message if type(message) is not list else getattr(self, "unpack_" + message[0])(*message[1:])

    def unpack_t(self, *items):
        return tuple(map(self.unpack, items))

    def unpack_c(self, real, imag):
        return complex(real, imag)

    def unpack_b(self, text):
        return text.encode("latin1")

    def unpack_f(self, *items):
        return frozenset(map(self.unpack, items))

    def unpack_r(self, *ends):
        return range(*ends)

    def unpack_l(self, *ends):
        return slice(*map(self.unpack, ends))

    def unpack_e(self, ellipsis):
        return Ellipsis if ellipsis else NotImplemented

    def unpack_v(self, kind, *items):
        items = list(map(self.unpack, items))
        return dict(items).items() if kind == "items" else dict.fromkeys(items).keys() if kind == "keys" else dict(enumerate(items)).values()

    def unpack_x(self, name, *args):
        if name not in DATA:
            raise ValueError
        return object_at(name.replace(".", ":", 1))(*map(self.unpack, args))

    def unpack_g(self, name):
        return NAMED[name] if name in NAMED else self.object_named(name)

    def unpack_y(self, number, *set_there):
        value = self.kept[number]
        for name, attribute in set_there:
            if type(value) is FUNCTION and type(name) is str and not name.startswith("__"):
                setattr(value, name, self.unpack(attribute))
        return value

    def unpack_m(self, number):
        return self.stand_ins[number]

    def adopt(self, value, number):
        if type(number) is not int or number in self.stand_ins:
            raise ValueError
        self.stand_ins[number] = value
        self.standing[id(value)] = number
        return value

    def unpack_G(self, number):
        return self.adopt(generator_from(self, number), number)

    def unpack_C(self, number):
        return self.adopt(coroutine_from(self, number), number)

    def unpack_F(self, number, name, doc, n_positional, names, n_defaults, keywords, keyword_defaults, rest, rest_keywords, is_async,
                 is_generator, shown=None, annotations=None, own=None):
        """A function that has the parameters of the other side's function and calls it."""
        if not all(type(n) is str and n.isidentifier() and n not in KEYWORDS and n[:1] + n[-1:] != "__" for n in names + keywords):
            names, n_defaults, keywords, n_positional, rest, rest_keywords = [], 0, [], 0, True, True    # such as a comprehension's
        space = {"_none_": object(), "_call_": lambda args, kwargs: ask_call(target, args, kwargs)}
        defaults = self.unpack(shown) if shown else ((space["_none_"],) * n_defaults, (space["_none_"],) * len(keyword_defaults))
        first = len(names) - n_defaults
        space.update({"_%s_" % n: d for n, d in zip((*names[first:], *keyword_defaults), (*defaults[0], *defaults[1]))})
        optional = {*names[first:], *keyword_defaults}.intersection(names + keywords)
        listed = [n + ("=_%s_" % n if n in optional else "") for n in names]
        if n_positional:
            listed.insert(n_positional, "/")
        if rest or keywords:
            listed.append("*_rest_" if rest else "*")
        listed += [n + ("=_%s_" % n if n in optional else "") for n in keywords]
        if rest_keywords:
            listed.append("**_more_")
        # what is not given is left to the function's own defaults
        given = ["*(() if %s is _%s_ else (%s,))" % (n, n, n) if n in optional else n for n in names]
        if rest:
            given.append("*_rest_")
        named = ["**({} if %s is _%s_ else {%r: %s})" % (n, n, n, n) if n in optional else "%r: %s" % (n, n) for n in keywords]
        if rest_keywords:
            named.append("**_more_")
        wait = "await " if is_async else "yield from " if is_generator else ""
        exec("%sdef made(%s):\n    return (%s_call_((%s), {%s}))\n" % ("async " if is_async else "", ", ".join(listed), wait,
                                                                    "".join(g + ", " for g in given), ", ".join(named)), space)
        target = space["made"]
        target.__name__ = target.__qualname__ = str(name)
        target.__module__, target.__doc__ = "program" if self.is_test else "test", doc
        self.adopt(target, number)
        if annotations:
            target.__annotations__ = dict(self.unpack(annotations))
        if own:
            target.__dict__ = self.unpack(own)
        return target

    def unpack_E(self, number, cls, args, set_there, cause, suppress):
        cls, args = self.unpack(cls), self.unpack(args)
        if not issubclass(cls, BaseException):
            raise ValueError
        value = BaseException.__new__(cls, *args) if issubclass(type(cls), RemoteMeta) else cls(*args)
        value.args = args
        vars(value).update((k, self.unpack(v)) for k, v in set_there)
        value.__cause__, value.__suppress_context__ = self.unpack(cause), bool(suppress)
        return self.adopt(value, number)

    def unpack_n(self, number, cls, content=None):
        cls = self.unpack(cls)
        if not issubclass(type(cls), RemoteMeta):
            raise ValueError
        if content is None:
            value = object.__new__(cls)
        elif type(content) is list and content[0] == "S":
            value = self.unpack_S(*content[1:], cls=cls)
        else:
            content = self.unpack(content)
            value = type(content).__new__(cls, content)
        return self.adopt(value, number)

    def unpack_k(self, number, name, bases, methods, own_equality, unhashable):
        bases = tuple(map(self.unpack, bases))
        name = name if type(name) is str and name.isidentifier() else "object"
        if not any(issubclass(type(base), RemoteMeta) for base in bases):
            bases = (*(base for base in bases if base is not object), Remote)
        space, cell = {"__slots__": (), "__module__": "program", "__doc__": property(lambda own: PEER.ask("get", own, "__doc__"))}, []
        for method in methods:
            space[method] = forward_special(method) if method in SPECIAL else forward_method(self, cell, method)
        if unhashable:
            space["__hash__"] = None
        try:
            cls = type.__new__(RemoteMeta, name, bases, space)
        except TypeError:    # bases that cannot be had together without their own code
            cls = type.__new__(RemoteMeta, name, (Remote,), space)
        cell.append(cls)
        if own_equality:
            self.own_equality.add(cls)
        return self.adopt(cls, number)

    # ---- what the other process may ask; the test's end allows less ----

    own_equality = set()
    is_test = False

    def allowed(self, target, name):
        pass

    def op_call(self, target, args, names, values):
        self.allowed(target, "()")
        return target(*args, **dict(zip(names, values)))

    def op_method(self, target, name, args, names, values):
        self.allowed(target, name)
        return getattr(target, name)(*args, **dict(zip(names, values)))

    def op_get(self, target, name):
        self.allowed(target, name)
        return getattr(target, name)

    def op_set(self, target, name, value):
        self.allowed(target, name + "=")
        setattr(target, name, value)

    def op_del(self, target, name):
        self.allowed(target, name + "=")
        delattr(target, name)

    def op_special(self, target, name, *args):
        if name not in SPECIAL and name != "__eq__":
            raise TypeError(name)
        if type in type(target).__mro__ and name == "__getitem__":
            return target[args[0]]    # of an enumeration, or a generic class
        return getattr(type(target), name)(target, *args)

    def op_step(self, target, name, *args):
        if type(target) is not GENERATOR or name not in ("__next__", "send", "throw", "close"):
            raise TypeError(name)
        return getattr(target, name)(*args)

    operations = {"call": op_call, "method": op_method, "get": op_get, "set": op_set, "del": op_del, "special": op_special, "step": op_step}

    def special(self, target, name, args):
        return self.ask("special", target, name, *args)


def ask_call(target, args, kwargs):
    return PEER.ask("call", target, args, tuple(kwargs), tuple(kwargs.values()))


def forward_special(name):
    if name == "__call__":
        return lambda self, /, *args, **kwargs: ask_call(self, args, kwargs)
    if name == "__await__":
        return lambda self: coroutine_from(PEER, PEER.standing[id(self)]).__await__()
    return lambda self, *args: PEER.special(self, name, args)


def forward_method(peer, cell, name):
    def method(self, /, *args, **kwargs):
        names, values = tuple(kwargs), tuple(kwargs.values())
        if type(self) in peer.local or name == "__init__":    # by way of super()
            return peer.ask("super", cell[0], name, self, args, names, values)
        return peer.ask("method", self, name, args, names, values)
    method.__name__ = name
    peer.originals[id(method)] = (method, name)
    return method


class Other:
    """An object of the other process, by its number, where there is no stand-in for it yet."""
    def __init__(self, peer, number):
        peer.standing[id(self)] = number
        peer.others.append(self)    # an id must not be used twice


def generator_from(peer, number):
    source, step, given = Other(peer, number), "__next__", ()
    while True:
        try:
            value = peer.ask("step", source, step, *given)
        except StopIteration as stop:
            return stop.value
        try:
            sent = yield value
            step, given = ("__next__", ()) if sent is None else ("send", (sent,))
        except GeneratorExit:
            peer.ask("step", source, "close")
            raise
        except BaseException as error:
            step, given = "throw", (error,)


async def coroutine_from(peer, number):
    return await peer.awaited(Other(peer, number))


EXCEPTION_OWN = frozenset(("__traceback__", "__context__", "__cause__", "__suppress_context__", "args"))


class RemoteMeta(type):
    """The class of classes that stand for classes of the other process."""
    def __new__(meta, name, bases, space, **kwargs):
        cls = type.__new__(meta, name, bases, space)    # a class of ours that derives from one of theirs: they make its like
        parts = [(key, *unwrapped(value)) for key, value in space.items() if key not in ("__module__", "__qualname__", "__classcell__")]
        parts = tuple(part for part in parts if part[1])
        PEER.adopt(cls, PEER.ask("derive", name, bases, parts))
        PEER.local.add(cls)
        return cls

    def __call__(cls, *args, **kwargs):
        return PEER.made_by_call(cls, ask_call(cls, args, kwargs))

    def __getattr__(cls, name):
        return PEER.ask("get", cls, name)

    def __setattr__(cls, name, value):
        original = PEER.originals.get(id(value))
        if name in cls.__dict__ or cls in PEER.local:
            type.__setattr__(cls, name, value)
        if original:
            PEER.ask("restore", cls, name)
        else:
            PEER.ask("set", cls, name, value)

    def __delattr__(cls, name):
        if name in cls.__dict__:
            type.__delattr__(cls, name)
        PEER.ask("del", cls, name)

    def __bool__(cls):
        return True

    def __instancecheck__(cls, value):
        return type.__instancecheck__(cls, value) or isinstance(value, Remote) and bool(PEER.ask("isinstance", value, cls))

    __iter__, __len__, __getitem__, __contains__ = (forward_special("__%s__" % n) for n in ("iter", "len", "getitem", "contains"))
    __doc__ = property(lambda cls: PEER.ask("get", cls, "__doc__"))


def unwrapped(value):
    """How to make an attribute of a class again: its kind and its functions."""
    if type(value) is property:
        return "property", (value.fget, value.fset, value.fdel)
    if type(value) in (classmethod, staticmethod):
        return type(value).__name__, (value.__func__,)
    return ("value", (value,)) if not isinstance(value, (type(int.real), type(sys.getsizeof))) or callable(value) else ("", ())


class Remote:
    """An object of the other process."""
    __slots__ = ()

    def __getattr__(self, name):
        return PEER.ask("get", self, name) if name != "__signature__" else PEER.signature(self)

    def __setattr__(self, name, value):
        if name in EXCEPTION_OWN and isinstance(self, BaseException):
            object.__setattr__(self, name, value)
        else:
            PEER.ask("set", self, name, value)

    def __delattr__(self, name):
        PEER.ask("del", self, name)

    def __eq__(self, other):
        return PEER.equal(self, other)

    def __ne__(self, other):
        equal = PEER.equal(self, other)
        return equal if equal is NotImplemented else not equal

    def __hash__(self):
        return PEER.ask("special", self, "__hash__")

    def __str__(self):
        return PEER.special(self, "__str__", ())

    def __repr__(self):
        return PEER.ask("special", self, "__repr__")

    def __format__(self, spec):
        return PEER.ask("special", self, "__format__", spec)

    def __dir__(self):
        return PEER.ask("method", self, "__dir__", (), (), ())

    def __copy__(self):
        return PEER.ask("copy", self, "copy")

    def __deepcopy__(self, memo):
        return PEER.ask("copy", self, "deepcopy")
