"""Expert pruning.

saliency     scores of experts, super experts
selection    ranking, max-min sets, budgets per layer, restoring
build_plan   from statistics to a prune plan and its coverage
plan_source  the plan for a checkpoint, from a plan, statistics or layer by layer
keep_list    published keep lists; output paths of lists and plans
options      options of `halfbyte prune` as a recipe
report       tables and advice
"""
