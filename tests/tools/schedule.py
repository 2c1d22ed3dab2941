#!/usr/bin/env python3
"""Runs the tests of several test programs, as many at a time as there are cores.

    schedule.py [--long] [--match WORD]... [--skip WORD]... PROGRAM...

A test's path says how it runs:

    ...::long::...      only with --long
    ...::clock::...     alone, because it measures time
    ...::postgres::...  at most two at a time
    browser             (a program) at most two at a time

Each worker starts a program with some tests of one module, one after another. The exit code is 1 if a test failed.
"""

import argparse
import os
import re
import selectors
import signal
import subprocess
import sys
import time

# A test that takes longer has failed.
TEST_SECONDS = 300
LONG_TEST_SECONDS = 3_600
# How often the running tests are printed.
REPORT_SECONDS = 30
# Tests that one process runs at most.
CHUNK = 25
SLOWEST = 10
LIMITS = {"browser": 2, "postgres": 2}

STARTED = re.compile(rb"^test (\S+)(?: - should panic)? \.\.\. ", re.MULTILINE)
ENDED = re.compile(rb"^test (\S+)(?: - should panic)? \.\.\. .*?(ok|FAILED)$", re.MULTILINE | re.DOTALL)
SUMMARY = re.compile(rb"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored;", re.MULTILINE)


class Chunk:
    """Tests that one process runs."""

    def __init__(self, program, name, group, tests):
        self.program, self.name, self.group, self.tests = program, name, group, tests

    def start(self, now):
        self.output, self.current, self.since = b"", None, now
        arguments = [self.program, "--test-threads=1", "--exact", *self.tests]
        # A group of its own, so that a test that hangs is ended with all that it has started.
        self.process = subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )


def chunks_of(program, options):
    """Returns the program's tests, by group and module, in chunks."""
    name = re.sub(r"-[0-9a-f]{16}$", "", os.path.basename(program))
    listed = subprocess.run([program, "--list", "--format", "terse"], capture_output=True, text=True, check=True)
    tests = [line.removesuffix(": test") for line in listed.stdout.splitlines() if line.endswith(": test")]
    by_group = {}
    for test in tests:
        path = test.split("::")[:-1]
        full = f"{name}::{test}"
        is_wanted = not options.match or any(word in full for word in options.match)
        if not is_wanted or any(word in full for word in options.skip) or ("long" in path and not options.long):
            continue
        group = "clock" if "clock" in path else "browser" if name == "browser" else "postgres" if "postgres" in path else ""
        module = path[0] if path else ""
        by_group.setdefault((group, module), []).append(test)
    for (group, _), tests in by_group.items():
        for first in range(0, len(tests), CHUNK):
            yield Chunk(program, name, group, tests[first : first + CHUNK])


class Scheduler:
    def __init__(self, chunks, test_seconds):
        # The clock's tests come last, when nothing else runs.
        order = {"browser": 0, "postgres": 1, "": 2, "clock": 3}
        self.waiting = sorted(chunks, key=lambda chunk: order[chunk.group])
        self.total = sum(len(chunk.tests) for chunk in self.waiting)
        self.test_seconds = test_seconds
        self.cores = len(os.sched_getaffinity(0))
        self.running, self.durations, self.failures = [], [], []
        self.passed = self.failed = 0
        self.selector = selectors.DefaultSelector()
        self.begun = self.reported = time.monotonic()

    def run(self):
        print(f"{self.total} tests, {self.cores} at a time", flush=True)
        try:
            while self.waiting or self.running:
                self.start()
                for key, _ in self.selector.select(timeout=1):
                    self.read(key.data)
                self.end_hung()
                self.report()
        finally:
            for chunk in self.running:
                kill(chunk)

    def start(self):
        while len(self.running) < self.cores:
            chunk = next((chunk for chunk in self.waiting if self.may_start(chunk)), None)
            if chunk is None:
                return
            self.waiting.remove(chunk)
            chunk.start(time.monotonic())
            os.set_blocking(chunk.process.stdout.fileno(), False)
            self.selector.register(chunk.process.stdout, selectors.EVENT_READ, chunk)
            self.running.append(chunk)

    def may_start(self, chunk):
        groups = [other.group for other in self.running]
        if chunk.group == "clock" or "clock" in groups:
            return not groups
        return groups.count(chunk.group) < LIMITS.get(chunk.group, self.cores)

    def read(self, chunk):
        data = chunk.process.stdout.read()
        if data is None:
            return
        if not data:
            return self.finish(chunk)
        chunk.output += data
        started = STARTED.findall(chunk.output)
        now, current = time.monotonic(), started[-1].decode() if started else None
        if current != chunk.current:
            self.record(chunk, now)
            chunk.current, chunk.since = current, now

    def record(self, chunk, now):
        if chunk.current:
            self.durations.append((now - chunk.since, f"{chunk.name}::{chunk.current}"))

    def finish(self, chunk):
        self.selector.unregister(chunk.process.stdout)
        self.running.remove(chunk)
        code = chunk.process.wait()
        self.record(chunk, time.monotonic())
        summary = SUMMARY.search(chunk.output)
        passed, failed = (int(summary[1]), int(summary[2])) if summary else (0, 0)
        if summary is None or passed + failed != len(chunk.tests) or (code != 0) != (failed != 0):
            # The process ended before its tests did.
            passed = sum(ended[1] == b"ok" for ended in ENDED.findall(chunk.output))
            failed = len(chunk.tests) - passed
            self.fail(chunk, [chunk.current or chunk.tests[0]], f"the test program ended early, with {code}")
        elif failed:
            self.fail(chunk, [name.decode() for name, end in ENDED.findall(chunk.output) if end == b"FAILED"], "failed")
        self.passed += passed
        self.failed += failed

    def fail(self, chunk, tests, why):
        text = chunk.output.decode(errors="replace")
        found = text.find("\nfailures:\n")
        print(text[found:] if found >= 0 else text, end="")
        for test in tests:
            self.failures.append(f"{chunk.name}::{test}")
            print(f"FAILED: {chunk.name}::{test}: {why}", flush=True)

    def end_hung(self):
        for chunk in self.running:
            if time.monotonic() - chunk.since > self.test_seconds:
                chunk.output += b"\n(ended: this test took too long)\n"
                kill(chunk)
                chunk.since = time.monotonic()

    def report(self):
        now = time.monotonic()
        if now - self.reported < REPORT_SECONDS:
            return
        self.reported = now
        running = (f"{chunk.name}::{chunk.current} ({now - chunk.since:.0f} s)" for chunk in self.running)
        minutes, seconds = divmod(int(now - self.begun), 60)
        done = sum(len(chunk.tests) for chunk in self.waiting + self.running)
        print(f"[{minutes}:{seconds:02}] {self.total - done} of {self.total} done; now: {', '.join(running)}", flush=True)


def kill(chunk):
    try:
        os.killpg(chunk.process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def main():
    parser = argparse.ArgumentParser(description="Runs tests, as many at a time as there are cores.")
    parser.add_argument("--long", action="store_true", help="run the tests of modules named `long`, too")
    parser.add_argument("--match", action="append", default=[], help="run only tests whose path contains this")
    parser.add_argument("--skip", action="append", default=[], help="run no tests whose path contains this")
    parser.add_argument("programs", nargs="+", metavar="PROGRAM")
    options = parser.parse_args()
    chunks = [chunk for program in options.programs for chunk in chunks_of(program, options)]
    if not chunks:
        sys.exit("no test matches")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    scheduler = Scheduler(chunks, LONG_TEST_SECONDS if options.long else TEST_SECONDS)
    scheduler.run()
    print("slowest:")
    for seconds, test in sorted(scheduler.durations, reverse=True)[:SLOWEST]:
        print(f"{seconds:8.1f} s  {test}")
    for test in scheduler.failures:
        print(f"FAILED: {test}")
    print(f"{scheduler.passed} passed, {scheduler.failed} failed")
    sys.exit(scheduler.failed > 0)


main()
