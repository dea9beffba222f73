"""Statistics for scores and speeds: pure functions on NumPy arrays.

Every result has `as_dict()` for JSON and `sentence()` for reports. A sentence claims only what its numbers support.

sampling.accuracy             scores of one model -> accuracy, its error, Wilson's and the clustered interval
pairs.paired                  two models on the same items -> difference, exact McNemar, Tango, bootstrap, verdict
pairs.over_seeds              several runs each -> mean +- stdev and z as on model cards, and the deciding test
verdicts.verdict              bounds of a difference -> ACCEPT, REGRESSION or INCONCLUSIVE, and the items needed
verdicts.holm, judge_suite    several tasks -> p-values corrected for multiple testing, one verdict
throughput.throughput_ratio   blocks of two servers -> ratio of speeds, its interval, drift, and a headline if it holds

They build on proportions, sampling (errors over items and clusters, bootstrap) and distributions (normal, Student's t).
"""

from halfbyte.statistics.pairs import Paired, Seeds, over_seeds, paired
from halfbyte.statistics.sampling import Accuracy, accuracy
from halfbyte.statistics.throughput import Speedup, throughput_ratio
from halfbyte.statistics.verdicts import Suite, Verdict, holm, items_needed, judge_suite, verdict

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
