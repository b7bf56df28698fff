#!/usr/bin/env python3
"""What the real programs say to wrong input: wrong_input_test.py --bin FOLDER [TEST]...

For each row: the exit code, one error line that names the thing, the value and the way out, and nothing written.
"""

import gzip
import pathlib
import shutil
import socket
import sys
import unittest

from evaluate import FASHION_MNIST
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))  # tests/
from harness import Cluster, main, run_program, temporary_folder

USAGE, FAILED, UNREACHABLE, NO_JOB = 2, 1, 3, 4

# Program and arguments, exit code, what the message has to contain. {closed} is a port where nobody listens.
FLAGS = [
    ("pacelinectl", USAGE, ["pacelinectl run", "pacelinectl status"]),
    ("pacelinectl statsu", USAGE, ['"statsu"', '"status"']),
    ("pacelinectl run", USAGE, ["no program", "after --"]),
    ("pacelinectl run --", USAGE, ["no program", "after --"]),
    ("pacelinectl run -- no-such-program", FAILED, ["no-such-program", "PATH"]),
    ("pacelinectl run -- ./not-there", FAILED, ["./not-there", "No such file"]),
    ("pacelinectl run -- ./file", FAILED, ["./file", "Permission denied"]),
    ("pacelinectl run -- ", FAILED, ['program ""', "empty"]),
    ("pacelinectl run -- ./.", FAILED, ["./.", "no regular file"]),
    ("pacelinectl run --set job.aggregation=peer -- true", USAGE, ["aggregation", "peer", "use server"]),
    ("pacelinectl run --workers 4 --set quorum=5 -- true", USAGE, ["quorum", "5", "use 0..4"]),
    ("pacelinectl run --set late=later -- true", USAGE, ["late", "later", "carry, drop"]),
    ("pacelinectl run --set local_steps=2 -- true", USAGE, ["local_steps", "2", "use 1"]),
    ("pacelinectl run --set gate=true -- true", USAGE, ["gate", "leave it out"]),
    ("pacelinectl run --set max_step_lag=3 -- true", USAGE, ["max_step_lag", "leave it out"]),
    ("pacelinectl run --policy xdc -- true", USAGE, ["policy", "xdc", "use none"]),
    ("pacelinectl run --set max_staleness=9 -- true", USAGE, ["max_staleness", "leave it out"]),
    ("pacelinectl run --config codec.yaml -- true", USAGE, ["codecs", "fp16", "codec.yaml:2"]),
    ("pacelinectl run --wrokers 4 -- true", USAGE, ["--wrokers", "--workers"]),
    ("pacelinectl run --resume= -- true", USAGE, ["--resume is empty", "name a checkpoint"]),
    ("pacelinectl run --workers 0 -- true", USAGE, ["workers", '"0"', "1 .. 16384"]),
    ("pacelinectl run --workers many -- true", USAGE, ["workers", '"many"', "1 .. 16384"]),
    ("pacelinectl run --groups 3,x -- true", USAGE, ["groups", '"3,x"', "label:NAME"]),
    ("pacelinectl run --groups label: -- true", USAGE, ["groups", '"label:"', "label:NAME"]),
    ("pacelinectl run --workers 4 --groups 3,2 -- true", USAGE, ["groups", "3,2", "add up to workers (4)"]),
    ("pacelinectl run --workers 4 --groups 9 -- true", USAGE, ["groups", "9", "1..4"]),
    ("pacelinectl run --servers 0 -- true", USAGE, ["servers", '"0"', "1 .. 256"]),
    ("pacelinectl run --set wrokers=4 -- true", USAGE, ['"wrokers"', '"job.workers"']),
    ("pacelinectl run --set workers -- true", USAGE, ["--set workers", "key=value"]),
    ("pacelinectl run --set job.name=a/b -- true", USAGE, ["job.name", '"a/b"', "a-z A-Z 0-9"]),
    ("pacelinectl run --output ./file -- true", FAILED, ["output", "./file", "Not a directory"]),
    ("pacelinectl run --output /proc/here -- true", FAILED, ["output", "/proc/here"]),
    ("pacelinectl run --output old -- true", FAILED, ["output", "old", "earlier run"]),
    ("pacelinectl run --scheduler head -- true", USAGE, ["scheduler", '"head"', "host:port"]),
    ("pacelinectl run --scheduler head:4300 -- true", USAGE, ["head:4300", "tls.cert", "insecure: true"]),
    ("pacelinectl run --scheduler 127.0.0.1:{closed} -- true", UNREACHABLE,
     ["127.0.0.1:{closed}", "Connection refused", "paceline-scheduler"]),
    ("pacelinectl run --config not-there.yaml -- true", USAGE, ["not-there.yaml", "No such file"]),
    ("pacelinectl run --config . -- true", USAGE, ["--config .", "Is a directory"]),
    ("pacelinectl run --config key.yaml -- true", USAGE, ["job.wrokers", "key.yaml:3", "job.workers"]),
    ("pacelinectl run --config value.yaml -- true", USAGE, ["servers", '"two"', "value.yaml:1"]),
    ("pacelinectl run --config twice.yaml -- true", USAGE, ["servers", "twice", "twice.yaml:2"]),
    ("pacelinectl run --config broken.yaml -- true", USAGE, ["broken.yaml:"]),
    ("pacelinectl status --scheduler 127.0.0.1:{closed}", UNREACHABLE,
     ["127.0.0.1:{closed}", "Connection refused", "PACELINE_SCHEDULER"]),
    ("pacelinectl status --watch 0", USAGE, ["watch", '"0"', "1 .. 86400"]),
    ("pacelinectl status --tls-cert a.pem", USAGE, ["tls.cert", '"a.pem"', "cannot be read"]),
    ("pacelinectl jobs a b", USAGE, ['"b"', "--help"]),
    ("pacelinectl events --limit 0", USAGE, ["limit", '"0"', "1 .. 100000"]),
    ("pacelinectl stop", USAGE, ["job to stop"]),
    ("pacelinectl completion fish", USAGE, ["bash or zsh"]),
    ("paceline-scheduler --listen 127.0.0.1", USAGE, ["listen", '"127.0.0.1"', "host:port"]),
    ("paceline-scheduler --listen 127.0.0.1:65536", USAGE, ["listen", '"127.0.0.1:65536"', "host:port"]),
    ("paceline-scheduler --listen 0.0.0.0:0", USAGE, ["0.0.0.0:0", "tls.cert", "insecure: true"]),
    ("paceline-scheduler --listen 127.0.0.1:{taken} --state-dir s", FAILED, ["127.0.0.1:{taken}", "in use", "--listen"]),
    ("paceline-scheduler --listen 127.0.0.1:0 --state-dir ./file", FAILED, ["./file", "--state-dir"]),
    ("paceline-scheduler --heartbeat-ms 4000", USAGE, ["heartbeat_ms", "4000", "failure_timeout_ms 5000"]),
    ("paceline-scheduler --log-level loud", USAGE, ["log_level", '"loud"', "warning"]),
    ("paceline-scheduler --tls-cert a.pem --tls-key b.pem --tls-ca c.pem", USAGE, ['"a.pem"', "cannot be read"]),
    ("paceline-scheduler --listen 127.0.0.1:0 --state-dir s --tls-cert ./file --tls-key ./file --tls-ca ./file", FAILED,
     ["./file", "no CERTIFICATE in PEM form"]),
    ("paceline-scheduler extra", USAGE, ['"extra"', "--help"]),
    ("paceline-server --name a/b", USAGE, ["name", '"a/b"', "a-z A-Z 0-9"]),
    ("paceline-server --labels rack", USAGE, ["labels", '"rack"', "name=value"]),
    ("paceline-server --bind 10.0.0.1:0", USAGE, ["bind", "10.0.0.1:0", "insecure: true"]),
    ("paceline-server --memory-quota-bytes 4XB", USAGE, ["memory_quota_bytes", '"4XB"', "GiB"]),
    ("paceline-server --scheduler 127.0.0.1:{closed} --join-timeout-ms 300", FAILED,
     ["127.0.0.1:{closed}", "Connection refused", "paceline-scheduler"]),
    ("paceline-worker --standalone 3 --normalization sum", FAILED, ["normalization", "sum", "--standalone", "mean"]),
    ("paceline-worker --standalone 3 --workers 3 --groups 2,1", FAILED, ["groups", "2,1", "--standalone", "one"]),
    ("paceline-worker --standalone 3 --local-steps 4", FAILED, ["local_steps", "4", "use 1"]),
    ("paceline-worker", USAGE, ["no scheduler", "pacelinectl run", "--standalone"]),
    ("paceline-worker --scheduler 127.0.0.1:{closed}", USAGE, ["job.name", "--job"]),
    ("paceline-worker --scheduler 127.0.0.1:{closed} --job j --join-timeout-ms 300", FAILED,
     ["'j'", "127.0.0.1:{closed}", "Connection refused"]),
    ("paceline-worker --standalone 2 --model cnn", USAGE, ["model", '"cnn"', "softmax, mlp"]),
    ("paceline-worker --standalone 2 --momentum 1", USAGE, ["momentum", '"1"', "below 1"]),
    ("paceline-worker --standalone 2 --optimizer sdg", USAGE, ['"sdg"', "sgd"]),
    ("paceline-worker --standalone 2 --optimizer adam:beta3=1", USAGE, ["adam", '"beta3"', "beta2"]),
    ("paceline-worker --standalone 2 --batch-size 100000", USAGE, ["batch_size", "100000", "55000"]),
    ("paceline-worker --standalone 2 --slowdown 0.5", USAGE, ["slowdown", '"0.5"', "1 .. 1000"]),
    ("paceline-worker --standalone 2 --save not-there/weights", USAGE, ["save", "not-there", "--save"]),
    ("paceline-worker --standalone 2 --save old", USAGE, ["save", "old", "is a directory"]),
    ("paceline-worker --standalone 2 --dataset not-there", FAILED, ["not-there", "dataset-fashion-mnist", "--dataset"]),
    ("paceline-worker --standalone 2 --dataset cut", FAILED, ["cut/train-images", "ends early", "--dataset"]),
    ("paceline-worker --standalone 2 --dataset plain", FAILED, ["plain/train-images", "gzip", "--dataset"]),
    ("paceline-worker --standalone 2 --dataset flipped", FAILED, ["flipped/train-images", "unpacked", "--dataset"]),
    ("paceline-worker --standalone 2 --dataset swapped", FAILED, ["swapped/train-images", "--dataset"]),
]

VARIABLES = [
    ({"PACELINE_WORKERS": "x"}, "pacelinectl run -- true", ["workers", '"x"', "variable PACELINE_WORKERS"]),
    ({"PACELINE_SCHEDULER": "head"}, "pacelinectl nodes", ['"head"', "variable PACELINE_SCHEDULER", "host:port"]),
    ({"PACELINE_CONFIG": "not-there"}, "paceline-server", ["not-there", "No such file"]),
    ({"PACELINE_LISTEN": "4300"}, "paceline-scheduler", ["listen", '"4300"', "variable PACELINE_LISTEN"]),
]


def make_files(folder):
    (folder / "file").write_text("not a program\n")
    (folder / "file").chmod(0o644)
    (folder / "old").mkdir()
    (folder / "old" / "summary.json").write_text("{}")
    (folder / "key.yaml").write_text("servers: 2\njob:\n  wrokers: 3\n")
    (folder / "value.yaml").write_text("servers: two\n")
    (folder / "twice.yaml").write_text("servers: 2\nservers: 3\n")
    (folder / "codec.yaml").write_text("job:\n  codecs: {'dense*': fp16}\n")
    (folder / "broken.yaml").write_text("servers: [\n")
    images = (FASHION_MNIST / "train-images-idx3-ubyte.gz").read_bytes()
    damaged = bytearray(images)
    damaged[len(images) // 2] ^= 0xFF
    with gzip.open(FASHION_MNIST / "t10k-images-idx3-ubyte.gz") as file:
        fewer = gzip.compress(file.read(), 1)
    for name, content in (("cut", images[:1000]), ("flipped", bytes(damaged)), ("swapped", fewer),
                          ("plain", gzip.decompress(images))):
        shutil.copytree(FASHION_MNIST, folder / name)
        (folder / name / "train-images-idx3-ubyte.gz").write_bytes(content)


def tree(folder):
    """What is in it, but for `s`: a scheduler makes its state directory, whole, before it listens."""
    paths = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
    return [path for path in paths if path.split("/")[0] != "s"]


class WrongInputTest(unittest.TestCase):
    def setUp(self):
        self.folder = temporary_folder(self)
        make_files(self.folder)
        taken = self.listen()
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            self.ports = {"taken": taken, "closed": closed.getsockname()[1]}

    def listen(self):
        listener = socket.socket()
        self.addCleanup(listener.close)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        return listener.getsockname()[1]

    def check(self, line, code, parts, variables={}):
        words = line.format(**self.ports).split(" ")
        before = tree(self.folder)
        done = run_program(*words, folder=self.folder, variables=variables)
        self.assertEqual(done.returncode, code, done.stderr)
        errors = [text for text in done.stderr.splitlines() if text.startswith(f"{words[0]}: ")]
        self.assertEqual(len(errors), 1, done.stderr)
        for part in parts:
            self.assertIn(part.format(**self.ports), errors[0] if len(words) > 1 or code != USAGE else done.stderr)
        self.assertNotIn("terminate called", done.stderr)
        self.assertEqual(tree(self.folder), before)

    def test_flags_keys_files_and_names(self):
        self.assertGreaterEqual(len(FLAGS), 40)
        for line, code, parts in FLAGS:
            with self.subTest(line=line):
                self.check(line, code, parts)

    def test_variables(self):
        for variables, line, parts in VARIABLES:
            with self.subTest(line=line, **variables):
                self.check(line, USAGE, parts, variables=variables)


class WrongInACluster(unittest.TestCase):
    """Names that only a scheduler can know to be wrong."""

    def setUp(self):
        self.cluster = Cluster()
        self.addCleanup(self.cluster.close)
        self.cluster.start_scheduler()

    def run_program(self, name, *arguments):
        done = run_program(name, *arguments, f"--scheduler={self.cluster.address}", folder=self.cluster.folder)
        return done.returncode, done.stderr

    def test_a_job_that_nobody_knows(self):
        for command in (["jobs"], ["groups"], ["staleness"], ["stop"]):
            with self.subTest(command=command):
                code, error = self.run_program("pacelinectl", *command, "nope")
                self.assertEqual(code, NO_JOB, error)
                self.assertRegex(error, r"^pacelinectl: .*\bnope\b")
                self.assertEqual(error.count("\n"), 1, error)

    def test_a_worker_whose_settings_differ_from_the_jobs(self):
        self.cluster.start_server("server-a")
        self.cluster.start_worker(0, 2, "--seed=1")
        self.cluster.joined("w0")
        code, error = self.run_program("paceline-worker", "--job=job", "--workers=2", "--name=w1", "--index=1",
                                       "--failure-timeout-ms=1500", "--seed=2")
        self.assertEqual(code, FAILED, error)
        self.assertRegex(error, r"paceline-worker: .*'w1'.*'job'.*seed.*1.*2")

    def test_a_policy_that_this_version_does_not_have(self):
        code, error = self.run_program("paceline-worker", "--job=job", "--policy=xdc:lambda=100")
        self.assertEqual(code, FAILED, error)
        self.assertRegex(error, r"paceline-worker: .*policy: xdc is not available; use none")


if __name__ == "__main__":
    main(at_once=1)
