"""Runs a module of CPython's tests, and prints a line `=ok`, `=fail` or `=skip` with the name of each."""

import os
import sys
import unittest

from test import support

# As `regrtest -u network` would enable: only what is in the machine.
support.use_resources = ["subprocess", "decimal"]


class Result(unittest.TestResult):
    """Prints each result. Failures of subtests are those of their tests."""

    def __init__(self):
        super().__init__()
        self.failed = set()

    def name(self, test):
        return test.id().removeprefix(sys.argv[1] + ".").replace(" ", "-")

    def line(self, word, test, text=""):
        print(f"={word} {self.name(test)} {text}".rstrip(), flush=True)

    def fail(self, test, error):
        if self.name(test) not in self.failed:
            self.failed.add(self.name(test))
            text = "".join(str(error[1]).split("\n")[:1])[:120]
            self.line("fail", test, f"{error[0].__name__}: {text}")
            print(self._exc_info_to_string(error, test), flush=True)

    def startTest(self, test):
        super().startTest(test)
        print(f"start {self.name(test)}", flush=True)

    def addSuccess(self, test):
        self.line("ok", test)

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.fail(test, error)

    def addError(self, test, error):
        super().addError(test, error)
        self.fail(test, error)

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            self.fail(test, error)

    def addSkip(self, test, reason):
        self.line("skip", test, reason.split("\n")[0][:120])

    def addExpectedFailure(self, test, error):
        self.line("ok", test)


result = Result()
try:
    unittest.defaultTestLoader.loadTestsFromName(sys.argv[1]).run(result)
except unittest.SkipTest as reason:
    print(f"=skip module {reason}")
sys.stdout.flush()
os._exit(0 if result.wasSuccessful() else 1)
