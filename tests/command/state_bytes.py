"""How many bytes of state the places of a run lack that goes on with another mesh, or has lost a worker: computed from the stages of its plans
and the sizes of its tensors. Not with tp, whose layouts the stages do not tell."""
import itertools, json, re, subprocess

TENTH_MORE = 1.1  # what a change may move, over what is lacking
ROWS = 0.01       # ZeRO divides whole rows


def module_of(tensor):
    layer = re.match(r"model\.(layers\.\d+)\.", tensor)
    return layer[1] if layer else "embed" if "embed_tokens" in tensor else "head"


class StateBytes:
    def __init__(self, troupe, config, settings, checkpoint):
        """`settings`: of the run, as `--set` has them; `checkpoint`: of a run of the same model."""
        self.troupe, self.config, self.settings = troupe, config, settings
        self.zero = next((int(s.split("=")[1]) for s in settings if s.startswith("mesh.zero=")), 0)
        shown = subprocess.run([troupe, "ckpt", "show", checkpoint], check=True, capture_output=True, text=True).stdout
        self.bytes = {}  # by module, of its parameters
        for tensor in json.loads(shown)["tensors"]:
            if tensor["kind"] == "parameter":
                module = module_of(tensor["name"])
                self.bytes[module] = self.bytes.get(module, 0) + tensor["bytes"]
        self.held_of_mesh = {}

    def held(self, mesh):
        """By rank: of each module which part of its parameters and of its moments, from 0 to 1, of (lowest, highest)."""
        if mesh not in self.held_of_mesh:
            words = [w for s in self.settings if "pp" in mesh or "schedule" not in s for w in ("--set", s)]
            plan = subprocess.run([self.troupe, "plan", self.config, "--mesh", mesh, *words], check=True,
                                  capture_output=True, text=True).stdout
            ranks = {}
            for stage, modules, width, rows in re.findall(
                    r"^stage (\d+): (.*)\n  dp (\d+),.*\n\n  dp .*\n((?: +\d+  .*\n)+)", plan, re.M):
                for row in rows.splitlines():
                    index, rank = map(int, row.split()[:2])
                    share = (index / int(width), (index + 1) / int(width))
                    ranks[rank] = {m: ((0, 1) if self.zero < 3 else share, (0, 1) if self.zero < 1 else share)
                                   for m in modules.split(", ")}
            self.held_of_mesh[mesh] = [ranks[r] for r in range(len(ranks))]
        return self.held_of_mesh[mesh]

    def lacking(self, wanted, has):
        total = 0
        for module, parts in wanted.items():
            for part, item in zip(range(2), (1, 2)):  # two moments
                lo, hi = parts[part]
                have_lo, have_hi = has.get(module, ((0, 0), (0, 0)))[part]
                total += item * self.bytes[module] * (hi - lo - max(0, min(hi, have_hi) - max(lo, have_lo)))
        return total

    def least(self, after, before, left):
        """What all places lack together where they are given ranks so that it is least. `left`: of each place its rank of
        `before`, or None: a place that has nothing."""
        had = [self.held(before)[r] if r is not None else {} for r in left]
        table = [[self.lacking(wanted, has) for has in had] for wanted in self.held(after)]
        return min(sum(row[place] for row, place in zip(table, order))
                   for order in itertools.permutations(range(len(had)), len(table)))

    def moves_what_is_lacking(self, moved, after, before, left, all_hold):
        """`all_hold`: the places that are left hold the version with which the run goes on; else some of them may not."""
        for holds in [[True] * len(left)] if all_hold else itertools.product([True, False], repeat=len(left)):
            least = self.least(after, before, [r if h else None for r, h in zip(left, holds)])
            if (1 - ROWS) * least <= moved <= TENTH_MORE * least:
                return True
        return False
