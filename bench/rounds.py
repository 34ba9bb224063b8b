"""Interleaved rounds, medians, and the table that a report shows."""
from dataclasses import dataclass, field
from statistics import median


@dataclass
class Row:
    """One comparison: what was measured on both sides of every round, and what is asked of their ratio."""
    what: str
    unit: str
    ours: list
    theirs: list = field(default_factory=list)
    versus: str = ""
    goal: float = None        # of ours / theirs
    inverse: bool = False     # less is better: the ratio is theirs / ours
    limit: float = None       # of ours alone, at most

    def ratio(self):
        pairs = zip(self.theirs, self.ours) if self.inverse else zip(self.ours, self.theirs)
        return median(a / b for a, b in pairs)

    def verdict(self):
        if self.limit is not None:
            return "met" if median(self.ours) <= self.limit else "missed"
        if self.goal is None:
            return ""
        return "met" if self.ratio() >= self.goal else "missed"


def measure(sides, rounds, say=print):
    """Runs every side once a round, in another order each round; `sides` maps names to functions that answer a number
    or a dict of numbers. Answers {name: [value of round 0, ...]}; dicts are spread as "name.key"."""
    found = {}
    names = list(sides)
    for r in range(rounds):
        for name in names[r % len(names):] + names[:r % len(names)]:
            value = sides[name]()
            for key, v in value.items() if isinstance(value, dict) else [("", value)]:
                found.setdefault(f"{name}.{key}" if key else name, []).append(v)
            say(f"round {r + 1}/{rounds}  {name}: {value}", flush=True)
    return found


def number(x):
    return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.3g}"


def spread(values):
    return f"{number(median(values))} ({number(min(values))}–{number(max(values))})"


def table(rows):
    lines = ["| what | unit | Troupe | against | value | ratio | goal | |", "|---|---|---|---|---|---|---|---|"]
    for r in rows:
        ratio = f"{r.ratio():.2f}" if r.theirs else ""
        goal = f"≤ {r.limit:.3g}" if r.limit is not None else f"≥ {r.goal:.2f}" if r.goal is not None else ""
        theirs = spread(r.theirs) if r.theirs else ""
        lines.append(f"| {r.what} | {r.unit} | {spread(r.ours)} | {r.versus} | {theirs} | {ratio} | {goal} | {r.verdict()} |")
    return "\n".join(lines)
