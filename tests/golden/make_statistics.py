"""Golden figures of scipy and statsmodels for halfbyte.statistics; writes statistics.json.

    python tests/golden/make_statistics.py tests/golden/statistics.json

The inputs are in the file too, so that the tests need neither library. statsmodels has no interval for a paired
difference of proportions: Tango's is computed here from its definition, with the likelihood maximized and the score
inverted by scipy, not by the closed form that halfbyte uses.
"""

import json
import math
import sys
from pathlib import Path

import numpy as np
import scipy
import statsmodels
import statsmodels.api as sm
from scipy import optimize, stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import normal_sample_size_one_tail
from statsmodels.stats.proportion import proportion_confint
from statsmodels.stats.weightstats import CompareMeans, DescrStatsW

PAIRS = [(0, 0), (1, 0), (0, 5), (3, 3), (12, 2), (19, 26), (7, 1), (40, 20), (300, 280)]  # better, worse
TANGO = [(0, 0, 100), (12, 2, 50), (2, 12, 50), (1, 7, 21), (40, 20, 160), (5, 0, 5), (0, 30, 1319), (300, 280, 14042)]


def tango(better: int, worse: int, count: int, confidence: float) -> tuple[float, float]:
    """Return the differences at which the score statistic, with its nuisance fitted numerically, is +-z."""
    same = count - better - worse

    def score(difference: float) -> float:
        def loss(share: float) -> float:  # share of "worse" pairs; "better" ones are share + difference
            parts = [(worse, share), (better, share + difference), (same, 1 - 2 * share - difference)]
            return -sum(number * math.log(max(part, 1e-300)) for number, part in parts if number)

        low, high = max(0.0, -difference), (1 - difference) / 2
        share = optimize.minimize_scalar(loss, bounds=(low, high), method="bounded", options={"xatol": 1e-14}).x
        share = min((share, low, high), key=loss)
        return (better - worse - count * difference) / math.sqrt(count * (2 * share + difference - difference**2))

    z, seen, edge = stats.norm.ppf((1 + confidence) / 2), (better - worse) / count, 1e-9
    low = optimize.brentq(lambda end: score(end) - z, -1 + edge, seen - edge, xtol=1e-13)
    high = 1.0 if seen == 1 else optimize.brentq(lambda end: score(end) + z, seen + edge, 1 - edge, xtol=1e-13)
    return low, high


def mid_p(better: int, worse: int) -> float:
    """Return McNemar's mid-p value."""
    fair = stats.binom(better + worse, 0.5)
    return min(1.0, 2 * fair.cdf(min(better, worse)) - fair.pmf(better))


def clustered(values: np.ndarray, labels: np.ndarray) -> dict:
    """Return OLS on a constant with cluster-robust errors, Student's t."""
    model = sm.OLS(values, np.ones(len(values)))
    fit = model.fit(cov_type="cluster", cov_kwds={"groups": labels}, use_t=True)
    bounds = fit.conf_int(0.1)[0].tolist()
    return {"error": fit.bse[0], "interval": fit.conf_int()[0].tolist(), "bounds": bounds, "p": fit.pvalues[0]}


def t_test(a: np.ndarray, b: np.ndarray) -> dict:
    """Return the paired t-test of scipy."""
    both = stats.ttest_rel(a, b)
    return {
        "p": both.pvalue,
        "p_worse": stats.ttest_rel(a, b, alternative="less").pvalue,
        "interval": list(both.confidence_interval(0.95)),
        "bounds": list(both.confidence_interval(0.9)),
    }


def drift(a: np.ndarray, b: np.ndarray) -> dict:
    """Return the common slope of two arms in ABBA order, each with its own level."""
    order = [0, 1, 1, 0] * (len(a) // 2)
    times = [[place for place, arm in enumerate(order) if arm == which] for which in (0, 1)]
    arms = np.repeat([0, 1], len(a))
    design = np.stack([arms == 0, arms == 1, np.concatenate(times)], 1).astype(float)
    fit = sm.OLS(np.log(np.concatenate([a, b])), design).fit()
    return {"slope": fit.params[2], "p": fit.pvalues[2]}


def unpaired(a: np.ndarray, b: np.ndarray) -> list[float]:
    """Return z and p of two means with unequal variances."""
    return list(CompareMeans(DescrStatsW(a), DescrStatsW(b)).ztest_ind(usevar="unequal"))


def make() -> dict:
    """Return inputs and answers."""
    random = np.random.default_rng(9)
    reference = (random.random(240) < 0.85).astype(float)
    candidate = np.where(random.random(240) < 0.15, 1 - reference, reference)
    labels = random.integers(0, 12, 240)
    seeds_a, seeds_b = ((random.random((3, 120)) < share).astype(float) for share in (0.86, 0.92))
    fast, slow = (np.round(random.lognormal(mean, 0.04, 8), 4) for mean in (0.45, 0.0))
    sampled = stats.bootstrap(
        (candidate, reference), lambda a, b: np.mean(a - b), paired=True, vectorized=False, n_resamples=9999,
        method="percentile", rng=np.random.default_rng(1),
    )  # fmt: skip
    logs = np.log(fast.reshape(4, 2)).mean(1), np.log(slow.reshape(4, 2)).mean(1)
    degrees, points = [1, 2, 2.7, 5, 56, 1318, 1e6], [-1.3, 0.0, 0.4, 1.96, 4.5, 30.0]
    p_values = [[0.01, 0.04, 0.03, 0.005], [0.5], [0.02, 0.02, 0.9], [0.0, 1.0, 0.6]]
    share_cases = [(0, 64, 0.95), (64, 64, 0.95), (1205, 1319, 0.95), (3, 7, 0.9), (12445, 14042, 0.99)]
    return {
        "versions": {"scipy": scipy.__version__, "statsmodels": statsmodels.__version__, "numpy": np.__version__},
        "t_above": [[t, df, stats.t.sf(t, df)] for df in degrees for t in points],
        "t_quantile": [[q, df, stats.t.ppf(q, df)] for df in degrees for q in (0.05, 0.5, 0.95, 0.975, 0.9999)],
        "wilson": [[*case, *proportion_confint(*case[:2], 1 - case[2], "wilson")] for case in share_cases],
        "mcnemar": [[b, c, mcnemar([[9, b], [c, 9]], exact=True).pvalue] for b, c in PAIRS],
        "mid_p": [[b, c, mid_p(b, c)] for b, c in PAIRS],
        "sign_test": [[b, c, stats.binomtest(c, b + c, alternative="greater").pvalue] for b, c in PAIRS if b + c],
        "tango": [[*case, level, *tango(*case, level)] for case in TANGO for level in (0.95, 0.9)],
        "holm": [[given, multipletests(given, method="holm")[1].tolist()] for given in p_values],
        "items": [
            [psi, margin, float(normal_sample_size_one_tail(margin, 0.8, 0.05, math.sqrt(psi)))]
            for psi in (0.01, 0.02, 0.03, 0.05, 0.1) for margin in (0.005, 0.01)
        ],
        "scores": {
            "candidate": candidate.tolist(), "reference": reference.tolist(), "clusters": labels.tolist(),
            "accuracy_error": stats.sem(candidate), "accuracy_clustered": clustered(candidate, labels),
            "difference_clustered": clustered(candidate - reference, labels),
            "bootstrap": list(sampled.confidence_interval), "unpaired": unpaired(candidate, reference),
        },
        "seeds": {
            "candidate": seeds_a.tolist(), "reference": seeds_b.tolist(),
            "items": t_test(seeds_a.mean(0), seeds_b.mean(0)),
            "z": unpaired(seeds_a.mean(1), seeds_b.mean(1)),
            "welch_p": stats.ttest_ind(seeds_a.mean(1), seeds_b.mean(1), equal_var=False).pvalue,
        },
        "throughput": {
            "a": fast.tolist(), "b": slow.tolist(),
            "abba": np.exp(t_test(np.log(fast), np.log(slow))["interval"]).tolist(),
            "sequential": np.exp(stats.ttest_ind(*logs, equal_var=False).confidence_interval(0.95)).tolist(),
            "drift": drift(fast, slow),
        },
    }  # fmt: skip


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(make(), indent=1) + "\n")
