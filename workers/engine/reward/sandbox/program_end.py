"""The process of asserts.py that runs the program: its standard streams, and what the test may ask of it."""


class Text:
    """Standard output or error."""
    encoding, errors, closed = "utf-8", "strict", False

    def __init__(self, write):
        self.write_text = write

    def write(self, text):
        if not isinstance(text, str):
            raise TypeError("write() argument must be str, not %s" % type(text).__name__)
        self.write_text(text)
        return len(text)

    def writelines(self, lines):
        for line in lines:
            self.write(line)

    def flush(self):
        pass

    def isatty(self):
        return False

    def fileno(self):
        raise OSError("no file descriptor")

    def writable(self):
        return True

    def close(self):
        pass

    @property
    def buffer(self):
        return Bytes(self)


class Bytes:
    def __init__(self, text):
        self.text = text

    def write(self, data):
        self.text.write(bytes(data).decode("utf-8", "replace"))
        return len(data)

    def flush(self):
        pass


class Input:
    """The program's standard input, which is the test's."""
    encoding, errors, closed = "utf-8", "strict", False

    def isatty(self):
        return False

    def fileno(self):
        raise OSError("no file descriptor")

    def readable(self):
        return True

    def close(self):
        pass

    @property
    def buffer(self):
        return InputBytes(self)

    def __iter__(self):
        return iter(self.readline, "")

    def __next__(self):
        line = self.readline()
        if not line:
            raise StopIteration
        return line

    read, readline, readlines = (lambda self, *args, name=n: PEER.ask("stdin", name, *args) for n in ("read", "readline", "readlines"))


class InputBytes:
    def __init__(self, text):
        self.text = text

    def read(self, *n):
        return self.text.read(*n).encode("utf-8", "surrogateescape")

    def readline(self):
        return self.text.readline().encode("utf-8", "surrogateescape")

    def readlines(self):
        return list(self)

    def __iter__(self):
        return iter(self.readline, b"")


class ProgramPeer(Peer):
    """The program's end: answers everything."""
    def __init__(self, reads, writes):
        super().__init__(reads, writes, 1)
        self.text, self.text_size, self.sent = [], 0, {}
        self.replaced, self.tasks, self.loop = {}, [], None
        self.space = {}

    def printed(self, stream, text):
        self.text.append([stream, text])
        self.text_size += len(text)
        if self.text_size > 1 << 16:
            with self.lock:
                self.flush()

    def flush(self):
        text, self.text, self.text_size = self.text, [], 0
        for stream in {stream for stream, _ in text}:
            super().send("w", stream, "".join(part for where, part in text if where == stream))

    def send(self, *message):
        if self.text:
            self.flush()
        super().send(*message)

    def changes(self):
        """Also the program's global names whose value is another one than the test knows."""
        names = []
        for name, value in list(self.space.items()):
            if not name.startswith("__") and self.sent.get(name, self) is not value:
                self.sent[name] = value
                names.append([name, self.pack(value)])
        return [*super().changes(), names]

    def name_of(self, value, kind):
        name = NAMES.get(id(value))
        if not name and kind is type and "%s.%s" % (value.__module__, value.__qualname__) in {*DATA, *MARKERS}:
            name = "%s.%s" % (value.__module__, value.__qualname__)
            return name if object_at(name.replace(".", ":")) is value else None
        if not name and (kind.__module__ == "dataclasses" or kind is type and value.__module__ in ("dataclasses", "inspect")):
            name = next((marker for marker in MARKERS if object_at(marker.replace(".", ":")) is value), None)
        return name

    def object_named(self, name):
        return object_at(name)

    def pack_module(self, module):
        return ["M", module.__name__, self.pack_object(module, MODULE)]

    def unpack_M(self, name):
        __import__(name)
        return sys.modules[name]

    def equal(self, mine, other):
        return self.ask("special", mine, "__eq__", other) if self.own_equality.intersection(type(mine).__mro__) else NotImplemented

    def made_by_call(self, cls, value):
        return value

    def signature(self, target):
        raise AttributeError("__signature__")

    def written(self, stream, text):
        pass

    async def awaited(self, other):
        return self.ask("await", other)

    def op_start(self):
        """Run the program. Returns the names that its functions use."""
        try:
            code = compile(PROGRAM, "program.py", "exec")
            exec(code, sys.modules["program"].__dict__)
        except BaseException:
            posix._exit(0)
        self.space = sys.modules["program"].__dict__
        return tuple(set().union(*(words_of(c)[0] for c in code.co_consts if type(c) is CODE)))

    def op_logs(self):
        """Have the test's loggers hear what the program logs."""
        import logging
        enabled, handle = logging.Logger.isEnabledFor, logging.Logger.handle

        def forward(logger, record):
            self.ask("log", logger.name, record.levelno, record.getMessage())
            if enabled(logger, record.levelno):
                handle(logger, record)
        logging.Logger.isEnabledFor, logging.Logger.handle, logging.lastResort = lambda *_: True, forward, None

    def op_warnings(self):
        import warnings
        warnings.warn = lambda message, category=None, *_, **__: self.ask("warn", message, category)

    def op_isinstance(self, value, cls):
        return isinstance(value, cls)

    def op_issubclass(self, value, cls):
        return issubclass(value, cls)

    def op_super(self, cls, name, target, args, names, values):
        return getattr(cls, name)(target, *args, **dict(zip(names, values)))

    def op_derive(self, name, bases, parts):
        makers = {"property": property, "classmethod": classmethod, "staticmethod": staticmethod, "value": lambda value: value}
        cls = type(bases[0])(name, bases, {key: makers[kind](*values) for key, kind, values in parts})
        return self.keep(cls)

    def op_set(self, target, name, value):
        if isinstance(target, type):
            self.replaced.setdefault((target, name), vars(target).get(name))
        setattr(target, name, value)

    def op_restore(self, cls, name):
        setattr(cls, name, self.replaced[cls, name])

    def op_signature(self, target):
        import inspect
        return tuple((p.name, int(p.kind), p.default, p.annotation) for p in inspect.signature(target).parameters.values())

    def op_copy(self, target, how):
        import copy
        return getattr(copy, how)(target)

    def op_image(self, target, kind):
        """What target is as plain data, before it is told what it is compared with."""
        kind = NAMED["builtins." + kind]
        own = list(vars(target).values()) if hasattr(target, "__dict__") else []
        try:
            found = [kind(target)]
        except Exception:
            found = [kind(own)] if kind in (list, tuple) else []
        return found + own if len(own) == 1 else found

    def op_patch(self, module, name, value):
        if module is None:
            self.space[name] = self.sent[name] = value
            return
        module = self.unpack_M(module)
        self.replaced.setdefault((module, name), getattr(module, name, None))
        setattr(module, name, value)

    def op_unpatch(self, module, name):
        module = self.unpack_M(module)
        setattr(module, name, self.replaced[module, name])

    def op_environ(self, names, values):
        import os
        os.environ.clear()
        os.environ.update(zip(names, values))

    def op_seed(self, args):
        import random
        random.seed(*args)

    def op_task(self, target):
        import asyncio

        async def run():
            return await target
        self.loop = self.loop or asyncio.new_event_loop()
        self.tasks.append(self.loop.create_task(run()))
        return len(self.tasks) - 1

    def op_turn(self, number):
        import asyncio
        done, _ = self.loop.run_until_complete(asyncio.wait({self.tasks[number]}, timeout=0.001))
        return bool(done)

    def op_result(self, number):
        return self.tasks[number].result()

    def op_cancel(self, number):
        import asyncio
        self.tasks[number].cancel()
        self.loop.run_until_complete(asyncio.wait({self.tasks[number]}, timeout=0.1))

    operations = {**Peer.operations, "start": op_start, "logs": op_logs, "warnings": op_warnings, "isinstance": op_isinstance,
                  "issubclass": op_issubclass, "set": op_set, "super": op_super, "derive": op_derive, "restore": op_restore, "copy": op_copy, "signature": op_signature,
                  "image": op_image, "patch": op_patch, "unpatch": op_unpatch, "environ": op_environ, "seed": op_seed, "task": op_task,
                  "turn": op_turn, "result": op_result, "cancel": op_cancel}


def program_main(reads, writes):
    """The child: run the program and answer."""
    global PEER
    PEER = peer = ProgramPeer(reads, writes)
    BUILTINS["input"] = lambda prompt="", /: peer.ask("input", str(prompt))
    sys.stdin = sys.__stdin__ = Input()
    sys.stdout = sys.__stdout__ = Text(lambda text: peer.printed(1, text))
    sys.stderr = sys.__stderr__ = Text(lambda text: peer.printed(2, text))
    module = MODULE("program")
    sys.modules["program"] = sys.modules["__main__"] = module
    while True:
        try:
            message = peer.receive()
        except EOFError:
            return
        peer.answer(*message[1:])
