# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
"""What the tests with real programs share.

A case is a function that is given a Trial. It starts servers, runs clients, and checks what came of it; the Trial puts rsrun
in front of each program where sockets are to be carried, bounds every wait, and ends what the case left running. A case runs
twice: on kernel TCP, which shows that the case itself is sound and what the programs say and return, and carried.
"""

import collections
import hashlib
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))


class Failed(Exception):
    """What a case expected and did not see."""


Case = collections.namedtuple("Case", "program title body needs lab limit")
CASES = []


def case(program, title, needs, lab=False, limit=60):
    """Registers a case. needs: commands that must be there; lab: it also runs on emulated devices; limit: seconds."""

    def register(body):
        CASES.append(Case(program, title, body, needs, lab, limit))
        return body

    return register


Record = collections.namedtuple("Record", "pid program fd role local peer verdict core sent received reason")


def port_of(address):
    return address.rpartition(":")[2]


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


def held_by_programs(inodes):
    """Those of the sockets that some process has open. The others are the kernel's own: soft-iWARP has a TCP connection for
    each of its queue pairs."""
    wanted = {"socket:[%s]" % inode for inode in inodes}
    held = set()
    for process in os.listdir("/proc") if wanted else ():
        folder = "/proc/%s/fd" % process
        try:
            numbers = os.listdir(folder) if process.isdigit() else ()
        except OSError:
            continue
        for number in numbers:
            try:
                held.update(wanted & {os.readlink("%s/%s" % (folder, number))})
            except OSError:
                pass
    return held


def default_signals():
    """Who is started in the background ignores an interrupt, which ends some servers; so would its children."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


class Program:
    """One that was started: its output, its errors and its records are files of the trial's folder."""

    def __init__(self, trial, argv, label, carried, environment, stdin):
        self.trial = trial
        self.label = label
        self.carried = carried and trial.carried
        stem = os.path.join(trial.folder, "%02d-%s" % (len(trial.programs), label))
        self.out_path, self.err_path, self.records_path = stem + ".out", stem + ".err", stem + ".records"
        self.log_path = stem + ".log"
        full = {name: value for name, value in os.environ.items() if name not in ("FI_PROVIDER", "LD_PRELOAD")}
        full.update(trial.environment if carried else {}, **environment)
        if self.carried:
            open(self.records_path, "w").close()
            os.chmod(self.records_path, 0o666)
            full["RSPRELOAD_EXPLAIN"] = self.records_path
            argv = [trial.suite.rsrun, "--core", trial.suite.core, "--only", ":%d" % trial.port, "--log", self.log_path,
                    "--"] + argv
        with open(self.out_path, "wb") as out, open(self.err_path, "wb") as err:
            self.process = subprocess.Popen(argv, stdin=stdin or subprocess.DEVNULL, stdout=out, stderr=err, env=full,
                                            cwd=trial.folder, start_new_session=True,
                                            preexec_fn=default_signals)
        self.status = None

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
        return (self.text()[-300:] + self.errors()[-600:] + log).strip() or "(it said nothing)"

    def comparable_errors(self):
        """Lines of its stderr without what differs between any two runs."""
        text = self.errors().replace(self.trial.folder, "FOLDER")
        return [re.sub(r"[0-9]+", "#", line.strip()) for line in text.splitlines() if line.strip()]


class Trial:
    """One run of a case, carried or not."""

    def __init__(self, suite, tried, carried):
        self.suite = suite
        self.carried = carried
        self.small = suite.small
        self.address = suite.address
        self.folder = tempfile.mkdtemp(prefix="programs.")
        os.chmod(self.folder, 0o755)
        self.port = self.free_port()
        self.deadline = time.monotonic() + tried.limit * suite.patience
        self.programs = []
        self.environment = {}  # of programs whose sockets are meant
        self.fabric_only = False  # servers do not listen on the kernel's TCP
        self.kernel_connections = 0
        self.over = threading.Event()

    def free_port(self):
        # Below those that the kernel gives to clients.
        while True:
            port = random.randrange(15000, 32000)
            if not sockets_of_port(port, "0A") and not sockets_of_port(port, "01"):
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

    def start(self, argv, label=None, carried=True, environment=None, stdin=None):
        program = Program(self, [str(word) for word in argv], label or os.path.basename(argv[0]), carried,
                          environment or {}, stdin)
        self.programs.append(program)
        return program

    def serve(self, argv, **options):
        """Starts a server, and waits until it listens."""
        server = self.start(argv, **options)
        while not self.listening(server):
            if server.process.poll() is not None:
                raise Failed("%s ended with %d before it listened: %s" %
                             (server.label, server.process.returncode, server.last_words()))
            if time.monotonic() > self.deadline:
                raise Failed("%s does not listen: %s" % (server.label, server.last_words()))
            time.sleep(0.02)
        return server

    def listening(self, server):
        if not self.fabric_only and not sockets_of_port(self.port, "0A"):
            return False
        if not self.fabric_only and (not server.carried or self.suite.core != "verbs"):
            return True
        shown = subprocess.run(["rdma", "resource", "show", "cm_id"], stdout=subprocess.PIPE, text=True, check=False).stdout
        return any(":%d " % self.port in line and "LISTEN" in line for line in shown.splitlines())

    def run(self, argv, status=0, **options):
        """Runs a program to its end, which must be a good one."""
        program = self.start(argv, **options)
        ended = program.wait()
        if ended != status:
            raise Failed("%s ended with %d: %s" % (program.label, ended, program.last_words()))
        return program

    def expect(self, condition, what):
        if not condition:
            raise Failed(what() if callable(what) else what)

    def expect_same(self, a, b):
        self.expect(sha256(a) == sha256(b), "%s and %s differ (%d and %d bytes)" %
                    (os.path.basename(a), os.path.basename(b), os.path.getsize(a), os.path.getsize(b)))

    def watch(self):
        while not self.over.wait(0.02):
            self.kernel_connections = max(self.kernel_connections, len(held_by_programs(sockets_of_port(self.port, "01"))))

    def perform(self, body):
        watcher = None
        if self.carried and self.suite.core == "verbs":
            watcher = threading.Thread(target=self.watch)
            watcher.start()
        try:
            body(self)
        finally:
            self.over.set()
            if watcher:
                watcher.join()
            for program in self.programs:
                if program.process.poll() is None:
                    program.process.kill()
                    program.process.wait()
        if self.carried:
            self.check_carried()
        if self.kernel_connections:
            raise Failed("%d kernel connections on the port while the core is verbs" % self.kernel_connections)

    def check_carried(self):
        """That what was told of each socket is that it was carried, and that there is something to tell."""
        seen = collections.Counter()
        for program in self.programs:
            if not program.carried:
                continue
            for record in program.records():
                end = record.peer if record.role == "connect" else record.local
                if port_of(end) != str(self.port):
                    continue
                if record.role != "listen" and record.verdict != "carried":
                    raise Failed("%s: a socket (%s) stayed with the kernel: %s" %
                                 (program.label, record.role, record.reason))
                if record.verdict == "carried":
                    if self.suite.core not in record.core:
                        raise Failed("%s: carried by %s" % (program.label, record.core))
                    seen[record.role] += 1
        for role in ("connect", "accept"):
            if seen[role] == 0:
                raise Failed("no record of a carried socket (%s): %s" % (role, "; ".join(
                    "%s: %s" % (program.label, program.last_words()) for program in self.programs)))

    def remove(self):
        shutil.rmtree(self.folder, ignore_errors=True)


class Suite:
    """What all cases have in common: where rsrun is, and what sockets go over."""

    def __init__(self, build, core, address, small, patience):
        self.rsrun = os.path.join(build, "rsrun")
        self.core = core
        self.address = address
        self.small = small
        self.patience = patience

    def attempt(self, tried, carried, keep):
        """None and the trial if it went well; else why not."""
        trial = Trial(self, tried, carried)
        failure = None
        try:
            trial.perform(tried.body)
        except (Failed, OSError, subprocess.SubprocessError, ValueError, KeyError, IndexError) as error:
            failure = "%s%s" % ("" if isinstance(error, Failed) else type(error).__name__ + ": ", error)
        said = [(program.label, program.status, program.comparable_errors()) for program in trial.programs]
        if failure is None or not keep:
            trial.remove()
        else:
            failure += " (kept: %s)" % trial.folder
        return failure, said

    @staticmethod
    def differences(plain, carried):
        """What a program says or returns only when its sockets are carried."""
        for (label, status, errors), (_, other_status, other_errors) in zip(plain, carried):
            if status != other_status:
                return "%s ends with %s, and with %s on kernel TCP" % (label, other_status, status)
            fresh = [line for line in other_errors if line not in errors]
            if fresh:
                return "%s says on stderr what it does not say on kernel TCP: %s" % (label, " | ".join(fresh[:5]))
        return None
