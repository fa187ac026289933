"""The packages that examples/packages.sh requests from apt on each distribution: names its archive has (looked up there)."""
import os, subprocess, tempfile, unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
OLD_ARB, MSGPACK, MSGPACK_C, RT, RT_14 = "libflint-arb-dev", "libmsgpack-dev", "libmsgpack-c-dev", "libclang-rt-dev", "libclang-common-14-dev"
DIFFERENT = {OLD_ARB, MSGPACK, MSGPACK_C, RT, RT_14}


class Packages(unittest.TestCase):
    def names(self, os_release, *needs):
        with tempfile.NamedTemporaryFile("w") as f:
            f.write(os_release)
            f.flush()
            out = subprocess.run(["bash", "-euc", '. examples/packages.sh; packages_list "$@"', "bash", *needs], cwd=ROOT, text=True,
                                 env=dict(os.environ, PACKAGES_OS_RELEASE=f.name), capture_output=True, timeout=60, check=True).stdout
        return out.split("\n")[:-1]

    def test_each_distribution_is_asked_for_names_that_it_has(self):
        cases = {
            'ID=debian\nVERSION_ID="12"\n': {OLD_ARB, MSGPACK, RT},
            'ID=debian\nVERSION_ID="13"\n': {MSGPACK_C, RT},
            'VERSION_ID="22.04"\nID=ubuntu\nID_LIKE=debian\n': {OLD_ARB, MSGPACK, RT_14},
            'VERSION_ID="24.04"\nID=ubuntu\n': {MSGPACK, RT},
            "ID=debian\n": {MSGPACK_C, RT},    # the next Debian, before its release
            'ID=ubuntu\nVERSION_ID="26.04"\n': {MSGPACK_C, RT},
        }
        for os_release, want in cases.items():
            names = self.names(os_release, "build", "test")
            self.assertEqual(set(names) & DIFFERENT, want, os_release)
            self.assertEqual(len(names), len(set(names)))
            self.assertTrue({"gcc", "libnng-dev", "valgrind", "libflint-dev"} <= set(names))

    def test_building_needs_nothing_that_only_tests_use(self):
        names = self.names('ID=debian\nVERSION_ID="12"\n', "build")
        self.assertIn("ninja-build", names)
        self.assertFalse({"valgrind", "tmux", RT} & set(names))


if __name__ == "__main__":
    unittest.main()
