# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
"""What the tests with real programs share.

A case is a function that is given a Trial. It starts servers, runs clients, and checks the results; the Trial puts rsrun in
front of each program, bounds every wait, and ends what the case left running. A case runs twice: on kernel TCP, which shows
that the case itself is sound and what the programs print and return, and under rsrun.
"""

import collections
import ctypes
import errno
import hashlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))


# Paths. SHM stands for the usual choice between two processes of one host; the name of a core for the fabric path over it.
SHM = "shm"
KERNEL = "kernel"
NEVER_TRUE = ("the peer is not in this network namespace of this host", "the peer's offer was not valid")


class Failed(Exception):
    """What a case expected and did not see."""


class FewUpgrades(Failed):
    """All was right, but fewer connections than expected lived long enough to be upgraded: a matter of time."""


Case = collections.namedtuple("Case", "program title body needs lab limit open")
CASES = []


def case(program, title, needs, lab=False, limit=60, open=None):
    """Registers a case. needs: commands that must be there; lab: it also runs on emulated devices; limit: seconds;
    open: what is known not to hold under rsrun yet; a run that shows it is skipped, and named."""

    def register(body):
        CASES.append(Case(program, title, body, needs, lab, limit, open))
        return body

    return register


Record = collections.namedtuple(
    "Record", "pid program fd role local peer path upgrades returns upgraded_ms sent received reason")


def port_of(address):
    return address.rpartition(":")[2]


def without_mapping(address):
    """An IPv4 address as such, also where an IPv6 socket has it."""
    return re.sub(r"^\[::ffff:([0-9.]+)\]", r"\1", address)


def was_upgraded(record):
    """That its bytes were on the path at some time, or are to be from the next byte on."""
    return record.path not in (KERNEL, "-") or int(record.upgrades if record.upgrades != "-" else 0) > 0


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def sockets_of_port(port, state):
    """The inodes of this host's kernel TCP sockets that have the port at one of their ends and are in the state (0A:
    LISTEN)."""
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table) as file:
                lines = file.readlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            ports = [int(word.rpartition(":")[2], 16) for word in words[1:3]]
            if words[3] == state and port in (ports if state == "01" else ports[:1]):
                found.append(words[9])
    return found


def adopt_orphans():
    """Makes this process the parent of its descendants whose own parent has ended: a server's processes can then be waited
    for, and ended, by their ids."""
    pr_set_child_subreaper = 36
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_child_subreaper, 1, 0, 0, 0)


def children():
    """Process ids and names of this process's children that have not ended."""
    found = {}
    for process in os.listdir("/proc"):
        if not process.isdigit():
            continue
        try:
            with open("/proc/%s/stat" % process) as file:
                text = file.read()
        except OSError:
            continue
        name, _, rest = text.partition("(")[2].rpartition(")")
        state, parent = rest.split()[:2]
        if int(parent) == os.getpid():
            if state == "Z":
                continue
            found[int(process)] = name
    return found


def default_signals():
    """A program that is started in the background ignores SIGINT, which ends some servers; so would its children."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


class Program:
    """One that was started: its output, its errors and its records are files of the trial's folder."""

    def __init__(self, trial, argv, label, rsrun, environment, stdin):
        self.trial = trial
        self.label = label
        self.under_rsrun = rsrun and trial.under_rsrun
        stem = os.path.join(trial.folder, "%02d-%s" % (len(trial.programs), label))
        self.out_path, self.err_path, self.records_path = stem + ".out", stem + ".err", stem + ".records"
        self.log_path = stem + ".log"
        full = {name: value for name, value in os.environ.items() if name not in ("FI_PROVIDER", "LD_PRELOAD")}
        full.update(trial.environment if rsrun else {}, **environment)
        if self.under_rsrun:
            if trial.suite.over_fabric:  # though both ends are on this host
                full["RSPRELOAD_UPGRADE"] = "test:8:0:fabric"
            if trial.explained:
                for path in (self.records_path, self.log_path):  # processes of other users append to them, too
                    open(path, "w").close()
                    os.chmod(path, 0o666)
                full["RSPRELOAD_EXPLAIN"] = self.records_path
                full["RSPRELOAD_LOG"] = self.log_path
            argv = [trial.suite.rsrun, *trial.rsrun_options, "--"] + argv
        elif rsrun:
            argv = trial.prefix + argv
        with open(self.out_path, "wb") as out, open(self.err_path, "wb") as err:
            self.process = subprocess.Popen(argv, stdin=stdin or subprocess.DEVNULL, stdout=out, stderr=err, env=full,
                                            cwd=trial.folder, start_new_session=True,
                                            preexec_fn=default_signals)
        self.status = None
        self.expected = 0  # the status that the case has asked for

    def output(self):
        with open(self.out_path, "rb") as file:
            return file.read()

    def text(self):
        return self.output().decode("utf-8", "replace")

    def errors(self):
        with open(self.err_path, "rb") as file:
            return file.read().decode("utf-8", "replace")

    def records(self):
        found = []
        with open(self.records_path) as file:
            for line in file:
                words = line.rstrip("\n").split("\t")
                if len(words) != len(Record._fields):
                    raise Failed("%s: not a record: %r" % (self.label, line))
                found.append(Record(*words))
        return found

    def wait(self):
        """Until it ends by itself."""
        try:
            self.status = self.process.wait(max(0.1, self.trial.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise Failed("%s did not end in time: %s" % (self.label, self.last_words()))
        return self.status

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.wait()

    def last_words(self):
        log = ""
        if os.path.exists(self.log_path):
            with open(self.log_path, errors="replace") as file:
                log = file.read()[-600:]
        return (self.text()[-300:] + self.errors()[-600:] + log).strip() or "(it printed nothing)"

    def comparable_errors(self):
        """Lines of its stderr without what differs between any two runs."""
        text = self.errors().replace(self.trial.folder, "FOLDER")
        for expression in self.trial.varying:
            text = re.sub(expression, "#", text)
        # lighttpd tells of a machine that was paused.
        return [re.sub(r"[0-9]+", "#", line.strip()) for line in text.splitlines()
                if line.strip() and "clock jumped" not in line]


class Trial:
    """One run of a case, under rsrun or not."""

    def __init__(self, suite, tried, under_rsrun):
        self.suite = suite
        self.under_rsrun = under_rsrun
        self.small = suite.small
        self.address = suite.address
        self.folder = tempfile.mkdtemp(prefix="programs.")
        os.chmod(self.folder, 0o755)
        self.port = self.free_port()
        self.rsrun_options = ["--path", "fabric", "--core", suite.core] if suite.over_fabric else []
        self.prefix = []  # what programs are run by in a run that is not under rsrun
        self.listens_by_rdma = False  # servers do so by the RDMA CM, and perhaps not on the kernel's TCP
        self.deadline = time.monotonic() + tried.limit * suite.patience
        self.programs = []
        self.environment = {}  # of programs whose sockets are meant
        self.expected_upgrades = []  # number, port, and how many ends have records
        self.explained = True  # rsrun's records are kept
        self.records_expected = True
        self.varying = []  # regular expressions of what programs print differently each time
        self.left = set()  # names of processes that had to be killed in the end

    def free_port(self):
        # Below those that the kernel gives to clients. Some servers bind without SO_REUSEADDR, which fails as long as a
        # connection of before is in TIME_WAIT.
        while True:
            port = random.randrange(15000, 32000)
            with socket.socket(socket.AF_INET) as probe:
                try:
                    probe.bind((self.address, port))
                except OSError as error:
                    if error.errno != errno.EADDRINUSE:
                        raise
                    continue
            return port

    def scale(self, large, small):
        """How much of something: small where devices are emulated."""
        return small if self.small else large

    def make_file(self, name, size):
        path = os.path.join(self.folder, name)
        generator = random.Random(size)
        with open(path, "wb") as file:
            while size > 0:
                block = generator.randbytes(min(size, 1 << 20))
                file.write(block)
                size -= len(block)
        return path

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w") as file:
            file.write(text)
        return self.path(name)

    def start(self, argv, label=None, rsrun=True, environment=None, stdin=None):
        """Starts a program, by rsrun if this run of the case is under it."""
        program = Program(self, [str(word) for word in argv], label or os.path.basename(argv[0]), rsrun,
                          environment or {}, stdin)
        self.programs.append(program)
        return program

    def serve(self, argv, port=None, **options):
        """Starts a server, and waits until it listens."""
        server = self.start(argv, **options)
        self.wait_for_listener(server, port)
        return server

    def wait_for_listener(self, server, port=None):
        while not self.is_listening(port or self.port):
            if server.process.poll():
                raise Failed("%s ended with %d before it listened: %s" %
                             (server.label, server.process.returncode, server.last_words()))
            if time.monotonic() > self.deadline:
                raise Failed("%s does not listen: %s" % (server.label, server.last_words()))
            time.sleep(0.02)

    def is_listening(self, port):
        if not self.listens_by_rdma:
            return bool(sockets_of_port(port, "0A"))
        shown = subprocess.run(["rdma", "resource", "show", "cm_id"], stdout=subprocess.PIPE, text=True, check=False).stdout
        return any(":%d " % port in line and "LISTEN" in line for line in shown.splitlines())

    def wait_until(self, condition, what):
        while not condition():
            if time.monotonic() > self.deadline:
                raise Failed("in time there was no " + what)
            time.sleep(0.02)

    def run(self, argv, status=0, **options):
        """Runs a program to its end, which must be a good one."""
        program = self.start(argv, **options)
        ended = program.wait()
        program.expected = status
        if ended != status:
            raise Failed("%s ended with %d: %s" % (program.label, ended, program.last_words()))
        return program

    def expect(self, condition, what):
        if not condition:
            raise Failed(what() if callable(what) else what)

    def expect_same(self, a, b):
        self.expect(sha256(a) == sha256(b), "%s and %s differ (%d and %d bytes)" %
                    (os.path.basename(a), os.path.basename(b), os.path.getsize(a), os.path.getsize(b)))

    def expect_ended(self, program, status=0):
        program.expected = status
        self.expect(program.status == status,
                    lambda: "%s ended with %s: %s" % (program.label, program.status, program.last_words()))

    def stop(self, program, number=signal.SIGTERM, status=0):
        """Stops a server, which must end with the status."""
        program.stop(number)
        self.expect_ended(program, status)

    def expect_upgraded(self, minimum=1, port=None, one_end=False):
        """Declares that at least so many connections of the port live long enough to be upgraded. It is checked after the
        case, in a run under rsrun. A process that is killed leaves no record; with one_end, the record of the other end is
        enough."""
        # One in four may be over before both ends' services have met: a connection of an echo client lasts some ms.
        self.expected_upgrades.append((minimum - minimum // 4, port or self.port, 1 if one_end else 2))

    def perform(self, body):
        try:
            body(self)
        finally:
            self.end_programs()
        if self.under_rsrun and self.explained:
            self.check_upgraded()

    def end_programs(self):
        for program in self.programs:
            if program.process.poll() is None:
                program.process.kill()
                program.process.wait()
        # Processes of servers may need a moment to end after their parent.
        patience = time.monotonic() + 1
        while orphans := children():
            if time.monotonic() > patience:
                self.left.update(orphans.values())
                for process in orphans:
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.02)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass

    def records(self):
        return [(program, record) for program in self.programs if program.under_rsrun and self.explained
                for record in program.records()]

    def connections(self, port):
        """Connections of the port, by both addresses: which of their ends have a record, and whether it was upgraded. Several
        processes may have used an end: a server's parent and child, or programs that were executed one after another.
        Without a port (None) all connections, for programs that pick their own."""
        found = collections.defaultdict(dict)
        for _, record in self.records():
            local, peer = without_mapping(record.local), without_mapping(record.peer)
            if record.role == "listen":
                continue
            if port_of(peer) == str(port) or (port is None and record.role == "connect"):
                end, key = "client", (local, peer)
            elif port_of(local) == str(port) or port is None:
                end, key = "server", (peer, local)
            else:
                continue
            found[key][end] = found[key].get(end, False) or was_upgraded(record)
        return found

    def upgraded(self, port, ends=2):
        """How many connections of the port both ends moved to the path, and how many there were."""
        found = self.connections(port)
        return sum(len(known) >= ends and all(known.values()) for known in found.values()), len(found)

    def check_upgraded(self):
        for program, record in self.records():
            # Both ends are on this host and honest.
            if record.reason in NEVER_TRUE:
                raise Failed("%s: the reason of a socket (%s, %s to %s) was: %s" %
                             (program.label, record.role, record.local, record.peer, record.reason))
        ends = collections.Counter(end for found in self.connections(self.port).values() for end in found)
        for end in ("client", "server"):
            if self.records_expected and not ends[end]:
                raise Failed("no record of a %s's connection: %s" % (end, self.last_words()))
        for minimum, port, ends in self.expected_upgrades:
            number, of = self.upgraded(port, ends)
            if number < minimum:
                raise FewUpgrades("%d of %d connections were upgraded at both ends, not %d: %s" %
                             (number, of, minimum, self.reasons(port)))

    def reasons(self, port):
        """Why connections of the port stayed with the kernel, the most frequent reasons first."""
        counts = collections.Counter()
        for program, record in self.records():
            if str(port) in (port_of(record.local), port_of(record.peer)) and record.role != "listen":
                counts["%s (%s): %s, %s upgrades, %s returns, %s" %
                       (program.label, record.role, record.path, record.upgrades, record.returns, record.reason)] += 1
        return "; ".join("%d of %s" % (number, what) for what, number in counts.most_common(6)) or "no records"

    def last_words(self):
        return "; ".join("%s: %s" % (program.label, program.last_words()) for program in self.programs)

    def remove(self):
        shutil.rmtree(self.folder, ignore_errors=True)


class Attempt:
    """What came of one run of a case."""

    def __init__(self, trial, failure):
        self.failure = failure
        self.programs = [(program.label, program.status, program.comparable_errors()) for program in trial.programs
                         if program.label != "poll"]  # as many as the time takes, see wait_until()
        self.left = trial.left
        self.unexpected = any(program.status != program.expected for program in trial.programs if program.label != "poll")
        self.upgraded, self.connections = 0, 0
        if trial.under_rsrun:
            try:
                self.upgraded, self.connections = trial.upgraded(trial.port)
            except (Failed, ValueError):
                pass  # which the attempt has reported

    def is_remarkable(self):
        """Whether there is something that a run on kernel TCP may have, too."""
        return bool(self.failure or self.left or self.unexpected or any(errors for _, _, errors in self.programs))


class Suite:
    """What all cases have in common: where rsrun is, and the path that sockets are to take."""

    def __init__(self, build, core, address, small, patience):
        self.rsrun = os.path.join(build, "rsrun")
        self.core = core
        self.over_fabric = core != SHM
        self.address = address
        self.small = small
        self.patience = patience
        adopt_orphans()

    def attempt(self, tried, under_rsrun, keep):
        trial = Trial(self, tried, under_rsrun)
        failure = None
        few = False
        try:
            trial.perform(tried.body)
        except (Failed, OSError, subprocess.SubprocessError, ValueError, KeyError, IndexError, AttributeError) as error:
            few = isinstance(error, FewUpgrades)
            failure = "%s%s" % ("" if isinstance(error, Failed) else type(error).__name__ + ": ", error)
        done = Attempt(trial, failure)
        done.few_upgrades = few
        if failure is None or not keep:
            trial.remove()
        else:
            done.failure += " (kept: %s)" % trial.folder
        return done

    @staticmethod
    def differences(plain, under_rsrun):
        """What a program prints, returns or leaves running only under rsrun."""
        for (label, status, errors), (_, other_status, other_errors) in zip(plain.programs, under_rsrun.programs):
            if status != other_status:
                return "%s ends with %s, and with %s on kernel TCP" % (label, other_status, status)
            fresh = [line for line in other_errors if line not in errors]
            if fresh:
                return "%s prints on stderr what it does not print on kernel TCP: %s" % (label, " | ".join(fresh[:5]))
        if under_rsrun.left - plain.left:
            return "these were left running: %s" % ", ".join(sorted(under_rsrun.left - plain.left))
        return None
