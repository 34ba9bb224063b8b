#!/usr/bin/env python3
"""What the benchmarks do when something is wrong: they end, and say what."""
import copy
import json
import os
import stat
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
import comparisons  # noqa: E402
import jobs  # noqa: E402

RUN = {"config": {"model": {"layers": 6}, "optimizer": {"clip": 1.0}, "data": {}, "schedule": {"batch": 8, "pipeline": "1f1b"}, "run": {"seed": 1, "threads": 1},
                  "mesh": {"shared_vocabulary": False}, "eval": {"every": 5}, "checkpoint": {"every": 0}},
       "steps": 6, "data": "text", "mesh": "dp=1", "costs": "built-in", "params_hash": "aa"}


def changed(**values):
    """A run.json in which these differ; names with dots go into the configuration."""
    run = copy.deepcopy(RUN)
    for name, value in values.items():
        at = run
        *path, last = name.split("__")
        for key in (["config"] if path else []) + path:
            at = at[key]
        at[last] = value
    return run


class Numbers(unittest.TestCase):
    def setUp(self):
        jobs.first_runs.clear()

    def check(self, run, command):
        with tempfile.TemporaryDirectory() as out:
            (Path(out) / "run.json").write_text(json.dumps(run))
            jobs.check_numbers(Path(out), command)

    def test_jobs_that_must_agree_and_do_not_end_the_measurement_naming_both(self):
        for same in ({"mesh": "dp=2"}, {"mesh": "dp=2,pp=2"}, {"run__threads": 2}, {"schedule__pipeline": "zero-bubble"}, {"mesh": "dp=2", "mesh__zero": 3},
                     {"checkpoint__every": 1}, {"eval__every": 0}):
            with self.subTest(same):
                self.setUp()
                self.check(RUN, ["troupe", "first"])
                self.check(changed(**same), ["troupe", "equal"])
                with self.assertRaises(SystemExit) as end:
                    self.check(changed(**same, params_hash="bb"), ["troupe", "second"])
                for said in ("aa  troupe first", "bb  troupe second"):
                    self.assertIn(said, str(end.exception))

    def test_jobs_that_may_differ_do_not(self):
        self.check(RUN, ["first"])
        for other in ({"mesh": "tp=2"}, {"steps": 5}, {"run__seed": 2}, {"model__layers": 7}, {"schedule__batch": 4}, {"data": "other"}, {"resumed_at": 3}):
            with self.subTest(other):
                self.check(changed(**other, params_hash="bb"), ["second"])


class Perftest(unittest.TestCase):
    def test_a_perftest_that_fails_ends_the_measurement_with_what_it_said(self):
        with tempfile.TemporaryDirectory() as folder:
            fake = Path(folder) / "ucx_perftest"
            path = os.environ["PATH"]
            for server, limit in (("exec sleep 60", 1), ("echo no device >&2; exit 1", 60)):   # one that never listens, one that ends at once
                fake.write_text(f"#!/bin/sh\n[ \"$1\" = localhost ] || {{ {server}; }}\necho connection refused >&2\nexit 3\n")
                fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
                begin = time.monotonic()
                os.environ["PATH"], comparisons.LISTEN_S = f"{folder}:{path}", limit
                try:
                    with self.assertRaises(SystemExit) as end:
                        comparisons.perftest("ucp_am_bw", 8, 0, 10)
                finally:
                    os.environ["PATH"] = path
                self.assertIn("connection refused", str(end.exception))
                self.assertIn("exit code 3", str(end.exception))
                self.assertLess(time.monotonic() - begin, 20)


if __name__ == "__main__":
    unittest.main()
