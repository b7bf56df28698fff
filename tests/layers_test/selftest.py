#!/usr/bin/env python3
"""Shows that layers_test fails on what it is there to catch, and only on that."""

import argparse
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import layers_test

TABLE = """
<!-- include table: begin -->
| folder | holds | ours it may include | outside |
|---|---|---|---|
| `common/base` PURE | a | – | – |
| `common/runtime` | b | base | spdlog |
| `common/config` | c | base | yaml-cpp |
| `plan` PURE | d | base | – |
| `parameter` PASSIVE | e | base, plan | – |
| `parameter/host` | f | base, runtime, parameter | – |
| `proto` | p | – | protobuf, gRPC |
| `control/grpc` | g | base, plan, proto | gRPC |
| `server` | h | base, runtime, parameter/host (main.cc: control/grpc) | – |
| `tests` | i | anything | anything |
<!-- include table: end -->
"""
COMPILER, NM = "c++", "nm"


def findings(path, text):
    table = layers_test.parse_table(TABLE)
    top = {folder.split("/")[0] for folder in table}
    return layers_test.check_source(path, text, table, top)


class Includes(unittest.TestCase):
    def refused(self, path, header, because):
        for form in (f'#include "{header}"', f"  #  include <{header}>"):
            found = findings(path, "// purpose\n" + form + "\n")
            self.assertEqual([line for line, _ in found], [2], found)
            self.assertIn(because, found[0][1])

    def allowed(self, path, header):
        self.assertEqual(findings(path, f'#include "{header}"\n'), [])

    def test_a_lower_folder_may_not_include_a_higher_one(self):
        self.refused("plan/a.h", "server/agent.h", "plan may not include server")
        self.refused("common/base/a.h", "plan/plan.h", "may not include plan")
        self.allowed("plan/a.h", "common/base/types.h")
        self.allowed("plan/a.h", "plan/b.h")

    def test_a_sub_folder_has_its_own_row(self):
        self.refused("parameter/a.cc", "parameter/host/router.h", "may not include parameter/host")
        self.refused("parameter/a.cc", "common/runtime/clock.h", "may not include common/runtime")
        self.allowed("parameter/host/a.cc", "common/runtime/clock.h")
        self.allowed("parameter/host/a.cc", "parameter/shard.h")

    def test_only_the_file_in_brackets_may_include_more(self):
        self.allowed("server/main.cc", "control/grpc/client.h")
        self.refused("server/agent.cc", "control/grpc/client.h", "may not include control/grpc")
        self.allowed("server/main.cc", "common/runtime/clock.h")

    def test_outside_libraries_are_bound_to_their_folder(self):
        self.allowed("common/runtime/log.cc", "spdlog/spdlog.h")
        self.refused("server/a.cc", "spdlog/spdlog.h", "may not use spdlog")
        self.refused("server/a.cc", "grpcpp/grpcpp.h", "may not use gRPC")
        self.refused("server/a.cc", "paceline/v1/node.pb.h", "may not use gRPC")
        self.refused("server/a.cc", "proto/paceline/v1/node.grpc.pb.h", "may not use gRPC")
        self.allowed("control/grpc/a.cc", "paceline/v1/node.grpc.pb.h")
        self.refused("server/a.cc", "Boost/asio.hpp", "neither ours nor a library known")

    def test_pure_folders_get_no_clock_thread_or_system_header(self):
        for header in ("chrono", "thread", "mutex", "random", "fstream", "iostream", "unordered_map", "atomic"):
            self.assertEqual(len(findings("plan/a.cc", f"#include <{header}>\n")), 1, header)
        self.refused("plan/a.cc", "unistd.h", "operating system")
        self.refused("plan/a.cc", "sys/socket.h", "operating system")
        self.allowed("plan/a.cc", "map")
        self.allowed("server/a.cc", "chrono")
        self.allowed("server/a.cc", "sys/socket.h")

    def test_passive_folders_may_hash_and_count_references(self):
        self.allowed("parameter/a.cc", "unordered_map")
        self.allowed("parameter/a.cc", "atomic")
        self.refused("parameter/a.cc", "thread", "PASSIVE")

    def test_abseil(self):
        self.allowed("plan/a.cc", "absl/strings/str_cat.h")
        self.refused("plan/a.cc", "absl/time/clock.h", "status and strings only")
        self.refused("server/a.cc", "absl/synchronization/mutex.h", "common/runtime/mutex.h")
        self.refused("server/a.cc", "mutex", "common/runtime/mutex.h")
        self.allowed("common/runtime/mutex.h", "mutex")

    def test_tests_may_use_the_test_library_and_threads(self):
        self.allowed("plan/plan_test.cc", "gtest/gtest.h")
        self.allowed("plan/plan_test.cc", "random")
        self.refused("plan/plan.cc", "gtest/gtest.h", "outside of tests")
        self.refused("plan/plan_test.cc", "server/agent.h", "plan may not include server")
        self.allowed("tests/chaos_test.cc", "server/agent.h")

    def test_a_folder_without_a_row_is_a_finding(self):
        self.assertIn("without a row", findings("gossip/a.cc", "")[0][1])


class Text(unittest.TestCase):
    def test_the_environment_is_read_in_one_place(self):
        found = findings("server/a.cc", "int x;\nauto* home = std::getenv(\"HOME\");\n")
        self.assertEqual([line for line, _ in found], [2])
        self.assertEqual(findings("common/config/a.cc", "extern char** environ;\n"), [])

    def test_comments_and_literals_do_not_count(self):
        text = ('// getenv here\n/* getenv\n getenv */\nconst char* s = "getenv(";\n'
                "constexpr int kBig = 1'000'000;  // getenv\nchar c = '\"'; int my_getenv_count = 0;\n")
        self.assertEqual(findings("server/a.cc", text), [])
        self.assertEqual(len(findings("server/a.cc", text + "getenv(s);\n")), 1)


class Table(unittest.TestCase):
    def test_what_cannot_be_read_is_an_error(self):
        for bad in ("no table", TABLE.replace("| base, plan | –", "| base, plam | –"),
                    TABLE.replace("yaml-cpp", "yamlcpp"), TABLE.replace("| c | base |", "| c |"),
                    TABLE.replace("`plan` PURE", "`common/base`")):
            with self.assertRaises(ValueError):
                layers_test.parse_table(bad)


class Symbols(unittest.TestCase):
    """Real objects from the compiler of this build."""

    def ask(self, folder, code):
        table = layers_test.parse_table(TABLE)
        with tempfile.TemporaryDirectory() as scratch:
            source = pathlib.Path(scratch, "a.cc")
            source.write_text(code)
            archive = pathlib.Path(scratch, "a.o")
            subprocess.run([COMPILER, "-std=c++20", "-O1", "-c", str(source), "-o", str(archive)], check=True)
            list_file = pathlib.Path(scratch, "archives.txt")
            list_file.write_text(f"{folder}={archive}\n")
            found, _ = layers_test.check_archives(list_file, table, NM)
            return found

    def one(self, folder, code, because):
        found = self.ask(folder, code)
        self.assertTrue(found, because)
        self.assertTrue(any(because in line for line in found), found)

    def test_what_a_pure_library_may_not_ask_for(self):
        self.one("plan", "#include <chrono>\nlong f() { return std::chrono::steady_clock::now()"
                 ".time_since_epoch().count(); }\n", "(clock)")
        self.one("plan", "#include <random>\nunsigned f() { return std::random_device{}(); }\n", "(randomness)")
        self.one("plan", "#include <cstdlib>\nint f() { return rand(); }\n", "(randomness)")
        self.one("plan", "#include <thread>\nvoid f() { std::thread([] {}).join(); }\n", "(thread or lock)")
        self.one("plan", "#include <sys/socket.h>\nint f() { return socket(1, 1, 0); }\n", "(socket)")
        self.one("plan", "#include <cstdlib>\nchar* f() { return getenv(\"A\"); }\n", "(environment)")
        self.one("plan", "#include <fstream>\nbool f() { return std::ifstream(\"a\").good(); }\n", "(file)")
        self.one("plan", "#include <cstdio>\nvoid f() { fprintf(stderr, \"x %p\", (void*)stderr); }\n", "(log)")
        self.one("plan", "#include <unordered_map>\nint f(int a) { std::unordered_map<int, int> m; m[a] = 1; "
                 "return m.begin()->second; }\n", "(no fixed order)")

    def test_what_it_may(self):
        code = ("#include <cmath>\n#include <map>\n#include <memory>\n#include <string>\n"
                "double f(double x) { std::map<std::string, std::shared_ptr<double>> m;\n"
                "  m[std::to_string(x)] = std::make_shared<double>(std::expm1(x)); return *m.begin()->second; }\n")
        self.assertEqual(self.ask("plan", code), [])

    def test_excuses_hold_for_their_folder_only(self):
        log = "#include <cstdio>\nvoid f() { fprintf(stderr, \"x %p\", (void*)stderr); }\n"
        self.assertEqual(self.ask("common/base", log), [])
        hashed = ("#include <unordered_map>\nint f(int a) { std::unordered_map<int, int> m; m[a] = 1; "
                  "return m.begin()->second; }\n")
        self.assertEqual(self.ask("parameter", hashed), [])
        self.assertEqual(self.ask("server", log), [])

    def test_a_library_that_is_not_built_is_a_finding(self):
        with tempfile.TemporaryDirectory() as scratch:
            list_file = pathlib.Path(scratch, "archives.txt")
            list_file.write_text("plan=/nowhere/libplan.a\n")
            found, _ = layers_test.check_archives(list_file, layers_test.parse_table(TABLE), NM)
        self.assertIn("not built", found[0])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--compiler", default=COMPILER)
    parser.add_argument("--nm", default=NM)
    known, rest = parser.parse_known_args()
    COMPILER, NM = known.compiler, known.nm
    unittest.main(argv=[sys.argv[0]] + rest)
