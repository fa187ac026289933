"""The process of asserts.py that runs the test: what the program may ask of it, and what an object of the program may decide."""
# Objects of the test that the program may call or step through but not look into, and what only such objects have.
METHOD, BUILTIN = type(Text.write.__get__(1)), type(len)
OPAQUE = frozenset((FUNCTION, METHOD, BUILTIN, GENERATOR, COROUTINE, MODULE, TRACEBACK, FRAME, CODE, type(str.upper), type([].__len__)))
INSIDE = ("__", "gi_", "cr_", "ag_", "f_", "tb_", "co_", "func_")
# Methods of texts and containers that are told what is expected.
TELLING = frozenset(("startswith", "endswith", "issubset", "issuperset", "isdisjoint"))


# What the program asks the test for each time it uses it, and what is each process's own.
ASKED = frozenset((("builtins", "input"), ("sys", "stdin"), ("sys", "stdout"), ("sys", "stderr"), ("sys", "modules"), ("sys", "path"),
                   ("logging", "lastResort"), ("warnings", "warn")))


class TestPeer(Peer):
    """The test's end: trusts nothing that comes."""
    is_test = True

    def __init__(self, reads, writes, out):
        super().__init__(reads, writes, 0)
        self.out = out
        self.module = MODULE("test")
        self.space, self.known = self.module.__dict__, {}    # the test's names, and those of the program with the value it knows
        self.words, self.capitals = frozenset(), frozenset()
        self.made, self.told = set(), set()                  # by id: objects the test made, and results of telling an object something
        self.watched, self.now, self.patching, self.environ = {}, {}, False, None
        self.mocked, self.pushed, self.unsure = set(), {}, None    # names of the program that the test's mocks replace, their values
        self.seen = set()                                    # modules that are watched
        self.read = ()                                       # names that the program's functions read

    def end(self, word=""):
        self.out.write(word)
        self.out.flush()
        posix._exit(0)

    def left_out(self, reason):
        self.end("left out: " + reason)

    def received(self):
        try:
            return self.receive()
        except BaseException:
            self.end()

    def opened(self, changes, value):
        try:
            return super().opened(changes, value)
        except BaseException:
            self.end()

    def answer(self, *message):
        if len(message) != 3 or message[0] not in self.operations:
            self.end()
        super().answer(*message)

    def failed(self):
        self.left_out(self.unsure) if self.unsure else self.end()

    def written(self, stream, text):
        (sys.stderr if stream == 2 else sys.stdout).write(str(text))

    def merge(self, changes):
        super().merge(changes)
        for name, value in changes[2]:
            value = self.unpack(value)
            if self.space.get(name, self) is self.known.get(name, self):
                self.space[str(name)] = value
            self.known[str(name)] = value

    def ask(self, operation, *args):
        if operation in ("get", "method") and args[1] in TELLING and type(args[0]).__module__ == "program" and id(args[0]) not in self.made:
            self.left_out("the test asks an object of the class '%s' that the program returned" % type(args[0]).__name__)
        with self.lock:
            if not self.patching:
                self.patching = True
                try:
                    self.patch()
                finally:
                    self.patching = False
            return super().ask(operation, *args)

    # ---- what the test changes in modules and in the program's names ----

    def watch(self):
        """Know the attributes of modules that the test may replace."""
        for name, module in list(sys.modules.items()):
            if type(module) is MODULE:
                self.watch_module(name, module)

    def watch_module(self, name, module):
        seen = name in self.seen
        if name == "logging" and not seen and self.words & {"logging", "assertLogs", "assertNoLogs"}:
            self.ask("logs")
            self.seen.add(name)
        if name in ("test", "__main__") or name.rpartition(".")[2] not in self.words:
            return
        for word in self.words.intersection(vars(module)):
            if (name, word) not in self.watched and (name, word) not in ASKED:
                self.watched[name, word] = self.now[name, word] = vars(module)[word]
        self.seen.add(name)
        if name == "random" and "seed" in self.words and not seen:
            seed = module.seed

            def both(*args):
                self.ask("seed", args)
                seed(*args)
            module.seed = self.watched[name, "seed"] = self.now[name, "seed"] = both
        if name == "warnings" and not seen:
            self.ask("warnings")
        if name == "enum" and not seen:    # its classes know only real ones
            meta = module.EnumMeta
            meta.__instancecheck__ = lambda cls, value: type.__instancecheck__(cls, value) or (
                isinstance(value, Remote) and bool(self.ask("isinstance", value, cls)))
            meta.__subclasscheck__ = lambda cls, value: type.__subclasscheck__(cls, value) or (
                type(value) is RemoteMeta and bool(self.ask("issubclass", value, cls)))
        if name == "unittest.mock" and not seen:
            enter, leave = module._patch.__enter__, module._patch.__exit__

            def entered(patch):
                value = enter(patch)
                if patch.target is self.module:
                    self.mocked.add(patch.attribute)
                return value

            def left(patch, *error):
                self.mocked.discard(patch.attribute)
                return leave(patch, *error)
            module._patch.__enter__, module._patch.__exit__ = entered, left

    def patch(self):
        """Tell the program what the test has replaced. A global name that the test only happens to have too may hold the answer."""
        for name, known in list(self.known.items()):
            value = self.space.get(name, known)
            if value is known:
                continue
            if name in self.mocked or type(value).__module__ in ("program", "unittest.mock") or id(value) in self.standing or value is self.pushed.get(name, self):
                self.pushed.setdefault(name, known)
                self.known[name] = value
                self.ask("patch", None, name, value)
            elif name in self.read and (self.is_plain(value) or type(value) is FUNCTION and value.__name__ != name):
                self.unsure = "the test sets '%s', which the program's functions read" % name
        for (module, name), original in list(self.watched.items()):
            value = vars(sys.modules[module]).get(name, original)
            if value is not self.now[module, name]:
                self.now[module, name] = value
                self.ask("unpatch", module, name) if value is original else self.ask("patch", module, name, value)
        if "environ" in self.words and "os" in sys.modules:
            environ = dict(sys.modules["os"].environ)
            if self.environ not in (None, environ):
                self.ask("environ", tuple(environ), tuple(environ.values()))
            self.environ = environ

    # ---- values ----

    def name_of(self, value, kind):
        if id(value) in NAMES:
            return NAMES[id(value)]
        if not (type in kind.__mro__ or kind in OPAQUE) or kind in (GENERATOR, COROUTINE, METHOD):
            return None
        module = getattr(getattr(value, "__objclass__", value), "__module__", None)
        if type(module) is not str or module == "test" or module not in sys.modules:
            return None
        try:
            name = "%s:%s" % (module, value.__qualname__)
            return name if object_at(name) is value else None
        except AttributeError:
            return None

    def object_named(self, name):
        if name not in MARKERS and name not in DATA:
            raise ValueError
        return object_at(name.replace(".", ":"))

    def pack_module(self, module):
        return ["M", module.__name__]

    def unpack_M(self, name, message):
        module = self.unpack(message)
        if str(name).partition(".")[0] in sys.stdlib_module_names - {"unittest", "test"}:
            try:
                __import__(name)
                module = sys.modules[name]
                self.stand_ins[message[1]], self.standing[id(module)] = module, message[1]
            except ImportError:
                pass
        return module

    def is_plain(self, value):
        kind = type(value)
        return (kind in SCALARS or kind in SHARED or kind in VALUES or kind in (range, *VIEWS) or "%s.%s" % (kind.__module__, kind.__qualname__) in DATA)

    # ---- what the program may ask ----

    def allowed(self, target, name):
        kind, changes = type(target), name[-1:] == "="
        if name == "()":
            return
        own = kind.__module__ == "test"
        if own and name.startswith("__") or type in kind.__mro__ and target.__module__ == "test" and (changes or name.startswith("__")):
            self.unsure = "the program looks into the class '%s' of the test, or changes it" % (kind if own else target).__name__
        if (kind in OPAQUE or name.startswith(INSIDE) or name[0] == "_" and not own or type in kind.__mro__ and changes
                or changes and not own and not kind.__module__.startswith("unittest.mock")):
            raise AttributeError("%r object has no attribute %r for the program" % (kind.__name__, name))

    def op_input(self, prompt=""):
        import builtins
        return builtins.input(prompt)

    def op_log(self, name, level, text):
        import logging
        logger = logging.getLogger(str(name))
        if logger.isEnabledFor(level):
            logger.handle(logger.makeRecord(str(name), level, "program.py", 0, str(text), (), None))

    def op_warn(self, message, category):
        import warnings
        warnings.warn(message, category, 3)

    def op_stdin(self, name, *args):
        if name not in ("read", "readline", "readlines"):
            raise AttributeError(name)
        return getattr(sys.stdin, name)(*args)

    def op_await(self, target):
        """Run a coroutine to its end; in a thread, since this one may be running a loop."""
        import asyncio
        import threading
        result = []

        async def run():
            return await target

        def work():
            try:
                result.append((asyncio.run(run()), None))
            except BaseException as error:
                result.append((None, error))
        self.lock.release()
        try:
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        finally:
            self.lock.acquire()
        if result[0][1] is not None:
            raise result[0][1]
        return result[0][0]

    operations = {**Peer.operations, "input": op_input, "log": op_log, "warn": op_warn, "stdin": op_stdin, "await": op_await}

    # ---- what an object of the program may decide ----

    def made_by_call(self, cls, value):
        if any(self.space.get(name) is cls for name in self.capitals):
            self.made.add(id(value))
        return value

    def signature(self, target):
        import inspect
        if type(target).__name__ not in ("function", "method"):
            raise AttributeError("__signature__")
        return inspect.Signature([inspect.Parameter(name, inspect._ParameterKind(kind), default=default, annotation=annotation)
                                  for name, kind, default, annotation in self.ask("signature", target)])

    def equal(self, mine, other):
        if mine is other:
            return True
        if issubclass(type(type(other)), RemoteMeta) or issubclass(type(other), RemoteMeta):
            return self.ask("special", mine, "__eq__", other)
        if not self.is_plain(other):
            if type(other).__name__ == type(mine).__name__ and type(other).__module__ != "test":
                self.unsure = "the test compares objects of the class '%s', which cannot be copied" % type(other).__name__
            return NotImplemented
        if id(mine) in self.made:
            return self.ask("special", mine, "__eq__", other)
        if other is None or not self.own_equality.intersection(type(mine).__mro__):
            return False
        kind = type(other)
        images = self.ask("image", mine, kind.__name__) if "builtins." + kind.__name__ in NAMED else []
        if type(images) is not list or not any(type(image) is kind and image == other for image in images[:2]):
            return False
        return self.ask("special", mine, "__eq__", other)

    def special(self, target, name, args):
        if issubclass(type(target), RemoteMeta) or id(target) in self.made:
            return self.ask("special", target, name, *args)
        why = "the test compares or computes with an object of the class '%s' that the program returned" % type(target).__name__
        tells = bool(args) and self.is_plain(args[0])
        if id(target) in self.told and name in NUMBERS | ORDER or tells and (name in ORDER or name == "__contains__"):
            self.left_out(why)
        value = self.ask("special", target, name, *args)
        if tells and name in ARITHMETIC and value is not NotImplemented:
            if not issubclass(type(type(value)), RemoteMeta):
                self.left_out(why)
            self.told.add(id(value))
        return value

    async def awaited(self, other):
        import asyncio
        task = self.ask("task", other)
        try:
            while not self.ask("turn", task):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.ask("cancel", task)
            raise
        return self.ask("result", task)


def test_main(reads, writes):
    """This process: run the test."""
    import io
    global PEER
    text, out = sys.stdin.read(), sys.stdout
    sys.path[:] = [path for path in sys.path if path.startswith("/usr/")]    # the program may have written modules elsewhere
    sys.stdin = sys.__stdin__ = io.StringIO("")
    sys.stdout = sys.__stdout__ = Text(lambda text: None)
    sys.stderr = sys.__stderr__ = Text(lambda text: None)
    PEER = peer = TestPeer(reads, writes, out)
    peer.read = peer.ask("start")
    if type(peer.read) is not tuple:
        peer.end()
    sys.modules["test"] = sys.modules["__main__"] = peer.module
    peer.space["__builtins__"] = __builtins__
    try:
        code = compile(text, "test.py", "exec")
    except (SyntaxError, ValueError):
        peer.end()
    names, texts = words_of(code)
    words = names.union(*(text.replace(".", " ").split() for text in (*texts, *names)))
    peer.words = frozenset(words)
    peer.capitals = frozenset(name for name in names if name[:1].isupper())
    for text in texts:    # such as patch("random.randint")
        path = text.split(".") if len(text) < 99 else ()
        if len(path) > 1 and path[0] in sys.stdlib_module_names and path[0] not in ("antigravity", "this", "test"):
            try:
                for i in range(len(path)):
                    __import__(".".join(path[:i + 1]))
            except (ImportError, ValueError):
                pass
    peer.watch()
    really_import = BUILTINS["__import__"]

    def watched_import(name, space=None, *args, **kwargs):
        before = len(sys.modules)
        module = really_import(name, space, *args, **kwargs)
        if len(sys.modules) != before and space is peer.space:    # not for what a module that is only half there imports
            peer.watch()
        return module
    BUILTINS["__import__"] = watched_import
    try:
        exec(code, peer.space)
    except SystemExit as error:
        if error.code or id(error) in peer.standing:
            peer.failed()
    except ModuleNotFoundError as error:
        if id(error) not in peer.standing:
            peer.left_out("the test imports '%s', which the sandbox's Python does not have" % error.name)
        peer.failed()
    except BaseException:
        peer.failed()
    peer.end("passed")
