"""What must hold after a lap, and after all of them."""

from cluster import Violation, harness
from script import CANARIES, SCHEDULER

TRAINING_SAMPLES = harness.TRAINING_SAMPLES
# Of the final accuracy against the undisturbed run: one point. Where returns to checkpoints cost more than a twentieth of
# the samples, which short laps feel, as many times more.
ACCURACY = 0.01
LOST_PART = 0.05
# Memory, of processes that lived four minutes or more. A step adds nothing; a leak of one record of 64 bytes at each of
# 150 steps a second would be 9.6 kB/s. What grows by itself stays below a third of that: in an undisturbed lap of six
# minutes the scheduler grew by 2.1 kB/s (its events, bounded, 1000 of them), servers by 0.5, workers by 0.2. Faults leave
# more behind, once: a server to which a dead one's chunks went grew by 1 MB, and may double what it held for its own.
LIFE_S = 240
GROWTH_BYTES = 512_000
GROWTH_BYTES_PER_S = 3_000
# Owners report once more when the last worker has left; no promise, so long enough for a machine with other work.
LAST_REPORT_S = 60


def dealt_with(counts):
    return sum(counts[f"samples_{part}"] for part in ("applied", "discarded", "returned"))


def exact(what, counts):
    if counts["samples_drawn"] != dealt_with(counts):
        raise Violation(f"ledger of {what}: drawn {counts['samples_drawn']}, applied + discarded + returned "
                        f"{dealt_with(counts)}: {counts}")


def finished(run, job):
    """The job's view once it is over and every sample is dealt with, or what it is after waiting for that."""
    view = None

    def over():
        nonlocal view
        view = run.ask("jobs", job) or view
        return view and view["state"] == "finished" and view["samples_drawn"] == dealt_with(view)

    try:
        harness.until(over, "the end", LAST_REPORT_S)
    except AssertionError:
        if not view or view["state"] != "finished":
            raise Violation(f"{job} is not finished {LAST_REPORT_S} s after its last worker ended: {view}") from None
    return view


def rolled_back(own, worker):
    """Counts to compare after a return to a checkpoint: what a worker has seen applied since is discarded by the
    others' count."""
    if own["samples_applied"] < worker["samples_applied"]:
        raise Violation(f"{worker['worker']}: more was applied than it knows of: {worker}")
    return [{"samples_drawn": counts["samples_drawn"], "samples_returned": counts["samples_returned"],
             "samples_applied or discarded": counts["samples_applied"] + counts["samples_discarded"]}
            for counts in (own, worker)]


def ledger(run, job, samples=None):
    """Counted by the scheduler (job), by owners (per worker) and by the workers themselves: the same, to the sample."""
    view = finished(run, job)
    exact(job, view)
    if samples is not None and view["samples_applied"] + view["samples_discarded"] != samples:
        raise Violation(f"{job}: {samples} samples were to be trained on, applied + discarded are "
                        f"{view['samples_applied']} + {view['samples_discarded']}")
    staleness = run.ask("staleness", job)
    for worker in staleness["by_worker"]:
        name, own = worker["worker"], worker["own_counts"]
        exact(f"{job}, worker {name}", worker)
        exact(f"{job}, worker {name} by its own count", own)
        # Its own count is of its last incarnation.
        if run.text(SCHEDULER).count(f"job {job}: join: worker {name},") > 1:
            continue
        if view["rollbacks"]:
            own, worker = rolled_back(own, worker)
        for part, count in own.items():
            if count != worker[part]:
                raise Violation(f"{job}, worker {name}: {part} is {worker[part]}, {count} by its own count")
    for part in ("drawn", "applied", "discarded", "returned"):
        total = sum(w[f"samples_{part}"] for w in staleness["by_worker"])
        if total != view[f"samples_{part}"]:
            raise Violation(f"{job}: samples_{part} is {view[f'samples_{part}']}, {total} over its workers")
    for group in staleness["by_group"]:
        if group["sum"] != group["formula_sum"]:
            raise Violation(f"{job}, group {group['group']}: staleness {group['sum']}, {group['formula_sum']} by "
                            "versions alone")
    return view


def accuracy(view, undisturbed=None):
    """Of the workers that finished: they have the same weights."""
    found = {m["worker"]: m["value"] for m in view["metrics"] if m["name"] == "test_accuracy"}
    if not found or len(set(found.values())) != 1:
        raise Violation(f"workers end with different weights: test accuracies {found}")
    value = next(iter(found.values()))
    lost = view["samples_discarded"] / view["samples_total"]
    allowed = ACCURACY * max(1.0, lost / LOST_PART)
    if undisturbed is not None and value < undisturbed - allowed:
        raise Violation(f"test accuracy {value:.4f}, {undisturbed:.4f} undisturbed; {lost:.1%} of the samples discarded")
    return value


def canaries(run):
    for name in CANARIES:
        wrong = [line for line in run.text(name).splitlines() if "WRONG" in line]
        if wrong:
            raise Violation(f"{name}: {wrong[0]}")


def flat(growths):
    for g in growths:
        allowed = GROWTH_BYTES + GROWTH_BYTES_PER_S * g.seconds + g.share
        if g.bytes > allowed:
            raise Violation(f"memory of {g.who} has grown by {g.bytes / 1000:.0f} kB in {g.seconds:.0f} s, to "
                            f"{g.size / 1e6:.1f} MB; allowed {allowed / 1000:.0f} kB")


def nothing_left(run):
    strays = run.strays()
    if strays:
        raise Violation(f"processes are left: {strays}")
    held = []
    for name, port in run.ports.items():
        listening = run.network.listening(name)
        if port in listening:
            held.append(f"{name}: {port}")
    if held:
        raise Violation(f"ports are held: {held}")


