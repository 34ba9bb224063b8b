"""Interleaved rounds, medians, the search for a peer's best form, and the table that a report shows."""
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
    failed: str = ""          # why the comparison is void
    skipped: str = ""         # why there is nothing to compare with: no pass

    def ratio(self):
        pairs = zip(self.theirs, self.ours) if self.inverse else zip(self.ours, self.theirs)
        return median(a / b for a, b in pairs)

    def verdict(self):
        if self.failed:
            return f"failed: {self.failed}"
        if self.skipped:
            return f"skipped: {self.skipped}"
        if self.limit is not None:
            return "met" if median(self.ours) <= self.limit else "missed"
        if self.goal is None:
            return ""
        return "met" if self.ratio() >= self.goal else "missed"


class PeerFailed(Exception):
    """A peer did not run, or did not do the same work as Troupe; the message says which."""


class Found(dict):
    """{side: [value of round 0, ...]}. `failed` says of each peer that is not there why."""

    def __init__(self):
        super().__init__()
        self.failed = {}

    def row(self, what, unit, ours, theirs, versus, **more):
        """The row of two sides; it fails where the peer has failed."""
        return Row(what, unit, self.get(ours, []), self.get(theirs, []), versus, failed=self.failed.get(theirs, ""), **more)


def measure(sides, rounds, say=print):
    """Runs every side once a round, in another order each round; `sides` maps names to functions that return a number
    or a dict of numbers, or raise PeerFailed. Returns a Found; dicts are spread as "name.key". A peer that has failed once
    is not run again, and its earlier values do not count."""
    found = Found()
    names = list(sides)
    for r in range(rounds):
        for name in names[r % len(names):] + names[:r % len(names)]:
            if name in found.failed:
                continue
            try:
                value = sides[name]()
            except PeerFailed as why:
                found.failed[name] = str(why)
                for key in [key for key in found if key == name or key.startswith(f"{name}.")]:
                    del found[key]
                say(f"round {r + 1}/{rounds}  {name}: failed: {why}", flush=True)
                continue
            for key, v in value.items() if isinstance(value, dict) else [("", value)]:
                found.setdefault(f"{name}.{key}" if key else name, []).append(v)
            say(f"round {r + 1}/{rounds}  {name}: {value}", flush=True)
    return found


def best(found, names):
    """The side of `names` with the greatest median; None where none of them has values."""
    there = [name for name in names if name in found]
    return max(there, key=lambda name: median(found[name])) if there else None


def sweep(axes, rate, begins=None, say=print):
    """Searches the form of a peer that is fastest. `axes`: {setting: [its default, other values ...]}; rate(form) returns
    its speed, or raises PeerFailed. Begins with all defaults, changes one setting at a time, keeps what is faster, and ends
    when no change of one setting is faster; does so again from each other value of the setting `begins`. Returns
    [(form, rate), ...], the fastest first, and [(form, why), ...] of those that did not run. Raises PeerFailed where the
    form of all defaults does."""
    rates, refused = {}, {}

    def tried(form):
        key = tuple(form.values())
        if key not in rates and key not in refused:
            try:
                rates[key] = rate(form)
                say(f"sweep  {label(form)}: {rates[key]}", flush=True)
            except PeerFailed as why:
                refused[key] = str(why)
                say(f"sweep  {label(form)}: does not run: {why}", flush=True)
        return rates.get(key)

    def climb(now):
        moved = True
        while moved:
            moved = False
            for setting, values in axes.items():
                for value in values:
                    other = {**now, setting: value}
                    if tried(other) is not None and tried(other) > tried(now):
                        now, moved = other, True

    defaults = {setting: values[0] for setting, values in axes.items()}
    if tried(defaults) is None:
        raise PeerFailed(refused[tuple(defaults.values())])
    for begin in [defaults] + [{**defaults, begins: value} for value in (axes[begins][1:] if begins else [])]:
        if tried(begin) is not None:
            climb(begin)
    form = lambda key: dict(zip(axes, key))
    return ([(form(key), rates[key]) for key in sorted(rates, key=rates.get, reverse=True)],
            [(form(key), why) for key, why in refused.items()])


def label(form):
    """A form of a peer as a report names it."""
    return ", ".join(f"{setting} {value}" for setting, value in form.items())


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
        ours = spread(r.ours) if r.ours else ""
        lines.append(f"| {r.what} | {r.unit} | {ours} | {r.versus} | {theirs} | {ratio} | {goal} | {r.verdict().replace('|', '/')} |")
    return "\n".join(lines)
