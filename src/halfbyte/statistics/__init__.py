"""Statistics for scores and speeds: pure functions on NumPy arrays.

Every result has `as_dict()` for JSON and `sentence()` for reports. A sentence claims only what its numbers support.

one_sample.accuracy           scores of one model -> accuracy, its error, Wilson's and the clustered interval
pairs.paired                  two models on the same items -> difference, exact McNemar, Tango, bootstrap, verdict
seeds.over_seeds              several runs each -> mean +- stdev and z as on model cards, and the deciding test
noninferiority.verdict        bounds of a difference -> ACCEPT, REGRESSION or INCONCLUSIVE, and the items needed
multiple.holm, judge_suite    several tasks -> p-values corrected for multiple testing, one verdict
published                     figures of a model card -> whether they are consistent
throughput.throughput_ratio   blocks of two servers -> ratio of speeds, its interval, drift, and a headline if it holds

They build on proportions, sampling (errors over items and clusters, bootstrap) and distributions (normal, Student's t).
"""

from halfbyte.statistics.multiple import Suite, holm, judge_suite
from halfbyte.statistics.noninferiority import Verdict, items_needed, verdict
from halfbyte.statistics.one_sample import Accuracy, accuracy
from halfbyte.statistics.pairs import Paired, paired
from halfbyte.statistics.seeds import Seeds, over_seeds
from halfbyte.statistics.throughput import Speedup, throughput_ratio

__all__ = [
    "Accuracy",
    "Paired",
    "Seeds",
    "Speedup",
    "Suite",
    "Verdict",
    "accuracy",
    "holm",
    "items_needed",
    "judge_suite",
    "over_seeds",
    "paired",
    "throughput_ratio",
    "verdict",
]
