"""The tests that `make test` leaves to `make test-all`: whole tables of cases, of which `make test` keeps a few.

Patterns match node ids. Every promise that a pattern covers has at least one test that stays: a line in KEPT, or
another file.
"""

from fnmatch import fnmatchcase

EXHAUSTIVE = (
    # SIGKILL, I/O errors and memory limits at single system calls
    "tests/faults/*",
    "tests/flow/test_full_disk.py::*",
    "tests/flow/test_calibrated_resume.py::test_sigkill_at_random_moments*",
    # every stage of a release killed, interrupted, or with one file changed
    "tests/flow/test_release.py::test_a_kill_in_the_middle_of_a_stage*",
    "tests/flow/test_release.py::test_a_signal_ends_all_of_it*",
    "tests/flow/test_release.py::test_whatever_decides_answers*",
    "tests/flow/test_release.py::test_a_result_that_is_gone*",
    # hostile and damaged files by the hundred
    "tests/flow/test_attacks_on_*",
    "tests/flow/test_fuzzed_statistics.py::*",
    "tests/flow/test_bad_outputs.py::test_every_command_that_writes_refuses_the_source*",
    "tests/flow/test_keys_stay_secret*",
    "tests/flow/test_no_code_from_checkpoints.py::test_no_command_runs_anything*",
    "tests/unit/fuzz/*",
    "tests/unit/calibrate/test_hostile_templates.py::test_a_template_comes_to_an_end*",
    # GPU kernels and the GPU pipeline, interpreted on the CPU
    "tests/flow/test_device_pass.py::*",
    "tests/unit/formats/gpu/test_gpu_calibrate.py::*",
    "tests/unit/formats/gpu/test_gpu_compare.py::*",
    "tests/unit/formats/gpu/test_gpu_observer.py::*",
    # kernels with a fault put in: do their tests notice?
    "tests/unit/formats/test_mutations.py::*",
    # a Ray cluster whose workers and nodes are killed
    "tests/flow/test_ray.py::*",
    "tests/flow/test_ray_remote.py::*",
    # long runs, large models, and a real vLLM
    "tests/flow/test_calibrated_runs.py::test_memory_does_not_grow*",
    "tests/flow/test_full_tensor_count.py::*",
    "tests/flow/test_large_headers.py::*",
    "tests/flow/test_prune_loops.py::test_a_real_model*",
    "tests/flow/test_soak.py::*",
    "tests/unit/training/test_kimi_mini.py::*",
    "tests/vllm/test_bench_faults.py::*",
    "tests/vllm/test_emulated_logits.py::*",
    "tests/vllm/test_native_load.py::*",
)
KEPT = (
    "tests/flow/test_attacks_on_checkpoints.py::test_a_hostile_header*at_the_same_place*",
    "tests/flow/test_device_pass.py::test_bytes_are_the_cpus[[]max]",
    "tests/flow/test_ray.py::test_begun_here_and_finished_there",
    "tests/flow/test_release.py::test_a_signal_ends_all_of_it_and_says_what_to_do[[]quantize-2-130]",
    "tests/unit/formats/test_mutations.py::test_damage_is_caught[[]ties up instead of to even]",
    "tests/unit/fuzz/test_fuzzed_files.py::*",
    "tests/vllm/test_native_load.py::test_vllm_finds_everything_and_nothing_else*wafer*",
)


def is_exhaustive(nodeid: str) -> bool:
    """Return whether `make test` leaves a test out."""
    return _matches(nodeid, EXHAUSTIVE) and not _matches(nodeid, KEPT)


def _matches(nodeid: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(nodeid, pattern) for pattern in patterns)
