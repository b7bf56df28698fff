"""Where the processes of a run are: all on loopback, or each in a network namespace of its own on one bridge, whose
links can be cut.

A cut drops what arrives at either end from the other, so both see silence, as with a dead cable; nothing is refused.
"""

import os
import re
import subprocess


def run(*command, check=True):
    reply = subprocess.run(command, capture_output=True, text=True)
    if check and reply.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {reply.stderr.strip()}")
    return reply


def why_no_cuts():
    """Why links cannot be cut here, or nothing."""
    if os.geteuid() != 0:
        return "not root"
    name = f"pcl{os.getpid()}-try"
    try:
        run("ip", "netns", "add", name)
    except (RuntimeError, FileNotFoundError) as error:
        return str(error)
    try:
        run("ip", "netns", "exec", name, "iptables", "-A", "INPUT", "-s", "10.77.0.2", "-m", "length", "--length",
            "150:65535", "-j", "DROP")
        run("ip", "link", "add", "br0", "netns", name, "type", "bridge")
        return None
    except RuntimeError as error:
        return str(error)
    finally:
        run("ip", "netns", "del", name, check=False)


def why_no_resets():
    """Why connections cannot be closed from outside here, or nothing."""
    if os.geteuid() != 0:
        return "not root"
    try:
        run("ss", "-K", "dst", "127.0.0.1", "dport", "=", "1")
        return None
    except (RuntimeError, FileNotFoundError) as error:
        return str(error)


def listening(enter):
    return {int(line.split()[3].rsplit(":", 1)[1]) for line in run(*enter, "ss", "-tlnH").stdout.splitlines()}


class Loopback:
    """No links that could be cut."""
    private = False  # addresses are shared with everybody on this machine
    environment = {}

    def address(self, name):
        return "127.0.0.1"

    def enter(self, name):
        """What goes before a command that is to run at the place of `name`."""
        return []

    def reset(self, name, process, peer_ports):
        """Closes the connections of the process `name` to these ports of others; how many."""
        return reset([], process, peer_ports)

    def listening(self, name):
        return listening([])

    def close(self):
        pass


def reset(enter, process, ports):
    found = run(*enter, "ss", "-tnpH", "state", "established").stdout
    closed = 0
    for line in found.splitlines():
        match = re.search(r"(\S+):(\d+)\s+(\S+):(\d+)\s.*pid=(\d+),", line)
        if match and int(match[5]) == process and int(match[4]) in ports:
            run(*enter, "ss", "-K", "sport", "=", match[2], "dport", "=", match[4])
            closed += 1
    return closed


class Namespaces:
    """10.77.0.0/24, seen by nobody outside."""
    private = True
    environment = {"PACELINE_INSECURE": "true"}

    def __init__(self, names):
        self.prefix = f"pcl{os.getpid()}-"
        self.addresses = {}
        remove_strays()
        try:
            self.make(names)
        except BaseException:
            self.close()
            raise

    def make(self, names):
        hub = self.space("hub")
        run("ip", "netns", "add", hub)
        run("ip", "link", "add", "br0", "netns", hub, "type", "bridge")
        run("ip", "-n", hub, "addr", "add", "10.77.0.1/24", "dev", "br0")
        run("ip", "-n", hub, "link", "set", "br0", "up")
        for i, name in enumerate(names):
            space, address = self.space(name), f"10.77.0.{i + 2}"
            self.addresses[name] = address
            run("ip", "netns", "add", space)
            run("ip", "link", "add", "eth0", "netns", space, "type", "veth", "peer", "name", f"v{i}", "netns", hub)
            run("ip", "-n", hub, "link", "set", f"v{i}", "master", "br0", "up")
            run("ip", "-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
            run("ip", "-n", space, "link", "set", "eth0", "up")
            run("ip", "-n", space, "link", "set", "lo", "up")

    def space(self, name):
        return self.prefix + name

    def address(self, name):
        return self.addresses[name]

    def enter(self, name):
        return ["ip", "netns", "exec", self.space(name if name in self.addresses else "hub")]

    def set_cut(self, a, b, cut):
        """Between two names; b may be * for everybody."""
        how = "-A" if cut else "-D"
        if b == "*":
            run(*self.enter(a), "iptables", "-w", how, "INPUT", "-i", "eth0", "-j", "DROP")
            for other in self.addresses:
                if other != a:
                    run(*self.enter(other), "iptables", "-w", how, "INPUT", "-s", self.address(a), "-j", "DROP")
            return
        for here, there in ((a, b), (b, a)):
            run(*self.enter(here), "iptables", "-w", how, "INPUT", "-s", self.address(there), "-j", "DROP")

    def set_deaf(self, listener, speaker, deaf):
        """Drops what the listener gets from the speaker, but not the bare acknowledgements of what it sends."""
        run(*self.enter(listener), "iptables", "-w", "-A" if deaf else "-D", "INPUT", "-s", self.address(speaker),
            "-m", "length", "--length", "150:65535", "-j", "DROP")

    def reset(self, name, process, peer_ports):
        return reset(self.enter(name), process, peer_ports)

    def listening(self, name):
        return listening(self.enter(name))

    def close(self):
        for name in [*self.addresses, "hub"]:
            run("ip", "netns", "del", self.space(name), check=False)


def remove_strays():
    """Namespaces of punishers that were killed before they could clean up."""
    for line in run("ip", "netns", "list").stdout.splitlines():
        match = re.match(r"(pcl(\d+)-\S+)", line)
        if match and not os.path.exists(f"/proc/{match[2]}"):
            run("ip", "netns", "del", match[1], check=False)
