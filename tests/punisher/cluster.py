"""The processes of a run, and what the faults of a script do to them.

A fault is a generator that punish.py steps every few milliseconds until it is undone: it yields while it waits.
"""

import pathlib
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))  # tests/
import harness

from script import CANARIES, SCHEDULER, SERVERS, WORKERS, is_server

# "A daemon ends within 5 s of SIGTERM"; a worker leaves at its next boundary, in the same time.
END_S = 5
# What is asked for while other faults are on: no promise, so long enough for a machine with other work.
PATIENCE_S = 120


class Violation(Exception):
    """Something that must hold did not."""


class Run(harness.Cluster):
    """One scheduler, three servers, six workers that train, three probes that check every weight they get."""

    def __init__(self, network, options):
        self.network = network
        self.options = options
        super().__init__()
        self.tag = f"PUNISHER_RUN={self.folder}"
        # Beyond loopback plaintext has to be asked for; nobody else is on that bridge.
        self.env = {"PUNISHER_RUN": str(self.folder), **network.environment}
        self.lap = 0
        self.expected = set()  # names whose process has to run
        self.ports = {}  # of daemons, by name
        self.closed = 0  # connections, by `reset` and `lose`
        self.spawned = {}  # how often each was started

    # ---- Processes

    def place(self, name):
        # With the punisher itself killed, nothing of it may stay.
        return ["setpriv", "--pdeathsig", "KILL", *self.network.enter(name)]

    def job_of(self, name):
        return f"train-{self.lap}" if name in WORKERS else f"canary-{self.lap}"

    def spawn(self, name):
        self.spawned[name] = self.spawned.get(name, 0) + 1
        address = self.network.address(name)
        if name == SCHEDULER:
            self.address = self.address or f"{address}:{4300 if self.network.private else harness.free_port()}"
            # The trace is off: it is a ring that fills for hours, and would look like a leak.
            self.start(name, "paceline-scheduler", f"--listen={self.address}", "--state-dir=state",
                       f"--failure-timeout-ms={self.timeout_ms}", "--trace-max-events=0", env=self.env)
            self.ports[name] = int(self.address.rsplit(":", 1)[1])
        elif is_server(name):
            self.ports.pop(name, None)
            self.start(name, "paceline-server", f"--scheduler={self.address}", f"--name={name}", f"--bind={address}:0",
                       env=self.env)
        elif name in WORKERS:
            o = self.options
            self.start(name, "paceline-worker", *self.flags_of(name, len(WORKERS)), "--groups=3,3", "--model=mlp",
                       "--chunk-bytes=16384", f"--epochs={o.epochs}", f"--step-time-ms={o.step_ms}",
                       f"--index={name[1:]}", "--seed=1", f"--step-log={name}.steps", env=self.env)
        else:
            self.start(name, harness.PROBE, *self.flags_of(name, len(CANARIES)), "--groups=2,1", "--tensors=2",
                       "--elements=20000", "--chunk-bytes=16384", "--sample-count=1000000", "--epochs=10000",
                       f"--step-ms={self.options.step_ms // 2}", env=self.env)
        self.expected.add(name)

    def flags_of(self, name, workers):
        checkpoints = (f"--checkpoint-dir={self.folder}/checkpoints-{self.job_of(name)}", "--checkpoint-every=5s",
                       "--on-server-loss=restore") if self.options.restores else ()
        return (f"--scheduler={self.address}", f"--job={self.job_of(name)}", f"--workers={workers}", f"--name={name}",
                f"--failure-timeout-ms={self.timeout_ms}", *checkpoints)

    @property
    def timeout_ms(self):
        return int(self.options.failure_timeout * 1000)

    def start_daemons(self, servers=len(SERVERS)):
        self.spawn(SCHEDULER)
        harness.until(lambda: f" at {self.address}" in self.text(SCHEDULER), lambda: self.log(SCHEDULER))
        for name in SERVERS[:servers]:
            self.spawn(name)
        harness.until(lambda: len([n for n in (self.ask("nodes") or {"nodes": []})["nodes"] if n["state"] == "live"])
                      == servers, lambda: "servers to join\n" + self.log(SCHEDULER))

    def start_lap(self, lap):
        self.lap = lap
        for name in (*WORKERS, *CANARIES):
            self.spawn(name)

    def take_checkpoints(self):
        """Servers that die are made good from these; the first are there before the first fault."""
        for job in (f"train-{self.lap}", f"canary-{self.lap}"):
            harness.until(lambda: self.ctl("checkpoint", job).returncode == 0, lambda: f"a checkpoint of {job}: "
                          + self.ctl("checkpoint", job).stderr)

    def signal(self, name, how):
        process = self.processes[name]
        if how in (signal.SIGKILL, signal.SIGTERM):
            self.expected.discard(name)
        if process.poll() is None:
            process.send_signal(how)
        if how == signal.SIGKILL:
            process.wait()

    def port_of(self, server):
        if server not in self.ports:
            found = re.findall(r"serving at \S+:(\d+)", self.text(server))
            if len(found) < self.spawned[server]:
                return None
            self.ports[server] = int(found[-1])
        return self.ports[server]

    def ended_by_themselves(self):
        return [n for n in sorted(self.expected) if self.processes[n].poll() is not None]

    # ---- Faults

    def apply(self, fault, alone):
        """`alone()`: no other fault is on; deadlines are the promised ones then."""
        return {"kill": self.kill_and_restart, "term": self.end_and_restart, "stop": self.stop_and_continue,
                "drain": self.drain_and_restart, "join": self.join_and_drain, "cut": self.cut_and_heal,
                "reset": self.reset_connections, "lose": self.lose_replies, "move": self.move}[fault.kind](fault, alone)

    def kill_and_restart(self, fault, alone):
        self.signal(fault.target, signal.SIGKILL)
        yield from pause(fault.seconds)
        self.spawn(fault.target)

    def end_and_restart(self, fault, alone):
        yield from self.end(fault.target, alone)
        yield from pause(fault.seconds)
        self.spawn(fault.target)

    def stop_and_continue(self, fault, alone):
        process = self.processes[fault.target]
        process.send_signal(signal.SIGSTOP)
        yield from pause(fault.seconds)
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)

    def cut_and_heal(self, fault, alone):
        self.network.set_cut(fault.target, fault.peer, True)
        yield from pause(fault.seconds)
        self.network.set_cut(fault.target, fault.peer, False)

    def reset_connections(self, fault, alone):
        port = self.ports[SCHEDULER] if fault.peer == SCHEDULER else self.port_of(fault.peer)
        if port:
            self.closed += self.network.reset(fault.target, self.processes[fault.target].pid, {port})
        yield

    def lose_replies(self, fault, alone):
        peers = [n for n in self.expected if is_server(n)] if fault.peer == "*" else [fault.peer]
        for peer in peers:
            self.network.set_deaf(fault.target, peer, True)
        yield from pause(fault.seconds)
        ports = {self.port_of(peer) for peer in peers} - {None}
        self.closed += self.network.reset(fault.target, self.processes[fault.target].pid, ports)
        for peer in peers:
            self.network.set_deaf(fault.target, peer, False)

    def drain_and_restart(self, fault, alone):
        yield from self.drain(fault.target)
        yield from self.end(fault.target, alone)
        yield from pause(fault.seconds)
        self.spawn(fault.target)

    def join_and_drain(self, fault, alone):
        self.spawn(fault.target)
        yield from pause(fault.seconds)
        yield from self.drain(fault.target)
        yield from self.end(fault.target, alone)

    def end(self, name, alone):
        """SIGTERM, and 0 in time."""
        process, asked = self.processes[name], time.monotonic()
        self.signal(name, signal.SIGTERM)
        while process.poll() is None:
            waited = time.monotonic() - asked
            if waited > (END_S if alone() else PATIENCE_S):
                raise Violation(f"{name} has not ended {waited:.1f} s after SIGTERM")
            yield
        if process.returncode != 0:
            raise Violation(f"{name} ended with {process.returncode} after SIGTERM")

    def drain(self, server):
        begin = time.monotonic()
        while True:
            code, said = yield from self.operator("drain", server, f"--wait={PATIENCE_S}")
            if code == 0:
                return
            # 3: no scheduler at the moment. A server that has not joined yet is not known.
            if code not in (1, 3, 4) or time.monotonic() - begin > PATIENCE_S:
                raise Violation(f"drain {server} failed with {code}: {said}")
            yield from pause(0.2)

    def move(self, fault, alone):
        """A worker to another group. Refused where it is there, leaves, or the group has ended: that is an answer as well."""
        code, said = yield from self.operator("move", self.job_of(fault.target), fault.target, f"--group={fault.peer}")
        if code not in (0, 1, 3, 4):
            raise Violation(f"move {fault.target} to group {fault.peer} failed with {code}: {said}")

    def operator(self, *arguments):
        """What pacelinectl says; others go on meanwhile."""
        command = subprocess.Popen(
            [*self.place("operator"), harness.program("pacelinectl"), *arguments, f"--scheduler={self.address}"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
            env=harness.clean_environment(**self.env))
        try:
            while command.poll() is None:
                yield
            return command.returncode, command.stdout.read()
        finally:
            harness.end(command)
            command.stdout.close()

    # ---- The end

    def end_daemons(self):
        for name in [n for n in self.expected if is_server(n)] + [SCHEDULER]:
            for _ in self.end(name, lambda: True):
                time.sleep(0.02)

    def strays(self):
        """Processes of this run that are still there, other than its zombies."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if self.tag.encode() in (entry / "environ").read_bytes():
                    found.append(f"{entry.name} {(entry / 'comm').read_text().strip()}")
            except OSError:
                continue
        return found

    def close(self, keep=False):
        for process in self.processes.values():
            harness.end(process)
        if not keep:
            super().close()


def pause(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield


