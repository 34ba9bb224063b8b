"""Holds apps/examples/logistic_regression against the likeliest weights, which Newton's method finds in float64 (NumPy).

    logistic_regression.py EXAMPLE FOLDER     exit 0: it finds them; 1: it does not; 77: no NumPy here

Draws a table, runs the example on one, two and four workers, and simulated under ten seeds: all print the same lines, whose numbers
are the likeliest weights to 1e-3. Then files that are none: an error that names the file, and exit code 3.
"""
import os
import subprocess
import sys

try:
    import numpy as np
except ImportError as why:
    print(f"skipped: {why} (Debian: apt-get install python3-numpy)")
    sys.exit(77)

rows, columns = 400, 5


def likeliest(x, y):
    """Weights, then the bias, at which the gradient of the likelihood is zero."""
    x = np.hstack([x, np.ones((len(x), 1))])
    w = np.zeros(x.shape[1])
    for _ in range(50):
        p = 1 / (1 + np.exp(-x @ w))
        w += np.linalg.solve(x.T @ (x * (p * (1 - p))[:, None]), x.T @ (y - p))
    assert np.abs(x.T @ (y - 1 / (1 + np.exp(-x @ w)))).max() < 1e-9
    return w


def run(*arguments):
    return subprocess.run([example, *map(str, arguments)], capture_output=True, text=True, timeout=120)


example, folder = sys.argv[1:]
draw = np.random.default_rng(20261129)
x = draw.normal(size=(rows, columns)).astype(np.float32).astype(np.float64)
truth = np.array([1.5, -2.0, 0.0, 0.7, -0.3])
y = (x @ truth - 0.4 + draw.logistic(size=rows) > 0).astype(np.float64)
table = os.path.join(folder, "table")
with open(table, "w") as f:
    for row, label in zip(x, y):
        f.write(" ".join(f"{v:.9g}" for v in row) + f" {int(label)}\n")
first = run(table)
assert first.returncode == 0, first.stderr
found = np.array([float(line.split()[1]) for line in first.stdout.splitlines()])
want = likeliest(x, y)
off = np.abs(found - want).max()
print(f"likeliest {want.round(6)}\nfound     {found}\nlargest difference {off:.2g}")
assert off < 1e-3, off
for how in [(2,), (4,), *((2, seed) for seed in range(1, 11))]:
    other = run(table, *how)
    assert other.returncode == 0, other.stderr
    assert other.stdout == first.stdout, (how, other.stdout, first.stdout)
for name, text in {"empty": "", "ragged": "1 1\n1 2 3 0\n2 0\n1 1 1 1\n", "label": "1 1\n2 0\n1 -1\n2 0\n", "words": "1 a 1\n" * 4, "missing": None}.items():
    file = os.path.join(folder, name)
    if text is not None:
        with open(file, "w") as f:
            f.write(text)
    wrong = run(file)
    assert wrong.returncode == 3 and file in wrong.stderr, (name, wrong)
