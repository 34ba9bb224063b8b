#!/usr/bin/env python3
"""Draws a stretch of one step of one or more traces, one below the other on the same scale: what each worker's compute stream and its
exchanges do at the time.

    bench/trace_picture.py OUT.svg NAME=TRACE.json... [--step N] [--begin MS] [--length MS] [--workers N]

A trace is the trace.json of `troupe train --trace`. Without --step its second step is drawn. Backward acts are darker than forward
ones, weight gradients of their own darkest; acts of one microbatch have one hue. Below them the acts of exchanges: from the first byte that is
sent or awaited to the last.
"""
import argparse
import html
import pathlib
import re
import sys

import trace

EXCHANGE = re.compile(r"(^box\.|\.(sum|reduce_scatter|all_reduce|all_gather|gather)\b)(?!.*: waits$)")   # rows of exchanges

WIDTH, LEFT, ROW, LANE = 1200, 130, 22, 9
HUES = [212, 28, 140, 330, 60, 270, 180, 0]


def color(row, microbatch):
    light = 72 if ".fwd" in row else 38 if ".wgrad" in row else 54
    if microbatch < 0:
        return f"hsl(0, 0%, {light}%)"
    return f"hsl({HUES[microbatch % len(HUES)]}, 60%, {light}%)"


def lanes_of(spans):
    """Spans that overlap go below each other: [(lane, span)], number of lanes."""
    ends, out = [], []
    for span in sorted(spans, key=lambda s: s[3]):
        lane = next((i for i, end in enumerate(ends) if end <= span[3]), len(ends))
        if lane == len(ends):
            ends.append(0)
        ends[lane] = span[4]
        out.append((lane, span))
    return out, max(1, len(ends))


def draw(path, name, options, y, parts):
    """Draws a trace from `y` downwards; returns where it ends."""
    if not path.is_file():
        sys.exit(f"{path}: there is no such trace")
    acts = trace.load(path)
    steps = sorted({s[1] for spans in acts.values() for s in spans if s[1] >= 0})
    if not steps or (options.step is not None and options.step not in steps):
        sys.exit(f"{path}: has no step {options.step}; it has {f'{steps[0]} to {steps[-1]}' if steps else 'none'}")
    step = options.step if options.step is not None else steps[min(1, len(steps) - 1)]
    chosen = {w: [s for s in spans if s[1] == step and not s[0].startswith("evaluate.")] for w, spans in acts.items()}
    first = min(s[3] for spans in chosen.values() for s in spans if ".fwd" in s[0])
    last = max(s[4] for spans in chosen.values() for s in spans)
    begin = first + options.begin * 1e3
    if begin >= last:
        sys.exit(f"{path}: step {step} ends {(last - first) / 1e3:.0f} ms after its first forward act: choose an earlier --begin")
    length = options.length * 1e3
    x = lambda us: LEFT + (us - begin) / length * (WIDTH - LEFT - 10)
    parts.append(f'<text x="4" y="{y + 14}" class="name">{html.escape(name)}: step {step}, {(last - first) / 1e3:.0f} ms</text>')
    y += 22
    for worker in sorted(chosen)[:options.workers]:
        spans = [s for s in chosen[worker] if s[4] > begin and s[3] < begin + length]
        compute = [s for s in spans if trace.COMPUTE.search(s[0])]
        exchanges, lanes = lanes_of([s for s in spans if EXCHANGE.search(s[0])])
        parts.append(f'<text x="4" y="{y + 15}">worker {worker}: compute</text>')
        parts.append(f'<text x="4" y="{y + ROW + 12}">exchanges</text>')
        for lane, (row, _, microbatch, b, e) in [(None, s) for s in compute] + exchanges:
            left, right = max(LEFT, x(b)), min(WIDTH - 10, x(e))
            top, height = (y, ROW - 2) if lane is None else (y + ROW + 2 + lane * LANE, LANE - 1)
            title = html.escape(f"{row}, microbatch {microbatch}, {(e - b) / 1e3:.2f} ms")
            parts.append(f'<rect x="{left:.1f}" y="{top}" width="{max(0.3, right - left):.1f}" height="{height}" '
                         f'fill="{color(row, microbatch)}"><title>{title}</title></rect>')
        y += ROW + 8 + lanes * LANE + 4
    for i in range(11):
        at = begin + length * i / 10
        parts.append(f'<text x="{x(at):.0f}" y="{y + 10}" text-anchor="middle">{(at - first) / 1e3:.0f}</text>')
    parts.append(f'<text x="4" y="{y + 10}">ms since its begin</text>')
    return y + 24


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("traces", nargs="+", metavar="NAME=TRACE.json")
    parser.add_argument("--step", type=int)
    parser.add_argument("--begin", type=float, default=0, help="milliseconds after the step's first forward act")
    parser.add_argument("--length", type=float, default=300, help="milliseconds")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    if not 0 < options.length < 1e9 or options.begin < 0 or options.workers < 1:
        parser.error("--length and --workers are above 0, --begin is 0 or more")
    if any("=" not in named for named in options.traces):
        parser.error("each trace has a name: NAME=TRACE.json; what is before the first '=' is the name")
    parts, y = [], 6
    for named in options.traces:
        name, path = named.split("=", 1)
        y = draw(pathlib.Path(path), name, options, y, parts)
    with open(options.out, "w") as f:
        f.write(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" font-family="sans-serif" font-size="11">\n'
                '<style>.name { font-size: 13px; font-weight: bold }</style>\n'
                f'<rect width="{WIDTH}" height="{y}" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n")


if __name__ == "__main__":
    main()
