"""Runs a test's assertions against a program in another process, so that the program never sees what is expected of it.

The text before this one sets PROGRAM to the program's source; standard input holds the test. Two processes: the child runs the
program with neither the test nor the output open, and answers calls; this one runs the test, in which the program's functions and
classes are stand-ins that ask the child. Only plain data crosses (numbers, texts, lists, dictionaries, sets); other objects stay in
the child, are named by a number, and equal nothing but themselves. Writes "passed" when the test ran to its end.

What a call changes in its lists, dictionaries and sets is changed here too. Functions of the test cannot be given to the program."""
import marshal
import posix
import sys

PLAIN = (int, float, complex, str, bytes, bool, type(None))


def plain(value):
    """value without subclasses, or TypeError for what is not plain data."""
    kind = type(value)
    if kind in PLAIN:
        return value
    if isinstance(value, dict):
        return {plain(k): plain(v) for k, v in value.items()}
    for base in (list, tuple, set, frozenset):
        if isinstance(value, base):
            return base(plain(v) for v in value)
    for base in (bool, int, float, str, bytes):
        if isinstance(value, base):
            return base(value)
    raise TypeError(kind.__name__)


def send(fd, message):
    data = marshal.dumps(message)
    data = len(data).to_bytes(8, "little") + data
    while data:
        data = data[posix.write(fd, data):]


def receive(fd):
    def take(n):
        parts = []
        while n > 0:
            part = posix.read(fd, min(n, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            n -= len(part)
        return b"".join(parts)
    size = int.from_bytes(take(8), "little")
    if size > 1 << 28:
        raise EOFError
    return marshal.loads(take(size))


class Sink:
    def write(self, text):
        return len(text)

    def flush(self):
        pass


def program_main(asks, answers):
    """The child: run the program and answer."""
    objects = []

    def kept(value):
        objects.append(value)
        return len(objects) - 1

    def packed(value):
        try:
            if isinstance(value, dict) and hasattr(type(value), "__missing__"):
                return ("d", plain(value), kept(value))
            return ("v", plain(value))
        except (TypeError, RecursionError):
            return ("h", kept(value), callable(value))

    sys.stdin, sys.stdout, sys.stderr = None, Sink(), Sink()
    module = type(sys)("program")
    sys.modules["program"] = module
    space = module.__dict__
    try:
        exec(compile(PROGRAM, "program.py", "exec"), space)
    except BaseException:
        return
    names = {}
    for name, value in list(space.items()):
        if not name.startswith("__"):
            names[name] = ("m", value.__name__) if type(value) is type(sys) else packed(value)
    send(answers, names)
    while True:
        try:
            op, number, args, kwargs = receive(asks)
        except EOFError:
            return
        try:
            args = [objects[a[1]] if a[0] == "h" else a[1] for a in args]
            kwargs = {k: objects[a[1]] if a[0] == "h" else a[1] for k, a in kwargs.items()}
            target = objects[number]
            if op == "call":
                result = target(*args, **kwargs)
            elif op == "attr":
                result = getattr(target, args[0])
            elif op == "iter":
                result = list(target)
            else:
                result = getattr(__import__("operator"), op)(target, *args) if op not in ("len", "str", "repr", "bool") else \
                    {"len": len, "str": str, "repr": repr, "bool": bool}[op](target)
            changed = []
            for value in args:
                try:
                    changed.append(plain(value) if isinstance(value, (list, dict, set)) else None)
                except (TypeError, RecursionError):
                    changed.append(None)
            answer = (packed(result), changed)
        except BaseException as error:
            answer = (("raise", type(error).__name__, str(error)), [])
        send(answers, answer)


def test_main(asks, answers):
    """This process: run the test."""
    import builtins

    def ask(op, number, args=(), kwargs={}):
        def packed(value):
            return ("h", value._number) if type(value) is Remote else ("v", plain(value))
        send(asks, (op, number, [packed(a) for a in args], {k: packed(v) for k, v in kwargs.items()}))
        answer, changed = receive(answers)
        for mine, new in zip(args, changed):
            if type(mine) is list and type(new) is list:
                mine[:] = new
            elif type(mine) in (dict, set) and type(new) is type(mine):
                mine.clear()
                mine.update(new)
        if answer[0] == "raise":
            kind = getattr(builtins, str(answer[1]), Exception)
            raise kind(answer[2]) if isinstance(kind, type) and issubclass(kind, Exception) else Exception(answer[2])
        return opened(answer)

    class Remote:
        """An object of the program."""
        __slots__ = ("_number",)

        def __init__(self, number):
            object.__setattr__(self, "_number", number)

        def __call__(self, *args, **kwargs):
            return ask("call", self._number, args, kwargs)

        def __getattr__(self, name):
            return ask("attr", self._number, (name,))

        def __eq__(self, other):
            return type(other) is Remote and (self._number == other._number or bool(ask("eq", self._number, (other,))))

        def __hash__(self):
            return hash(self._number)

        def __iter__(self):
            return iter(ask("iter", self._number))

        def __getitem__(self, key):
            return ask("getitem", self._number, (key,))

        def __contains__(self, key):
            return bool(ask("contains", self._number, (key,)))

        def __len__(self):
            return ask("len", self._number)

        def __bool__(self):
            return bool(ask("bool", self._number))

        def __str__(self):
            return str(ask("str", self._number))

        def __repr__(self):
            return str(ask("repr", self._number))

    class Defaults(dict):
        """A dictionary of the program that has values for keys that are not in it, as a Counter."""
        def __missing__(self, key):
            return Remote(self.number)[key]

    def opened(answer):
        if answer[0] == "d":
            value = Defaults(answer[1])
            value.number = answer[2]
            return value
        return Remote(answer[1]) if answer[0] == "h" else answer[1]

    test = sys.stdin.read()
    try:
        names = receive(answers)
    except EOFError:
        return
    space = {"__name__": "test"}
    for name, answer in names.items():
        if answer[0] == "m":
            try:
                space[name] = __import__(answer[1])
            except ImportError:
                pass
        else:
            space[name] = opened(answer)
    out, sys.stdout = sys.stdout, Sink()
    exec(compile(test, "test.py", "exec"), space)
    out.write("passed")
    out.flush()


def main():
    asks, answers = posix.pipe(), posix.pipe()
    if posix.fork() == 0:
        try:
            a, b = posix.dup(asks[0]), posix.dup(answers[1])
            for fd in range(0, 64):    # the test, the output, and everything else
                if fd not in (a, b):
                    try:
                        posix.close(fd)
                    except OSError:
                        pass
            program_main(a, b)
        finally:
            posix._exit(0)
    posix.close(asks[0])
    posix.close(answers[1])
    test_main(asks[1], answers[0])


main()
