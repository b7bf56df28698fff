#!/usr/bin/env python3
"""Holds the tree to the include table of docs/architecture.md.

1. Every #include of ours and of an outside library is one that the table allows.
2. The objects of PURE libraries ask for no clock, thread, lock, randomness, log, environment, file or socket.
3. Only common/config reads the environment; only common/runtime touches the standard locks.

Exit code 1 and one line per finding: file:line: what; what to do.
"""

import argparse
import dataclasses
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import rules

TABLE_BEGIN = "<!-- include table: begin -->"
TABLE_END = "<!-- include table: end -->"
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
# Comments, then string and character literals; newlines inside are kept so that line numbers hold.
# An apostrophe between digits separates them, it does not begin a literal.
NOISE = re.compile(r'//[^\n]*|/\*.*?\*/|R"\((?:.*?)\)"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'', re.S)


@dataclasses.dataclass
class Row:
    folder: str
    pure: bool = False
    passive: bool = False
    anything: bool = False
    ours: set = dataclasses.field(default_factory=set)
    ours_of: dict = dataclasses.field(default_factory=dict)  # "main.cc" or "c_api" -> set of folders
    outside: set = dataclasses.field(default_factory=set)


def split_list(text):
    return [item.strip().strip("`") for item in text.split(",") if item.strip() not in ("", "–", "-")]


def parse_row(cells):
    """One row of the table -> rows, one per folder named in its first cell."""
    folder_cell, _, ours_cell, outside_cell = cells
    names = re.findall(r"`([^`]+)`", folder_cell)
    result = []
    for name in names:
        row = Row(name, pure="PURE" in folder_cell, passive="PASSIVE" in folder_cell)
        plain = ours_cell
        for part, allowed in re.findall(r"\(([\w./]+): ([^)]*)\)", ours_cell):
            row.ours_of[part] = set(split_list(allowed))
            plain = plain.replace(f"({part}: {allowed})", "")
        row.anything = plain.strip() == "anything"
        row.ours = set() if row.anything else set(split_list(plain))
        row.outside = set(split_list(outside_cell))
        result.append(row)
    return result


def parse_table(text):
    """The table -> {folder: Row}. ValueError says what cannot be read."""
    if TABLE_BEGIN not in text or TABLE_END not in text:
        raise ValueError(f"no table between '{TABLE_BEGIN}' and '{TABLE_END}'")
    body = text.split(TABLE_BEGIN)[1].split(TABLE_END)[0]
    lines = [line.strip() for line in body.splitlines() if line.strip().startswith("|")]
    table = {}
    for line in lines[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 4:
            raise ValueError(f"a row needs four cells: {line}")
        for row in parse_row(cells):
            if row.folder in table:
                raise ValueError(f"two rows for {row.folder}")
            table[row.folder] = row
    for row in table.values():
        row.ours = {resolve(name, table) for name in row.ours}
        row.ours_of = {part: {resolve(name, table) for name in names} for part, names in row.ours_of.items()}
        unknown = row.outside - set(rules.OUTSIDE) - {"anything"}
        if unknown:
            raise ValueError(f"{row.folder}: unknown outside library {sorted(unknown)}; add it to rules.py")
    return table


def resolve(name, table):
    for candidate in (name, "common/" + name):
        if candidate in table:
            return candidate
    raise ValueError(f"the table allows '{name}', which is none of its folders")


def row_of(path, table):
    """The row of the innermost folder that has one."""
    folder = path
    while "/" in folder:
        folder = folder.rsplit("/", 1)[0]
        if folder in table:
            return table[folder]
    return None


def is_test(path):
    named = re.search(r"_test(_\w+)?\.(cc|h)$|_fuzz(er)?\.cc$", path)
    return bool(named) or "/testing/" in path or path.startswith("tests/")


def is_bench(path):
    return path.startswith("bench/") or path.endswith("_benchmark.cc")


def allowed_folders(path, row):
    allowed = set(row.ours) | {row.folder}
    inner = path[len(row.folder) + 1:]
    for part, folders in row.ours_of.items():
        if inner == part or inner.startswith(part + "/"):
            allowed |= folders
    return allowed


def check_ours(path, header, row, table):
    target = row_of(header, table)
    if target is None:
        return f"includes {header}, whose folder has no row in the include table"
    if row.anything or target.folder in allowed_folders(path, row):
        return None
    return f"includes {header}: {row.folder} may not include {target.folder}"


def standard_complaint(path, header, row):
    if header in rules.LOCK_HEADERS and row.folder != rules.LOCK_FOLDER:
        return f"includes <{header}>; use common/runtime/mutex.h, which wraps it with annotations"
    if not (row.pure or row.passive):
        return None
    if row.passive and header in rules.PASSIVE_HEADERS:
        return None
    kind = "PURE" if row.pure else "PASSIVE"
    for what, headers in rules.IMPURE_HEADERS.items():
        if header in headers and not (row.passive and what in rules.PASSIVE_EXCUSED):
            return f"includes <{header}> ({what}); {row.folder} is {kind}: take it as an argument"
    if header.endswith(".h") and header not in rules.C_HEADERS:
        return f"includes <{header}> of the operating system; {row.folder} is {kind}"
    return None


def check_outside(path, header, row):
    if is_test(path) and re.fullmatch(rules.IN_TESTS, header):
        return None
    if is_bench(path) and re.fullmatch(rules.IN_BENCH, header):
        return None
    if re.fullmatch(rules.ABSEIL, header):
        if (row.pure or row.passive) and not re.fullmatch(rules.ABSEIL_EVERYWHERE, header):
            return f"includes {header}; a PURE folder may use absl status and strings only"
        if header.startswith("absl/synchronization/"):
            return f"includes {header}; use common/runtime/mutex.h, which ThreadSanitizer understands"
        return None
    if any(re.fullmatch(rules.OUTSIDE[name], header) for name in row.outside if name in rules.OUTSIDE):
        return None
    for name, pattern in rules.OUTSIDE.items():
        if re.fullmatch(pattern, header):
            return None if "anything" in row.outside else f"includes {header}: {row.folder} may not use {name}"
    if re.fullmatch(rules.IN_TESTS, header) or re.fullmatch(rules.IN_BENCH, header):
        return f"includes {header} outside of tests and benchmarks"
    is_standard = re.fullmatch(r"[a-z_0-9]+(/[a-z_0-9-]+)*(\.h)?", header)
    if not is_standard:
        return f"includes {header}, which is neither ours nor a library known to tests/layers_test/rules.py"
    if is_test(path) or row.anything:
        return None
    return standard_complaint(path, header, row)


def blank(match):
    return re.sub(r"[^\n]", " ", match.group(0))


def check_source(path, text, table, top_folders):
    """Findings of one file: list of (line, message)."""
    row = row_of(path, table)
    if row is None:
        return [(1, "lies in a folder without a row in the include table of docs/architecture.md")]
    findings = []
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        header = match.group(2)
        ours = header.split("/")[0] in top_folders and not header.endswith(".pb.h")
        complaint = check_ours(path, header, row, table) if ours else check_outside(path, header, row)
        if complaint:
            findings.append((number, complaint))
    code = NOISE.sub(blank, text)
    for pattern, folder, why in rules.ONLY_IN:
        if row.folder == folder or row.anything:
            continue
        for match in pattern.finditer(code):
            findings.append((code.count("\n", 0, match.start()) + 1, f"'{match.group(0)}' {why}"))
    return findings


def check_symbols(folder, row, mangled, demangled):
    """Findings in the undefined symbols of one library's own objects."""
    excused = set(rules.EXCUSED.get(folder, set())) | (rules.PASSIVE_EXCUSED if row.passive else set())
    findings = []
    for name in sorted(mangled):
        what = rules.IMPURE_C.get(name.split("@")[0])
        if what and what not in excused:
            findings.append(f"asks for {name} ({what})")
    for name in sorted(demangled):
        for what, pattern in rules.IMPURE_CXX.items():
            if what not in excused and pattern.search(name):
                findings.append(f"asks for {name} ({what})")
    return findings


def undefined_symbols(archive, nm, demangle):
    command = [nm, "--undefined-only"] + (["-C"] if demangle else []) + [str(archive)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {line.split(None, 1)[1] for line in out.splitlines() if re.match(r"\s+[Uwv] ", line)}


def check_archives(list_file, table, nm):
    """`list_file`: lines "folder=archive". Every PURE folder with sources must be among them."""
    findings, seen = [], set()
    for line in pathlib.Path(list_file).read_text().split():
        folder, archive = line.split("=", 1)
        row = row_of(folder + "/", table)
        if row is None or not (row.pure or row.passive):
            continue
        seen.add(row.folder)
        if not pathlib.Path(archive).exists():
            findings.append(f"{folder}: {archive} is not built; build everything first")
            continue
        for complaint in check_symbols(row.folder, row, undefined_symbols(archive, nm, False),
                                       undefined_symbols(archive, nm, True)):
            findings.append(f"{folder}: its library {complaint}; this folder takes such things as arguments")
    return findings, seen


def sources(root, table):
    for name in sorted(path.name for path in root.iterdir() if path.is_dir()):
        if name.startswith(".") or name == "build":
            continue
        for path in sorted((root / name).rglob("*")):
            if path.suffix in (".cc", ".h", ".hpp", ".cpp", ".c") and "build" not in path.parts[len(root.parts):]:
                yield path.relative_to(root).as_posix(), path


def check_tree(root, table):
    top_folders = {folder.split("/")[0] for folder in table}
    findings, count = [], 0
    for relative, path in sources(root, table):
        count += 1
        for line, message in check_source(relative, path.read_text(), table, top_folders):
            findings.append(f"{relative}:{line}: {message}")
    return findings, count


def folders_with_objects(root, table):
    """PURE folders that have sources of their own, tests aside."""
    found = set()
    for relative, _ in sources(root, table):
        row = row_of(relative, table)
        if row and (row.pure or row.passive) and relative.endswith(".cc") and not is_test(relative):
            found.add(row.folder)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", default=pathlib.Path(__file__).resolve().parents[2], type=pathlib.Path)
    parser.add_argument("--archives", help="file with lines folder=library of this build")
    parser.add_argument("--includes-only", action="store_true", help="do not look at objects")
    parser.add_argument("--nm", default="nm")
    arguments = parser.parse_args()
    if not arguments.includes_only and not arguments.archives:
        parser.error("--archives FILE or --includes-only is needed")
    root = arguments.root.resolve()
    try:
        table = parse_table((root / "docs" / "architecture.md").read_text())
    except ValueError as error:
        print(f"docs/architecture.md: {error}", file=sys.stderr)
        return 1
    findings, count = check_tree(root, table)
    if count == 0:
        findings.append(f"{root}: no sources found")
    libraries = 0
    if not arguments.includes_only:
        symbol_findings, seen = check_archives(arguments.archives, table, arguments.nm)
        libraries = len(seen)
        findings += symbol_findings
        findings += [f"{folder}: PURE, has sources, but no library of this build holds them"
                     for folder in sorted(folders_with_objects(root, table) - seen)]
    for finding in findings:
        print(finding)
    print(f"layers: {count} files, {len(table)} folders, {libraries} pure libraries, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
