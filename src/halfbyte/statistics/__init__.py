"""Statistics for scores and speeds: pure functions on NumPy arrays.

The types of the results are in `results`, which evidence files embed. Each has a `sentence()` for reports.

sampling.accuracy             scores of one model -> accuracy, its error, Wilson's and the clustered interval
pairs.paired                  two models on the same items -> difference, exact McNemar, Tango, bootstrap, verdict
pairs.over_seeds              several runs each -> mean +- stdev and z as on model cards, and the deciding test
verdicts.verdict              bounds of a difference -> ACCEPT, REGRESSION or INCONCLUSIVE, and the items needed
verdicts.holm, judge_suite    several tasks -> p-values corrected for multiple testing, one verdict
throughput.throughput_ratio   blocks of two servers -> ratio of speeds, its interval, drift, and a headline if it holds

They build on proportions, sampling (errors over items and clusters, bootstrap) and distributions (normal, Student's t).
"""
