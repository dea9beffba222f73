"""What scores and speeds say, and what they do not: pure functions on numpy, one result each.

Every result has `as_dict()` for JSON and `sentence()` for people; a sentence never claims more than its numbers carry.

one_sample.accuracy           scores of one model -> accuracy, its error, Wilson's and the clustered interval
pairs.paired                  two models on the same items -> difference, exact McNemar, Tango, bootstrap, verdict
seeds.over_seeds              several runs each -> mean +- stdev and z as model cards do it, and the test that decides
noninferiority.verdict        bounds of a difference -> ACCEPT, REGRESSION or INCONCLUSIVE, and how many items decide
multiple.holm, judge_suite    several tasks -> p-values that allow for looking several times, one verdict
published                     printed figures of a model card -> whether they follow from each other
throughput.throughput_ratio   blocks of two servers -> ratio of speeds, its interval, drift, and a headline if it holds

Below them: proportions (shares of a count), sampling (errors over items and clusters, bootstrap), distributions
(normal, Student's t). Nothing here reads files or asks servers.
"""

from halfbyte.validate.statistics.multiple import Suite, holm, judge_suite
from halfbyte.validate.statistics.noninferiority import Verdict, items_needed, verdict
from halfbyte.validate.statistics.one_sample import Accuracy, accuracy
from halfbyte.validate.statistics.pairs import Paired, paired
from halfbyte.validate.statistics.seeds import Seeds, over_seeds
from halfbyte.validate.statistics.throughput import Speedup, throughput_ratio

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
