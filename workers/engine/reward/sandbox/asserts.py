"""Runs a test's assertions against a program in another process, so that the program never sees what is expected of it.

PROGRAM is the program's source, and standard input holds the test. The texts of crossing.py, program_end.py and test_end.py come before
this one. Two processes: the child (program_end.py) runs the program with neither the test nor the output open; this one (test_end.py)
runs the test, in which the program's names are copies or stand-ins (crossing.py). Writes "passed" when the test ran to its end, "left out: REASON" when it cannot be told whether the program is right,
and nothing otherwise.

What keeps the program from the answers and from deciding that it is right:
 1. It may use only what the test gave it: call functions, and use public attributes of objects that are neither functions, modules,
    generators nor the like (TestPeer.allowed).
 2. Whether an object of the program equals plain data is not for its class to say, unless the test itself made the object: it must
    have given that data as its own before (TestPeer.equal). Order, "in" and arithmetic follow the same rule (TestPeer.special).
 3. This process imports nothing that the program may have written, and ends at once when a message is not as it must be."""


def words_of(code):
    """The names in a code object, and the words of its texts."""
    names, texts, waiting = set(), [], [code]
    while waiting:
        one = waiting.pop()
        names.update(one.co_names)
        waiting.extend(c for c in one.co_consts if type(c) is CODE)
        texts.extend(c for c in one.co_consts if type(c) is str)
    return names, texts


def main():
    asks, answers = posix.pipe(), posix.pipe()
    if posix.fork() == 0:
        try:
            null = posix.open("/dev/null", posix.O_RDWR)
            reads, writes = posix.dup2(asks[0], 100), posix.dup2(answers[1], 101)
            for fd in range(3):    # the test, the output, and everything else
                posix.dup2(null, fd)
            posix.closerange(3, 100)
            posix.closerange(102, 1024)
            program_main(reads, writes)
        finally:
            posix._exit(0)
    posix.close(asks[0])
    posix.close(answers[1])
    test_main(answers[0], asks[1])


main()
