#!/usr/bin/env python3
"""The logic of the benchmarks: they end, or fail a row, where something is wrong, and give peers what Troupe has. Nothing is measured."""
import atexit
import contextlib
import copy
import io
import json
import os
import shutil
import stat
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
import checkpoint  # noqa: E402
import comparisons  # noqa: E402
import jobs  # noqa: E402
import run as report  # noqa: E402
import torch_peer  # noqa: E402
import trace_picture  # noqa: E402
from peers import same_run  # noqa: E402
from rounds import Found, PeerFailed, Row, best, measure, sweep, table  # noqa: E402

atexit.register(shutil.rmtree, jobs.SCRATCH, ignore_errors=True)   # jobs makes it when it is imported

RUN = {"config": {"model": {"layers": 6}, "optimizer": {"clip": 1.0}, "data": {}, "schedule": {"batch": 8, "pipeline": "1f1b"}, "run": {"seed": 1, "threads": 1},
                  "mesh": {"shared_vocabulary": False}, "eval": {"every": 5}, "checkpoint": {"every": 0}},
       "steps": 6, "data": "text", "mesh": "dp=1", "layout_costs": "built-in", "params_hash": "aa"}


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
        for same in ({"mesh": "dp=2"}, {"mesh": "dp=2,pp=2"}, {"run__threads": 2}, {"schedule__pipeline": "zero-bubble"}, {"schedule__ahead": "2"}, {"mesh": "dp=2", "mesh__zero": 3},
                     {"checkpoint__every": 1}, {"eval__every": 0}, {"mesh": "dp=2,pp=2", "layout_costs": "costs.toml"}):
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

    def test_jobs_whose_layouts_other_costs_have_decided_may_differ_where_an_axis_divides_the_model(self):
        for divided in ({"mesh": "tp=2"}, {"mesh": "pp=2", "mesh__shared_vocabulary": True}):
            with self.subTest(divided):
                self.setUp()
                self.check(changed(**divided), ["first"])
                self.check(changed(**divided, layout_costs="costs.toml", params_hash="bb"), ["second"])


class Tools(unittest.TestCase):
    def test_a_tool_that_is_not_built_is_named_with_the_command_that_builds_it(self):
        for tool, target in (("bench_free_links", " --target bench_free_links"), ("troupe", "")):
            path = jobs.SCRATCH / "nowhere" / tool
            for command in ([path, "--steps", 1], jobs.on([0], [str(path), "--steps", "1"])):
                with self.assertRaises(SystemExit) as end:
                    jobs.start(command)
                self.assertEqual(str(end.exception), f"{path} is not built: cmake --build {jobs.ROOT / 'build'}{target}")


class Pictures(unittest.TestCase):
    def draw(self, *words):
        rows = [("layer0.fwd", 0, 5), ("box.layer0.sum@stage0", 5, 9), ("box.layer0.sum@stage0: waits", 5, 8)]
        events = [{"ph": "M", "name": "thread_name", "pid": 0, "tid": i, "args": {"name": row}} for i, (row, _, _) in enumerate(rows)]
        events += [{"ph": "X", "name": "act", "pid": 0, "tid": i, "ts": b * 1e3, "dur": (e - b) * 1e3, "args": {"step": s, "microbatch": 0}}
                   for s in (3, 4) for i, (_, b, e) in enumerate(rows)]
        with tempfile.TemporaryDirectory() as folder:
            trace, out = Path(folder) / "tp=2.json", Path(folder) / "out.svg"
            trace.write_text(json.dumps({"traceEvents": events}))
            argv = ["trace_picture.py", str(out), *[w.replace("TRACE", str(trace)) for w in words]]
            with mock.patch.object(sys, "argv", argv), contextlib.redirect_stderr(io.StringIO()) as said:
                try:
                    trace_picture.main()
                except SystemExit as end:
                    return f"{end}{said.getvalue()}"
            return out.read_text()

    def test_draws_acts_and_exchanges_and_not_what_exchanges_wait_for(self):
        drawn = self.draw("plain=TRACE")
        self.assertIn("plain: step 4", drawn)
        self.assertEqual([drawn.count(f"<title>{row},") for row in ("layer0.fwd", "box.layer0.sum@stage0")], [1, 1])
        self.assertNotIn("waits", drawn)

    def test_says_what_a_trace_does_not_have(self):
        self.assertIn("has no step 99; it has 3 to 4", self.draw("a=TRACE", "--step", "99"))
        self.assertIn("there is no such trace", self.draw("a=TRACE.not"))
        self.assertIn("choose an earlier --begin", self.draw("a=TRACE", "--begin", "100"))
        self.assertIn("--length", self.draw("a=TRACE", "--length", "0"))
        self.assertIn("NAME=TRACE.json", self.draw("nameless"))


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

    def test_a_perftest_that_hangs_ends_the_measurement_and_leaves_no_server(self):
        with tempfile.TemporaryDirectory() as folder:
            fake, server = Path(folder) / "ucx_perftest", Path(folder) / "server"
            fake.write_text(f"#!/bin/sh\n[ \"$1\" = localhost ] || echo $$ > '{server}'\nexec sleep 60\n")
            fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
            with mock.patch.dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}"), mock.patch.object(comparisons, "PERFTEST_S", 2):
                with self.assertRaises(SystemExit) as end:
                    comparisons.perftest("ucp_am_bw", 8, 0, 10)
            self.assertIn("it has not ended after 2 s", str(end.exception))
            with self.assertRaises(ProcessLookupError):
                os.kill(int(server.read_text()), 0)


class Process:
    """A process that has ended well."""
    returncode = 0

    def __init__(self, command):
        self.args = [str(word) for word in command]

    def communicate(self, timeout=None):
        return ANSWER, ""

    def kill(self):
        pass

    wait = kill


LOSSES = [5.5, 5.4, 5.3, 5.2, 5.1, 5.0]
ANSWER = json.dumps({"gflops": 140.0, "tile_gflops": 165.0}) + "\n"


class Compared(unittest.TestCase):
    """The comparisons with PyTorch, with processes that compute nothing: which commands run, and what becomes of the answers."""

    def setUp(self):
        self.commands, self.environments = [], []
        self.here, self.losses, self.parameters = True, [LOSSES, LOSSES], 10
        self.memory = {"glibc": {}, "tcmalloc": {"LD_PRELOAD": "libtcmalloc.so"}}
        torch_peer.notes.clear()

        def start(command, env=None):
            self.commands.append([str(word) for word in command])
            self.environments.append(env)
            return Process(command)

        def outputs(processes):
            """A replica's answer: the step is shorter with microbatches of 2, and more so with tcmalloc beside."""
            words = processes[0].args
            ms = 100 - 10 * (words[words.index("--microbatch") + 1] == "2") - 5 * bool((self.environments[-1] or {}).get("LD_PRELOAD"))
            return [json.dumps({"step_ms": [ms] * 6, "loss": loss, "parameters": self.parameters}) for loss, _ in zip(self.losses, processes)]

        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        for target, name, value in ((jobs, "start", start), (jobs, "finish_train", lambda process, out: None), (jobs, "step_ms", lambda out: 1000),
                                    (os, "sched_getaffinity", lambda pid: {7, 2, 5}), (torch_peer, "outputs", outputs),
                                    (torch_peer, "allocators", lambda: self.memory), (torch_peer, "initial_weights", lambda: "weights"),
                                    (torch_peer, "installed", lambda python: self.here),
                                    (torch_peer, "ours", lambda steps: {"loss": LOSSES, "parameters": 10})):
            stack.enter_context(mock.patch.object(target, name, value))
        self.said = stack.enter_context(contextlib.redirect_stdout(io.StringIO()))

    def rows(self, comparison):
        """Those against PyTorch."""
        found = [row for row in comparison(2) if "PyTorch" in row.versus]
        self.assertTrue(found)
        return found

    def cores_of(self, *words):
        """The cores of the commands that have these words one after the other, as tuples; all commands have some."""
        self.assertTrue(all(command[:2] == ["taskset", "-c"] for command in self.commands), self.commands)
        has = lambda command: any(command[i:i + len(words)] == list(words) for i in range(len(command)))
        return [tuple(int(core) for core in command[2].split(",")) for command in self.commands if has(command)]

    def test_both_sides_of_one_worker_run_on_the_same_core(self):
        self.rows(comparisons.model)
        for side in ("train", str(jobs.ROOT / "bench/peers/torch_lm.py")):
            self.assertEqual(set(self.cores_of(side)), {(2,)})

    def test_both_sides_of_two_workers_run_on_the_same_cores_each_worker_and_each_replica_on_its_own(self):
        self.rows(comparisons.workers)
        self.assertEqual(set(self.cores_of("--mesh", "dp=2")), {(2, 5)})
        self.assertTrue(all("--pin" in command for command in self.commands if "--mesh" in command))
        for rank, core in (("0", 2), ("1", 5)):
            self.assertEqual(set(self.cores_of("--rank", rank)), {(core,), (2, 5)})   # in one form of the sweep all replicas on both
            self.assertEqual(self.cores_of("--rank", rank)[0], (core,))               # and at first each on its own

    def test_the_sweep_takes_the_form_in_which_pytorch_is_fastest(self):
        for row in self.rows(comparisons.model):
            self.assertIn("memory tcmalloc, microbatch 2", row.versus)
            self.assertAlmostEqual(row.theirs[0], jobs.TOKENS / 85 * 1e3)
        self.assertTrue(any("microbatch 8" in line and "microbatch 2" in line for line in torch_peer.notes), torch_peer.notes)

    def test_ddp_is_tried_with_several_buckets_and_troupe_over_tcp_as_well(self):
        rows = self.rows(comparisons.workers)
        tried = {words[words.index("--bucket-mb") + 1] for words in self.commands if "--bucket-mb" in words}
        self.assertGreater(len(tried), 2)
        self.assertIn("25", tried)
        tcp = [words for words in self.commands if "--ucx-tls" in words]
        self.assertTrue(tcp and all(words[words.index("--ucx-tls") + 1] == "tcp" and "dp=2" in words for words in tcp))
        self.assertEqual(len([row for row in rows if "over TCP" in row.what]), len(jobs.PYTHONS))

    def test_a_row_fails_where_the_losses_differ_by_more_than_the_bound(self):
        far = [*LOSSES[:5], LOSSES[5] + 2.5 * torch_peer.LOSS_BOUND]
        for comparison, losses in ((comparisons.model, [far]), (comparisons.workers, [LOSSES, far])):   # of replicas the mean counts
            self.losses = losses
            for row in self.rows(comparison):
                self.assertTrue(row.verdict().startswith("failed"), row)
                self.assertIn("the loss of step 5", row.verdict())
                self.assertIn("in Troupe", row.verdict())
                self.assertIn(row.failed, table([row]))
                self.assertIn(row.failed, report.void([row])[0])
        self.losses = [[*LOSSES[:5], LOSSES[5] + 0.5 * torch_peer.LOSS_BOUND]]
        self.assertFalse([row for row in self.rows(comparisons.model) if row.failed])
        self.losses = [[*LOSSES[:5], float("nan")]]
        self.assertTrue(all(row.failed for row in self.rows(comparisons.model)))

    def test_the_slowest_replica_counts_without_its_first_steps_each_has_one_thread_and_of_losses_the_mean(self):
        form = {"memory": "glibc", "microbatch": 4, "compile": "no", "bucket MB": 25, "cores": "one each", "backend": "gloo"}
        answers = [json.dumps({"step_ms": [9000] * jobs.SKIPPED + ms, "loss": [loss + apart for loss in LOSSES], "parameters": 10})
                   for ms, apart in (([10, 30, 20], -0.5), ([40, 60, 50], 0.5))]
        for of_replicas in (answers, answers[::-1]):
            with mock.patch.object(torch_peer, "outputs", lambda processes: of_replicas):
                self.assertAlmostEqual(torch_peer.rate(Path("python"), 6, form, 2), jobs.TOKENS / 50 * 1e3)
        self.assertEqual({one["OMP_NUM_THREADS"] for one in self.environments}, {"1"})
        for both in (self.environments[:2], self.environments[2:]):
            self.assertEqual(len({one["MASTER_PORT"] for one in both}), 1)

    def test_a_row_fails_where_losses_are_missing(self):
        for comparison, losses in ((comparisons.model, [LOSSES[:5]]), (comparisons.workers, [LOSSES, LOSSES[:5]])):
            self.losses = losses
            for row in self.rows(comparison):
                self.assertEqual(row.verdict(), "failed: PyTorch tells 5 losses, expected 6")

    def test_a_row_fails_where_the_numbers_of_parameters_differ(self):
        self.parameters = 11
        for row in self.rows(comparisons.model):
            self.assertIn("failed: the model has 11 parameters in PyTorch and 10 in Troupe", row.verdict())

    def test_a_row_fails_where_the_losses_differ_in_the_rounds_only(self):
        forms = []
        real = torch_peer.sweep

        def then_wrong(*words, **more):
            forms.append(real(*words, **more))
            self.losses = [[loss + 1 for loss in LOSSES]]
            return forms[-1]

        with mock.patch.object(torch_peer, "sweep", then_wrong), mock.patch.dict(jobs.PYTHONS, {"PyTorch, one": Path("python")}, clear=True):
            self.assertTrue(all("failed: the loss of step 0" in row.verdict() for row in self.rows(comparisons.model)))
        self.assertEqual(len(forms), 1)

    def test_without_torch_a_row_is_skipped_and_never_met(self):
        self.here = False
        for comparison in (comparisons.model, comparisons.workers):
            for row in self.rows(comparison):
                self.assertEqual(row.verdict(), "skipped: torch is not installed")
                self.assertIn("skipped: torch is not installed", table([row]))
        self.assertIn("skipped: torch is not installed", self.said.getvalue())


class Sweep(unittest.TestCase):
    AXES = {"memory": ["plain", "huge"], "microbatch": [8, 4, 2, 1], "compile": ["no", "model"]}

    def found(self, rate):
        return sweep(self.AXES, rate, say=lambda *words, **more: None)

    def test_goes_over_the_settings_again_where_one_changes_what_is_best_of_another(self):
        # Microbatches of 1 are the best ones of what is compiled only, and compilation is the later setting.
        ranked, refused = self.found(lambda f: f["microbatch"] if f["compile"] == "no" else 20 - f["microbatch"])
        self.assertEqual(ranked[0][0] | {"memory": ""}, {"memory": "", "microbatch": 1, "compile": "model"})
        self.assertEqual([rate for _, rate in ranked], sorted((rate for _, rate in ranked), reverse=True))
        self.assertEqual(refused, [])

    def test_finds_what_is_best_in_two_settings_together_where_one_of_them_begins(self):
        rate = lambda f: f["microbatch"] if f["compile"] == "no" else 10 - f["microbatch"]   # compiled, 8 are slower than not compiled
        self.assertEqual(self.found(rate)[0][0][0]["compile"], "no")
        self.assertEqual(sweep(self.AXES, rate, begins="compile", say=lambda *words, **more: None)[0][0][0],
                         {"memory": "plain", "microbatch": 1, "compile": "model"})

    def test_tells_which_forms_do_not_run_and_goes_on(self):
        def rate(form):
            if form["compile"] == "model":
                raise PeerFailed("no compiler")
            return form["microbatch"] == 2

        ranked, refused = self.found(rate)
        self.assertEqual(ranked[0][0]["microbatch"], 2)
        self.assertTrue(refused and all(form["compile"] == "model" and why == "no compiler" for form, why in refused))

    def test_a_peer_whose_first_form_does_not_run_has_failed(self):
        def rate(form):
            raise PeerFailed("killed")

        with self.assertRaisesRegex(PeerFailed, "killed"):
            self.found(rate)

    def test_of_the_sides_that_were_measured_the_one_with_the_greatest_median_counts(self):
        found = Found()
        found.update({"a": [3, 3, 100], "b": [4, 4, 4], "ours": [50, 50, 50]})
        self.assertEqual(best(found, ["a", "b", "absent"]), "b")
        self.assertIsNone(best(found, ["absent"]))

    def test_each_round_begins_with_another_side_and_runs_all(self):
        order = []
        measure({name: lambda name=name: order.append(name) or 1 for name in "abc"}, 4, say=lambda *words, **more: None)
        self.assertEqual("".join(order), "abc" "bca" "cab" "abc")

    def test_a_peer_that_fails_in_one_round_has_no_values_and_the_others_go_on(self):
        answers = iter([{"x": 1}, PeerFailed("gone")])

        def peer():
            answer = next(answers)
            if isinstance(answer, Exception):
                raise answer
            return answer

        found = measure({"peer": peer, "ours": lambda: 2}, 3, say=lambda *words, **more: None)
        self.assertEqual(found, {"ours": [2, 2, 2]})
        self.assertEqual(found.failed, {"peer": "gone"})
        self.assertEqual(found.row("what", "unit", "ours", "peer", "peer", goal=1).verdict(), "failed: gone")


class Outputs(unittest.TestCase):
    def processes(self, *scripts):
        return [jobs.start(["sh", "-c", script]) for script in scripts]

    def test_what_replicas_print_comes_in_their_order(self):
        self.assertEqual(torch_peer.outputs(self.processes("sleep 0.1; echo a", "echo b")), ["a\n", "b\n"])

    def test_where_one_replica_fails_the_others_are_ended_and_its_last_line_is_told(self):
        processes = self.processes("exec sleep 60", "echo first >&2; echo no device >&2; exit 3")
        begin = time.monotonic()
        with self.assertRaisesRegex(PeerFailed, "^no device$"):
            torch_peer.outputs(processes)
        self.assertLess(time.monotonic() - begin, 20)
        self.assertTrue(all(p.poll() is not None for p in processes))

    def test_a_replica_that_does_not_end_is_ended(self):
        processes = self.processes("exec sleep 60")
        with mock.patch.object(torch_peer, "LIMIT_S", 0.2), self.assertRaisesRegex(PeerFailed, "no end after 0.2 s"):
            torch_peer.outputs(processes)
        self.assertIsNotNone(processes[0].poll())


class Goals(unittest.TestCase):
    def test_the_goal_for_large_messages_is_on_the_row_with_a_slot_for_each(self):
        found = Found()
        found.update({side: [1.0] for side in ("large", "small", "latency", "latency spinning", "small ucx", "latency ucx")})
        found.update({"slots": [8.8], "large": [14.0], "large ucx": [10.0]})
        rows = [row for row in comparisons.message_rows(found) if "1 MiB" in row.what or "one buffer at" in row.what]
        self.assertEqual([(row.ours, row.goal, row.verdict()) for row in rows], [([8.8], 0.9, "missed"), ([14.0], None, "")])

    def test_rows_of_a_peer_that_is_not_installed_are_skipped(self):
        found = Found()
        found.update({side: [1.0] for side in ("large", "slots", "small", "latency", "latency spinning")})
        for row in comparisons.message_rows(found, "ucx_perftest is not installed"):
            self.assertEqual(row.verdict(), "skipped: ucx_perftest is not installed")

    def test_faster_products_do_not_raise_the_bar_of_the_step(self):
        tokens = [1700.0]
        slow, fast = ([row for row in comparisons.product_rows({"Troupe": tokens, "gemm.gflops": [gflops], "gemm.tile_gflops": [165.0]})]
                      for gflops in (100.0, 160.0))
        with_goal = lambda rows: [row for row in rows if row.goal is not None]
        self.assertEqual([row.ratio() for row in with_goal(slow)], [row.ratio() for row in with_goal(fast)])
        self.assertAlmostEqual(with_goal(slow)[0].ratio(), comparisons.step_flops() * 1700 / jobs.TOKENS * 1e-9 / 165)
        self.assertAlmostEqual(slow[1].ratio(), 100 / 165)   # the products, of the tile

    def test_a_row_that_has_failed_ends_the_report_with_code_1_and_one_that_misses_its_goal_does_not(self):
        for row, code in ((Row("what", "unit", [1.0], versus="a peer", failed="gone"), 1), (Row("what", "unit", [1.0], [1.0], "a peer", goal=2.0), 0)):
            with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
                stack.enter_context(mock.patch.object(sys, "argv", ["run.sh", "--out", f"{folder}/report.md"]))
                stack.enter_context(mock.patch.object(jobs, "check_ways", lambda: None))
                stack.enter_context(mock.patch.dict(comparisons.ALL, {"one": lambda rounds: [row]}, clear=True))
                stack.enter_context(mock.patch.object(report, "report", lambda names, rounds, rows: table(rows)))
                stack.enter_context(mock.patch.object(report.shutil, "rmtree"))
                stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
                said = stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
                self.assertEqual(report.main(), code)
                self.assertEqual("gone" in said.getvalue(), code == 1)
                self.assertIn("what", Path(folder, "report.md").read_text())

    def test_a_row_without_a_peer_is_not_met(self):
        self.assertEqual(Row("what", "unit", [2.0], goal=0.1, skipped="torch is not installed").verdict(), "skipped: torch is not installed")


class Disk(unittest.TestCase):
    def test_fio_counts_at_its_best_depth(self):
        seen = []
        with mock.patch.object(checkpoint, "fio", lambda folder, size, mode, depth: seen.append((mode, depth)) or (1.0 if depth == 16 else 2.0)), \
                mock.patch.object(checkpoint.shutil, "which", lambda program: program):
            sides = checkpoint.fio_sides(Path("folder"), lambda: 100e6, "write")
            found = measure({"ours": lambda: 90.0, **sides}, 3, say=lambda *words, **more: None)
        row = checkpoint.fio_row("one save", found, "ours", sides)
        self.assertEqual(sorted(set(seen)), [("write", depth) for depth in sorted(checkpoint.DEPTHS)])
        self.assertEqual((row.theirs, row.verdict()), ([100.0] * 3, "met"))
        self.assertIn("depth 16", row.versus)

    def test_fio_runs_at_the_depth_that_is_asked_for_and_a_write_is_timed_with_its_sync(self):
        commands = []
        answer = json.dumps({"jobs": [{"job_runtime": 3000, "read": {"runtime": 2000}, "write": {"runtime": 1000}}]})
        with mock.patch.object(checkpoint, "start", commands.append), mock.patch.object(checkpoint, "finish", lambda process: "a note\n" + answer), \
                mock.patch.object(checkpoint, "clear", lambda path: None):
            self.assertEqual([checkpoint.fio(Path("folder"), 10, mode, 8) for mode in ("write", "read")], [3.0, 2.0])
        for command, mode in zip(commands, ("write", "read"), strict=True):
            for word in ("--iodepth=8", f"--rw={mode}", "--direct=1", "--end_fsync=1", "--size=10"):
                self.assertIn(word, command)

    def test_without_fio_the_row_is_skipped(self):
        with mock.patch.object(checkpoint.shutil, "which", lambda program: None), contextlib.redirect_stdout(io.StringIO()) as said:
            sides = checkpoint.fio_sides(Path("folder"), lambda: 1, "read")
        self.assertIn("skipped: fio is not installed", said.getvalue())
        self.assertEqual(checkpoint.fio_row("restore", {"ours": [1.0]}, "ours", sides).verdict(), "skipped: fio is not installed")

    def test_what_waiting_for_a_save_would_cost_is_said_to_be_computed(self):
        self.assertTrue(checkpoint.HEAD[4].startswith("computed, not run"))


class SameRun(unittest.TestCase):
    def test_philox_gives_the_known_answers_of_random123(self):
        self.assertEqual(same_run.philox(0, 0, 0), [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8])
        self.assertEqual(same_run.philox(2**64 - 1, 2**64 - 1, 2**64 - 1), [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD])
        self.assertEqual(same_run.philox(0x299F31D0A4093822, 0x85A308D3243F6A88, 0x0370734413198A2E),
                         [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1])

    def test_each_epoch_takes_every_window_once_side_by_side_and_no_byte_for_evaluation(self):
        for length in (330, 500, 1001):
            train = length - int(length * 0.1)
            count, begins = (train - 16) // 16, set()
            for epoch in range(10):
                windows = sorted(same_run.window(epoch * count + i, length, 16, seed=5) for i in range(count))
                self.assertEqual(windows, list(range(windows[0], windows[0] + 16 * count, 16)))
                self.assertLess(windows[-1] + 16, train)
                begins.add(windows[0])
            self.assertGreater(len(begins), 3)

    def test_samples_begin_where_those_of_the_command_do(self):
        # The same numbers are in tests/apps/data_test.cpp, of the command.
        for length, seq, seed, begins in ((330, 16, 5, {0: 169, 1: 57, 16: 201, 17: 8, 88: 92}), (1001, 16, 5, {0: 504, 1: 472, 54: 264, 55: 795, 278: 82}),
                                          (999, 8, 7, {0: 99, 1: 651, 110: 243, 111: 505, 558: 585})):
            self.assertEqual({index: same_run.window(index, length, seq, seed=seed) for index in begins}, begins)

    def test_the_learning_rate_is_that_of_the_command(self):
        schedule = {"lr": 1e-3, "min_lr": 1e-4, "warmup": 4, "steps": 14}
        for step, rate in ((0, 2e-4), (3, 8e-4), (4, 1e-3), (6, 9.140576e-4), (9, 5.5e-4), (12, 1.859424e-4), (14, 1e-4), (20, 1e-4)):
            self.assertAlmostEqual(same_run.learning_rate(step, schedule), rate, delta=1e-9)
        self.assertAlmostEqual(same_run.learning_rate(20, {"lr": 1e-3, "steps": 14}), 1e-4, delta=1e-12)   # the defaults
        self.assertEqual(same_run.learning_rate(0, {"lr": 1e-3, "steps": 14}), 1e-3)

    def test_the_tensors_of_an_exported_checkpoint_are_read(self):
        header = json.dumps({"__metadata__": {"format": "pt"}, "b": {"dtype": "F32", "shape": [1], "data_offsets": [8, 12]},
                             "a": {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]}}).encode()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.safetensors"
            path.write_bytes(len(header).to_bytes(8, "little") + header + b"01234567" + b"89ab")
            self.assertEqual(same_run.tensors(path), {"a": ([2, 1], b"01234567"), "b": ([1], b"89ab")})


if __name__ == "__main__":
    unittest.main()
