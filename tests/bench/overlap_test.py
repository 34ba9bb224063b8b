#!/usr/bin/env python3
"""What overlap.py makes of times. Nothing is measured."""
import sys
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
import overlap  # noqa: E402

TEXT = """
compute     1.508 s (of the busiest place's forward and backward work)
messages    200.5 ms (on the busiest link or interface, per step of training, without latencies)
step        1.600 s (commit to commit)

  ahead  weight gradients  predicted step  peak memory of a place  verdict
      0  with backward             1.70 s                 187 MiB  given up for a later one
      2  apart                     1.60 s                 239 MiB  chosen
"""


def played(text):
    with mock.patch.object(overlap.jobs, "start"), mock.patch.object(overlap.jobs, "finish", return_value=text):
        return overlap.Played([])


class Overlap(unittest.TestCase):
    def test_hidden_is_the_part_of_the_messages_by_which_a_step_is_not_longer_than_without_them(self):
        self.assertAlmostEqual(overlap.hidden_share(1550, 1500, 200), 0.75)
        self.assertAlmostEqual(overlap.hidden_share(1500, 1500, 200), 1)
        self.assertAlmostEqual(overlap.hidden_share(1700, 1500, 200), 0)

    def test_times_and_the_choice_are_read_as_sim_prints_them(self):
        p = played(TEXT)
        self.assertEqual((p.ms("step"), p.ms("messages"), p.bound_ms()), (1600, 200.5, 1508))
        self.assertEqual(p.chosen(), ("2", True))
        self.assertEqual(played("step        1 s (x)\n").chosen(), ("0", False))

    def test_links_are_so_slow_that_messages_take_their_share_though_layouts_change_with_them(self):
        seen = []

        class Steps:   # 100 MB a step; below 200 MB/s a layout with half the bytes and more computing
            def __init__(self, words):
                rate = float(words[-1].split("=")[-1].removesuffix("MB/s"))
                seen.append(rate)
                few = rate < 200
                self.found = {"messages": (50e3 if few else 180e3) / rate, "compute": 800 if few else 700}

            def ms(self, name):
                return self.found[name]

        with mock.patch.object(overlap, "Played", Steps):
            throttle, rate, found = overlap.throttle_of([], 50, 0.2)
        self.assertEqual(seen[:2], [100, 312.5])   # the second links are faster than the layout of the first allows
        self.assertGreater(len(seen), 2)
        self.assertEqual(throttle, f"latency=50us,bandwidth={rate:.4g}MB/s")
        self.assertAlmostEqual(found, 0.2, delta=0.002)
        self.assertAlmostEqual(180e3 / rate / 700, 0.2, delta=0.002)

    def test_a_step_without_messages_is_told_and_of_links_that_do_not_fit_the_best_is_taken(self):
        class Steps:
            messages = lambda self, rate: 0

            def __init__(self, arguments):
                rate = float(arguments[-1].split("=")[-1].removesuffix("MB/s"))
                self.found = {"messages": self.messages(rate), "compute": 800}

            def ms(self, name):
                return self.found[name]

        with mock.patch.object(overlap, "Played", Steps):
            with self.assertRaises(SystemExit) as end:
                overlap.throttle_of(["tp=9"], 50, 0.5)
            self.assertIn("no messages", str(end.exception))
            self.assertIn("tp=9", str(end.exception))
            Steps.messages = lambda self, rate: (36e3 if rate < 90 else 30e3) / rate   # to and fro between two layouts
            throttle, rate, found = overlap.throttle_of([], 50, 0.5)
            self.assertEqual(throttle, "latency=50us,bandwidth=90MB/s")
            self.assertAlmostEqual(rate, 90)
            self.assertAlmostEqual(found, 30e3 / 90 / 800)


if __name__ == "__main__":
    unittest.main()
