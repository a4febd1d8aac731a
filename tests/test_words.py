"""Identifiers use the field's terms: old names of our own do not come back.

The table is data: an old name, what it is called now, and where the old name is refused (everywhere, if
no place is named). Whole identifiers count, with or without a leading underscore, where they are defined:
classes, functions, parameters, variables and attributes. Names of other libraries are not looked at.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from benchmarks.house import ROOT, files

ROUND = ("fedapp/training", "fedapp/federation", "strategies", "fedapp/node.py")
TRAINING = ("fedapp/training",)
RULES = ("fedapp/training/algorithm.py", "fedapp/training/local_step.py")
SERVER = ("fedapp/federation", "fedapp/engines", "strategies/strategy.py", "fedapp/server.py")
BATCHED = ("fedapp/training/batched",)
STUDIES = ("fedapp/studies",)

Row = tuple[str, str, tuple[str, ...]]
TABLE: tuple[Row, ...] = (
    ("Turn", "ClientContext", ()),
    ("turn", "context", ()),
    ("turns", "contexts", ()),
    ("anchor", "global_params", ()),
    ("remember", "step_state", ()),
    ("memory", "step_state", RULES),
    ("memories", "step_states", TRAINING),
    ("begin", "initial_params", TRAINING),
    ("first_state", "initial_client_state", ()),
    ("finish", "finalize", TRAINING),
    ("Finish", "ClientExtras", ()),
    ("draw", "round_randomness", RULES),
    ("drawn", "round_randomness", RULES),
    ("TrainOrder", "TrainRequest", ()),
    ("StateOrder", "StateLocation", ()),
    ("orders", "requests", ROUND),
    ("Exam", "EvaluateRequest", ()),
    ("exam", "request", ()),
    ("ClientReport", "ClientMetrics", ()),
    ("CohortReply", "TrainReply", ()),
    ("Outcome", "ClientResult, SearchResult", ()),
    ("hits", "num_correct", ()),
    ("places", "batches, node_configs", ()),
    ("Places", "the loader's index and mask", ()),
    ("Stage", "BufferPool, SearchProgress", ()),
    ("stage", "buffers, progress", ("fedapp",)),
    ("Feed", "BatchLoader", ()),
    ("feed", "loader", ()),
    ("Resident", "BatchLoader", ()),
    ("resident", "loader", ()),
    ("Program", "CompiledStep", ()),
    ("Record", "RoundMetrics", ()),
    ("record", "trace", BATCHED),
    ("recorded", "traced", BATCHED),
    ("Call", "BoundStep", ()),
    ("products", "matmul", BATCHED),
    ("Walker", "LocalState", ()),
    ("walker", "local_state", ()),
    ("walk", "train", TRAINING),
    ("walked", "trained", TRAINING),
    ("settle", "where_active", ()),
    ("Together", "ClientBatching", ()),
    ("whole", "base, or what is complete", ("fedapp/data", "fedapp/config", *BATCHED)),
    ("Fold", "RunningAggregate", ()),
    ("fold", "aggregate", ROUND),
    ("Gathered", "RoundReplies", ()),
    ("gather", "collect_replies", ()),
    ("surplus", "unused", ()),
    ("fit", "accepted", SERVER),
    ("refused", "rejected", SERVER),
    ("some", "available", SERVER),
    ("present", "available, connected", SERVER),
    ("grace", "grace_period", ()),
    ("patience", "max_wait", SERVER),
    ("Holdings", "NodeData", ()),
    ("holdings", "node_data", ()),
    ("agreement", "similarity", ()),
    ("misfits", "config_errors", ()),
    ("misfit", "mismatch", ()),
    ("effects", "unused", ()),
    ("said", "messages", ()),
    ("says", "messages", ()),
    ("found", "run_info", ("fedapp/server_app.py", "fedapp/engines")),
    ("mend", "fix", ()),
    ("occupied", "locked", ()),
    ("Artefacts", "FinalOutputs", ()),
    ("Board", "TensorBoardWriter", ()),
    ("Report", "ProgressReport", ()),
    ("Item", "Experiment", ()),
    ("item", "experiment", STUDIES),
    ("neutral", "fedavg_at", ()),
    ("own_update", "custom_update", ()),
    ("starts_apart", "is_personalised", ()),
    (
        "counted",
        "last_used_round",
        ("fedapp/training/client_state.py", "fedapp/federation", "fedapp/runs"),
    ),
    ("News", "WorkerEvent", ()),
    ("news", "events", ()),
    ("tuning", "learning_rate_search", STUDIES),
    ("again", "retry", ("fedapp",)),
    ("kept", "stored", ()),
    ("Stack", "RunBatch", ()),
    ("Seat", "RunBatch.taking_part", ()),
    ("seats", "taking_part", ()),
    ("current_stack", "current_run_batch", ()),
    ("flushed", "flush_denormals", ()),
    ("are_flushed", "denormals_are_flushed", ()),
    ("lay_out", "set_memory_format", ()),
    ("laid_out", "to_memory_format", ()),
    ("starting_point", "initial_client_params", ()),
    ("Memory", "MemoryUse", BATCHED),
    ("Pool", "GraphPool", BATCHED),
    ("Parts", "StepParts", BATCHED),
    ("Product", "ScaledMatmul", BATCHED),
    ("still", "never_written, zero", TRAINING),
    ("take_products", "compile_around_matmuls", ()),
    ("descend_in_place", "update_in_place", ()),
    ("by_onednn", "use_onednn", ()),
    ("apart", "uncompiled", BATCHED),
    ("placed", "copy_rows", BATCHED),
    ("let_go", "release", BATCHED),
    ("begin_anew", "release", BATCHED),
    ("make_room", "require_rows", BATCHED),
    ("together", "clients_together, batching", TRAINING),
    ("alone", "single", ("fedapp/training", "fedapp/data")),
    ("outcome", "result", TRAINING),
    ("outcomes", "results", TRAINING),
    ("held", "tensors", TRAINING),
    ("taken", "seconds, batch", TRAINING),
    ("drawing_from", "seeded_generators", ()),
    ("source_of_draws", "transform_generator", ()),
    ("which_count", "counted_targets", ()),
    ("quickest", "fastest_num_threads", ()),
    ("keeps_statistics", "layer_with_statistics", ()),
    ("needs_two", "layer_needing_two", ()),
    ("shared_draws", "unbatchable_layer", ()),
    ("by_coin", "poisson_sampling", ()),
    ("coins", "sampling_generator", ("fedapp", "strategies/dp_fedavg.py")),
    ("toss_coins", "poisson_sample", ()),
    (
        "largest",
        "upload_bounds",
        ("fedapp/training/algorithm.py", "strategies/dp_fedavg.py", "strategies/fednova.py"),
    ),
    ("tidy", "cleanup_graph", ()),
    ("quarters", "batch_size_buckets", ()),
    ("SIXTEENTHS", "BUCKETS_PER_OCTAVE", ()),
    ("reports", "client_metrics", ROUND),
    ("graded", "has_accuracy", ()),
    ("called", "name_of, node_name", SERVER),
    ("usable", "num_weighted", ()),
    ("ask_again", "query_again", ()),
    ("hear", "handle_answer", SERVER),
    ("admit", "accept", SERVER),
    ("seen", "connections", ("fedapp/federation/nodes.py",)),
    ("tell", "give_to_callbacks", SERVER),
    ("spread", "distribute", SERVER),
    ("take_back", "cancel_messages", ()),
    ("knock", "check_reachable", ()),
    ("Room", "WorkerPlacement", ()),
    ("Share", "WorkerResources", ()),
    ("Workplace", "NodeSetup", ()),
    ("workplace", "setup", ()),
    ("begin_with", "load_initial_model", ()),
    ("kept_rounds", "checkpoint_rounds", ()),
    ("steps_in_all", "accumulation_norm", ()),
    ("plain", "one_line, or what it is", ("fedapp/errors.py", "fedapp/federation", "fedapp/data")),
    ("Chosen", "Subset", ()),
    ("whose", "owners", ("fedapp/data",)),
    ("found", "what it is: components, dataset, actual", ("fedapp/data", "fedapp/config")),
    ("nothing", "empty", ("fedapp/data",)),
    ("least", "minimum", ("fedapp/data",)),
    ("fit", "truncate_and_pad", ("fedapp/data",)),
    ("in_words", "split_settings", ("fedapp/config", "fedapp/cli")),
    ("without_others", "without_unused_parameters", ()),
    ("with_own", "with_algorithm_defaults", ()),
    ("senseless", "contradictions", ()),
    ("that_divide", "divisor_advice", ()),
    ("source_of", "source_digest", ()),
    ("keep_written", "flush_to_disk", ()),
    ("append_whole", "append_or_restore", ()),
    ("what_is_wrong", "json_problem", ()),
    ("Maker", "Setup", STUDIES),
    ("maker", "setup", STUDIES),
    ("Order", "ReproduceOptions", STUDIES),
    ("Effort", "SchedulerOptions", ()),
    ("Wanted", "MissingRun", STUDIES),
    ("wanted", "missing, requests", STUDIES),
    ("found", "what it holds", STUDIES),
    ("Kept", "ResultModel", STUDIES),
    ("Tried", "CandidateResult", STUDIES),
    ("Tuning", "RateGrid", STUDIES),
    ("Rates", "RateGrid", STUDIES),
    ("Contender", "ComparedAlgorithm", STUDIES),
    ("AsRun", "RunLabels", ()),
    ("Watch", "ShouldStop", ()),
    ("Watched", "StopRun", ()),
    ("Pulse", "ProgressReporter", ()),
    ("carry_out", "run_plans, run_missing", ()),
    ("perform", "execute_run", STUDIES),
    ("hear", "handle_event", STUDIES),
    ("time_is_up", "out_of_time", ()),
    ("go_back", "roll_back", ()),
    ("in_short", "summary", ()),
    ("colophon", "execution_summary", ()),
)
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("fedapp/studies/sweep/record.py", "agreement"): "a key of the records of runs",
    ("fedapp/studies/papers/results.py", "agreement"): "a key of the published results",
}
"""(path, old name): why it stays."""


def defined(tree: ast.AST) -> Iterator[str]:
    """Yield the identifiers that a module defines."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                yield name
            case ast.arg(arg=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)):
                yield name


def old_names(path: str, text: str) -> list[str]:
    """Return what of the table a module at ``path`` still defines, with what it should be."""
    names = {name.lstrip("_") for name in defined(ast.parse(text))}
    return [
        f"{path}: {old} (say {new})"
        for old, new, where in TABLE
        if old in names
        and (not where or any(path == place or path.startswith(f"{place}/") for place in where))
        and (path, old) not in EXCEPTIONS
    ]


@pytest.mark.parametrize("path", [path.relative_to(ROOT).as_posix() for path in files()])
def test_no_module_defines_an_old_name(path: str) -> None:
    assert old_names(path, (ROOT / path).read_text()) == []


def test_an_old_name_is_seen_wherever_it_is_defined() -> None:
    text = (
        "class Turn:\n    def finish(self, anchor): self.exam = [hits for hits in anchor]\n"
        "with open('x') as said:\n    other.draw()\n"
    )
    seen = {line.split(": ")[1].split(" ")[0] for line in old_names("fedapp/training/x.py", text)}
    assert seen == {"Turn", "finish", "anchor", "exam", "hits", "said"}


def test_an_algorithm_of_ones_own_may_have_everyday_words() -> None:
    text = "memory = begin = finish = drawn = still = walk = stage = again = 0\n"
    assert old_names("strategies/mine.py", text) == []


def test_exceptions_are_needed() -> None:
    for (path, old), why in EXCEPTIONS.items():
        assert why
        assert old in {n.lstrip("_") for n in defined(ast.parse((ROOT / path).read_text()))}, (
            path,
            old,
        )
