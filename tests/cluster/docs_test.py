#!/usr/bin/env python3
"""Documentation against the programs it describes: docs_test.py --bin FOLDER [TEST]..."""

import pathlib
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))  # tests/
from harness import main, run_program

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Section of docs/configuration.md -> the program whose --help lists the same keys.
SECTIONS = {
    "paceline-scheduler": ["paceline-scheduler"],
    "paceline-server": ["paceline-server"],
    "pacelinectl run": ["pacelinectl", "run"],
}
SHARED = {"--config", "--set", "--print-config", "--help, --version"}


def help_of(command):
    return run_program(*command, "--help").stdout


def flags_of(text):
    """Flag -> (variable or "", what is said of it), from --help."""
    flags = {}
    for flag, said in re.findall(r"^  (--[a-z-]+(?:, --version)?)(?: [A-Z=]+)?\n((?:      .*\n)*)", text, re.MULTILINE):
        words = " ".join(said.split())
        variable = re.search(r" \((PACELINE_[A-Z_]+)\)$", words)
        flags[flag] = (variable.group(1), words[:variable.start()]) if variable else ("", words)
    return flags


def rows_of(page, section):
    """The same from a table of docs/configuration.md."""
    body = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL).group(1)
    rows = re.findall(r"^\| `([a-z_.]+)` \| `(--[a-z-]+)` \| `([A-Z_]*)` \| (.*) \|$", body, re.MULTILINE)
    return {flag: (variable, said) for _, flag, variable, said in rows}


class DocsTest(unittest.TestCase):
    def setUp(self):
        self.page = (ROOT / "docs" / "configuration.md").read_text()

    def test_keys_are_those_of_help(self):
        job = rows_of(self.page, "Jobs")
        self.assertGreater(len(job), 20)
        for section, command in SECTIONS.items():
            with self.subTest(section=section):
                told = {flag: said for flag, said in flags_of(help_of(command)).items() if flag not in SHARED}
                rows = rows_of(self.page, section)
                self.assertEqual({**rows, **job} if command[-1] == "run" else rows, told)

    def test_keys_of_workers_are_in_their_help(self):
        told = flags_of(help_of(["paceline-worker"]))
        for flag, said in {**rows_of(self.page, "Workers"), **rows_of(self.page, "Jobs")}.items():
            self.assertEqual(told[flag], said)

    def test_commands_in_readme_and_cli_page_are_those_of_help(self):
        commands = set(re.findall(r"^  pacelinectl ([a-z]+)", help_of(["pacelinectl"]), re.MULTILINE))
        for name in ("README.md", "docs/cli.md"):
            text = (ROOT / name).read_text()
            for command in commands:
                self.assertRegex(text, rf"(pacelinectl |\| ){command}\b", f"{name} does not tell of {command}")
        readme = re.findall(r"^\| `pacelinectl ([a-z]+)", (ROOT / "README.md").read_text(), re.MULTILINE)
        self.assertEqual(set(readme), commands)

    def test_exit_codes_are_those_of_help(self):
        self.assertRegex(" ".join(help_of(["pacelinectl"]).split()),
                         "0 done; 1 failed or refused; 2 a wrong command, flag or key; 3 the scheduler could not be "
                         r"reached; 4 there is no such job; 128 \+ signal when interrupted")
        table = re.findall(r"^\| (\d|128 \+ signal) \|", (ROOT / "docs" / "cli.md").read_text(), re.MULTILINE)
        self.assertEqual(table, ["0", "1", "2", "3", "4", "128 + signal"])

    def test_tests_that_docs_name_are_there(self):
        there = "".join(path.read_text() for path in (ROOT / "tests").rglob("*_test.py"))
        named = re.findall(r"`(test_[a-z0-9_]+)`", (ROOT / "docs" / "testing.md").read_text())
        self.assertGreaterEqual(len(named), 20)
        for name in named:
            self.assertIn(f"def {name}(self", there)

    def test_help_fits_80_columns(self):
        subcommands = ["status", "jobs", "nodes", "groups", "staleness", "events", "stop", "run"]
        for command in [["paceline-scheduler"], ["paceline-server"], ["paceline-worker"], ["pacelinectl"],
                        *(["pacelinectl", name] for name in subcommands)]:
            with self.subTest(command=command):
                for line in help_of(command).splitlines():
                    self.assertLessEqual(len(line), 80, line)

    def test_links_lead_to_files(self):
        for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "tests").rglob("*.md")]:
            for link in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
                if "://" not in link:
                    self.assertTrue((page.parent / link).exists(), f"{page.relative_to(ROOT)}: {link}")


if __name__ == "__main__":
    main(at_once=1)
