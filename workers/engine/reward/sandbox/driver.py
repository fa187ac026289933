"""The inside of the code sandboxes: a warm interpreter that makes one sandbox per completion by cloning itself.

The zygote is pid 1 of bubblewrap's namespaces; no untrusted code ever runs in it. For each completion it receives a
packet with four descriptors and clones a driver into separate namespaces (processes, mounts, System V objects); the
driver mounts a private /tmp, drops all privileges, installs the system call filter and only then receives a program. It
is pid 1 of its namespace: the program cannot stop it with a signal, and when it is killed everything inside is killed
too. It forks one child per test case.

Descriptors of the zygote: 3 its socket, 6 this file, 8 the filter. Descriptors of a driver: 2 its own errors, 3 commands and answers
(one packet each), 4 input (a memory file: first the program's source, then each case's input), 5 output (a memory file, emptied
by the other side before each case).

    "S"         the input file holds the source of a program that reads stdin and writes stdout
    "F name"    the same for a program whose function (or method of class Solution) is called
    "A"         the same for a program that each case's input asserts something of (asserts.py, which is here as ASSERTS)
    "R"         run a case on what the input file holds now

Each is answered by one packet: "ready" at the start, then "ok", "compile ERROR" or "exit STATUS" with the raw wait
status. No expected output ever comes here, so there is nothing to steal; this process only passes a case's input and
output on, and the comparison is made outside. N_TASK (the most processes and threads), CPU_S (processor seconds of a
process), TMP_BYTES and ASSERTS are defined by the command that runs this."""
import posix
import sys
from _signal import signal

COMMAND, INPUT, OUTPUT = 3, 4, 5
FILES_MAX = 20000    # in /tmp: each costs the kernel about a kilobyte that no size limit counts
# Exit statuses of a case's child; they only name the reason of a failure, and all of them score 0.
EXIT_EXCEPTION, EXIT_MEMORY, EXIT_FULL, EXIT_ANSWER, EXIT_MISSING, EXIT_NAME = 80, 81, 82, 83, 84, 85

# A program may signal pid 1, but only signals with a handler get through, and python installs one for SIGINT.
IGNORED = (1, 2, 3, 15)

SOURCE = "/tmp/program.py"    # the program's own file, for __file__ and inspect.getsource; a program may change its copy

# What PRIME's runner imports with wildcards before a program, in its order: a later module wins. Written out so that a
# module is loaded only when the program failed for lack of one of its names.
PRELUDE = (
    ("string", "Formatter Template ascii_letters ascii_lowercase ascii_uppercase capwords digits hexdigits octdigits "
               "printable punctuation whitespace"),
    ("re", "A ASCII DOTALL I IGNORECASE M MULTILINE Match Pattern S VERBOSE X compile error escape findall finditer "
           "fullmatch match purge search split sub subn template"),
    ("datetime", "MAXYEAR MINYEAR UTC date datetime time timedelta timezone tzinfo"),
    ("collections", "ChainMap Counter OrderedDict UserDict UserList UserString defaultdict deque namedtuple"),
    ("heapq", "heapify heappop heappush heappushpop heapreplace merge nlargest nsmallest"),
    ("bisect", "bisect bisect_left bisect_right insort insort_left insort_right"),
    ("copy", "Error copy deepcopy"),
    ("math", "acos acosh asin asinh atan atan2 atanh cbrt ceil comb copysign cos cosh degrees dist e erf erfc exp exp2 "
             "expm1 fabs factorial floor fmod frexp fsum gamma gcd hypot inf isclose isfinite isinf isnan isqrt lcm "
             "ldexp lgamma log log10 log1p log2 modf nan nextafter perm pi prod radians remainder sin sinh sqrt tan "
             "tanh tau trunc ulp"),
    ("random", "Random SystemRandom betavariate choice choices expovariate gammavariate gauss getrandbits getstate "
               "lognormvariate normalvariate paretovariate randbytes randint random randrange sample seed setstate "
               "shuffle triangular uniform vonmisesvariate weibullvariate"),
    ("statistics", "NormalDist StatisticsError correlation covariance fmean geometric_mean harmonic_mean "
                   "linear_regression mean median median_grouped median_high median_low mode multimode pstdev "
                   "pvariance quantiles stdev variance"),
    ("itertools", "accumulate chain combinations combinations_with_replacement compress count cycle dropwhile "
                  "filterfalse groupby islice pairwise permutations product repeat starmap takewhile tee zip_longest"),
    ("functools", "WRAPPER_ASSIGNMENTS WRAPPER_UPDATES cache cached_property cmp_to_key lru_cache partial "
                  "partialmethod reduce singledispatch singledispatchmethod total_ordering update_wrapper wraps"),
    ("operator", "add and_ attrgetter call concat contains countOf delitem eq floordiv ge getitem gt iadd iand iconcat "
                 "ifloordiv ilshift imatmul imod imul index indexOf inv invert ior ipow irshift is_ is_not isub "
                 "itemgetter itruediv ixor le length_hint lshift lt matmul methodcaller mod mul ne neg not_ or_ pos "
                 "rshift setitem sub truediv truth xor"),
    ("io", "BufferedIOBase BytesIO FileIO IOBase RawIOBase StringIO TextIOBase TextIOWrapper"),
    ("sys", "argv byteorder exit getrecursionlimit getsizeof intern maxsize setrecursionlimit stderr stdin stdout "
            "version version_info"),
    ("json", "JSONDecodeError JSONDecoder JSONEncoder dump dumps load loads"),
    ("typing", "AbstractSet Any AnyStr AsyncIterable AsyncIterator Awaitable BinaryIO ByteString Callable ChainMap "
               "ClassVar Collection Concatenate Container Coroutine Counter DefaultDict Deque Dict Final ForwardRef "
               "FrozenSet Generator Generic Hashable IO ItemsView Iterable Iterator KeysView List Literal Mapping "
               "MappingView MutableMapping MutableSequence MutableSet NamedTuple NewType NoReturn Optional "
               "OrderedDict ParamSpec Protocol Reversible Self Sequence Set Sized SupportsFloat SupportsInt Text "
               "TextIO Tuple Type TypeVar TypedDict Union ValuesView cast final overload"),
)
MODULES = frozenset(module for module, _ in PRELUDE)
# Loaded before the first case when the source names them, so that the cases share the work.
WARM = MODULES | {"array", "cmath", "decimal", "enum", "fractions", "numbers", "os", "queue", "threading", "time",
                  "types"}

# Loaded by the zygote: what most programs import and what adds little to the cost of a clone. All of WARM would add a third to
# the cost of a fork.
PRELOADED = ("bisect", "collections", "functools", "heapq", "itertools", "math", "time")


def names_of(code):
    """All names that a code object and those inside it mention."""
    found, waiting = set(), [code]
    while waiting:
        one = waiting.pop()
        found.update(one.co_names)
        waiting.extend(c for c in one.co_consts if isinstance(c, type(code)))
    return found


def prelude_for(names):
    """The names that the prelude would have given this program; collections' Counter and the like win over typing's."""
    space = {}
    for module, listed in PRELUDE:
        wanted = names.intersection(listed.split())
        if wanted or module in names:
            loaded = __import__(module)
            if module in names:
                space.setdefault(module, loaded)
            for name in wanted:
                if module != "typing" or name not in space:
                    space[name] = getattr(loaded, name)
    return space


def case_call(space, name, write):
    """Call the function on the input's JSON values, one per line; write its result as JSON."""
    import _json

    class Context:
        strict, object_hook, object_pairs_hook, memo = True, None, None, {}
        parse_float, parse_int, parse_constant = float, int, float

    scan = _json.make_scanner(Context)
    values = []
    for line in sys.stdin.read().split("\n"):
        value = scan(line.strip(), 0)[0]
        if type(value) is dict and value and all(k.lstrip("-").isdigit() for k in value):
            value = {int(k): v for k, v in value.items()}    # JSON cannot write keys that are numbers
        values.append(value)
    function = getattr(space["Solution"](), name, None) if "Solution" in space else space.get(name)
    if not callable(function):
        return EXIT_MISSING
    result = function(*values)

    def refuse(thing):
        raise TypeError

    try:
        encode = _json.make_encoder({}, refuse, _json.encode_basestring_ascii, None, ":", ",", False, False, True)
        text = "".join(encode(result, 0))
    except MemoryError:
        raise
    except Exception:
        return EXIT_ANSWER    # not a JSON value: it equals no expected one
    data = text.encode()
    while data:
        data = data[write(OUTPUT, data):]
    return 0


def case_main(code, name, extra):
    """The forked child: run the program on descriptors 0 and 1 and exit; never returns."""
    status = EXIT_EXCEPTION
    leave, write, names = posix._exit, posix.write, EXIT_NAME
    try:
        posix.lseek(INPUT, 0, 0)
        posix.lseek(OUTPUT, 0, 0)
        posix.dup2(INPUT, 0)
        if name is None:
            posix.dup2(OUTPUT, 1)
            posix.close(OUTPUT)
        posix.close(COMMAND)
        posix.close(INPUT)
        # nobody reads what a program says to descriptor 2, so it may say any amount
        posix.dup2(posix.open("/dev/null", posix.O_WRONLY), 2)
        for number in IGNORED:
            signal(number, 0)
        sys.stdin = sys.__stdin__ = open(0, "r", encoding="utf-8", errors="surrogateescape", closefd=False)
        sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)
        module = type(sys)("__main__" if name is None else "solution")
        space = module.__dict__
        space.update(extra, __file__=SOURCE, __builtins__=__builtins__)
        sys.modules[module.__name__] = module
        sys.argv = [SOURCE]
        sys.path.insert(0, "/tmp")
        sys.setrecursionlimit(600000)
        try:
            try:
                exec(code, space)
                status = 0 if name is None else case_call(space, name, write)
            except SystemExit:
                status = 0 if name is None else EXIT_MISSING    # PRIME accepts any exit status of a program
            threading = sys.modules.get("threading")
            if threading is not None:
                threading._shutdown()
            import atexit
            atexit._run_exitfuncs()
            sys.stdout.flush()
        except NameError as error:
            status = names if not extra and error.name is not None else EXIT_EXCEPTION
        except MemoryError:
            status = EXIT_MEMORY
        except OSError as error:
            # ENOMEM, and EFBIG: the limit on a file's size
            status = EXIT_MEMORY if error.errno == 12 else EXIT_FULL if error.errno == 27 else EXIT_EXCEPTION
        except BaseException:
            status = EXIT_EXCEPTION
        if status == EXIT_EXCEPTION:
            sys.stdout.flush()
    except BaseException:
        pass
    finally:
        leave(status)


def case_run(code, name, extra):
    """Fork a child for one case, wait for it, and leave only this process alive. Returns the wait status."""
    pid = posix.fork()
    if pid == 0:
        case_main(code, name, extra)
    status = -1
    while True:
        try:
            done, how = posix.waitpid(-1 if status >= 0 else pid, 0)
        except ChildProcessError:
            return status
        if done == pid:
            status = how
        try:
            posix.kill(-1, 9)    # whatever the program started; pid 1 itself is spared
        except ProcessLookupError:
            pass


def source_write(source):
    fd = posix.open(SOURCE, posix.O_WRONLY | posix.O_CREAT | posix.O_CLOEXEC, 0o644)
    while source:
        source = source[posix.write(fd, source):]
    posix.close(fd)


def builtins_complete():
    """What the module site, which costs more to load than all the rest, gives every program: quit, exit, help and three texts."""
    import _sitebuiltins
    import builtins
    for name in ("quit", "exit"):
        setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D (i.e. EOF)"))
    for name in ("copyright", "credits", "license"):
        setattr(builtins, name, _sitebuiltins._Printer(name, getattr(sys, name, "See https://www.python.org/psf/license/")))
    builtins.help = _sitebuiltins._Helper()


def driver():
    """A completion's loop."""
    code, name, extra = None, None, {}
    posix.write(COMMAND, b"ready")
    while True:
        command = posix.read(COMMAND, 4096)
        if not command:
            return
        if command[:1] == b"R":
            status = case_run(code, name, extra)
            if posix.WIFEXITED(status) and posix.WEXITSTATUS(status) == EXIT_NAME and not extra:
                extra = prelude_for(names_of(code))
                posix.ftruncate(OUTPUT, 0)
                status = case_run(code, name, extra)
            posix.write(COMMAND, b"exit %d" % status)
            continue
        name, extra = command[2:].decode() if command[:1] == b"F" else None, {}
        try:
            source = posix.pread(INPUT, posix.fstat(INPUT).st_size, 0)
            source_write(source)
            code = compile(source, SOURCE, "exec", 0, True)
            names = names_of(code)
            if command[:1] == b"A":
                code, extra = ASSERTS, {"PROGRAM": source.decode()}
        except BaseException as error:
            posix.write(COMMAND, b"compile " + type(error).__name__.encode())
            continue
        for module in names & WARM:
            try:
                __import__(module)
            except BaseException:
                pass
        posix.write(COMMAND, b"ok")


def confine(libc, ctypes, filter_text):
    """Runs in the clone: mount a private /tmp, drop privileges, install the filter."""
    import resource
    posix.setsid()    # a signal to a group reaches its members in other namespaces too, so no two sandboxes share a group
    NOSUID_NODEV, ROOT_BYTES = 2 | 4, b"size=%d,nr_inodes=%d,mode=0755" % (TMP_BYTES, FILES_MAX)
    if libc.mount(b"tmpfs", b"/tmp", b"tmpfs", NOSUID_NODEV, ROOT_BYTES) != 0:
        raise OSError(ctypes.get_errno(), "mount of /tmp")
    posix.chdir("/tmp")
    # Not set in the zygote, which must always be able to clone. Within this user namespace the kernel (5.14 and later)
    # counts only what is inside, not all processes of the uid.
    resource.setrlimit(resource.RLIMIT_NPROC, (N_TASK, N_TASK))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))    # not in the zygote, which runs for long
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)    # _LINUX_CAPABILITY_VERSION_3, this process
    if libc.capset(header, (ctypes.c_uint32 * 6)()) != 0:
        raise OSError(ctypes.get_errno(), "capset")

    class Program(ctypes.Structure):    # struct sock_fprog
        _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_char_p)]

    program = Program(len(filter_text) // 8, filter_text)
    PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")


def zygote():
    import _socket
    import array
    import ctypes
    import gc
    sys.path.append("/usr/lib/python3/dist-packages")
    for module in PRELOADED:
        __import__(module)
    builtins_complete()
    libc = ctypes.CDLL(None, use_errno=True)
    clone_call = {"x86_64": 56, "aarch64": 220}[posix.uname().machine]
    NEWNS, NEWIPC, NEWPID, SIGCHLD = 0x20000, 0x8000000, 0x20000000, 17
    filter_text = posix.pread(8, 1 << 20, 0)
    for number in IGNORED:
        signal(number, 1)
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, 3)
    space = _socket.CMSG_SPACE(16)
    gc.collect()
    gc.freeze()    # so that a clone's collector does not touch, and so copy, all pages
    posix.write(3, b"ready")
    while True:
        data, extra, _, _ = sock.recvmsg(64, space)
        if not data:
            posix._exit(0)
        if data == b"ping":
            posix.write(3, b"here")
            continue
        try:
            while posix.waitpid(-1, posix.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        fds = array.array("i", extra[0][2])
        # As os.fork does it, with the interpreter's lock held: Python 3.13 aborts on locks that were not taken before.
        ctypes.pythonapi.PyOS_BeforeFork()
        pid = ctypes.pythonapi.syscall(clone_call, NEWNS | NEWIPC | NEWPID | SIGCHLD, 0, 0, 0, 0)
        if pid == 0:
            try:
                ctypes.pythonapi.PyOS_AfterFork_Child()
                control, given, taken, errors = (posix.dup2(fd, 64 + i) for i, fd in enumerate(fds))
                for fd, to in ((errors, 2), (control, COMMAND), (given, INPUT), (taken, OUTPUT)):
                    posix.dup2(fd, to)
                posix.closerange(6, 128)
                confine(libc, ctypes, filter_text)
                sock.detach()
                driver()
            except BaseException as error:
                posix.write(2, ("%s: %s" % (type(error).__name__, error)).encode())
            finally:
                posix._exit(0)
        ctypes.pythonapi.PyOS_AfterFork_Parent()
        for fd in fds:
            posix.close(fd)


zygote()
