"""The tests of clients that need a single broker, by why they do. `--brokers` skips just these."""

from __future__ import annotations

ONE_BROKER: dict[str, tuple[str, ...]] = {
    "one broker beside one Kafka: both get the same requests on one connection": (
        "tests/compat/against_kafka/",
        "tests/compat/against_kafka_4/",
        "tests/compat/against_kafka_4_4/",
    ),
    "a data directory is moved between a broker alone and Kafka": (
        "tests/compat/test_kafka_checkpoints.py",
        "tests/compat/test_kafka_cleaned_files.py",
        "tests/compat/test_kafka_files.py",
        "tests/compat/test_kafka_groups.py",
        "tests/compat/test_kafka_log.py",
    ),
    "a disk of the only broker is taken away and given back": (
        "tests/transactions/test_restarts.py::"
        "test_coordinator_dies_in_each_state_and_partitions_that_come_back_get_their_markers",
    ),
    "the requests to a single broker are counted": (
        "tests/client/test_group_admin.py::test_partitions_of_a_leader_are_asked_about_together",
        "tests/client/test_group_survey.py::test_two_hundred_groups_take_few_requests",
        "tests/client/test_group_survey.py::"
        "test_fetches_for_ages_are_bounded_and_the_largest_lag_comes_first",
        "tests/compat/test_fast_share.py",
        "tests/spark/test_stream_source.py::test_idle_stream_asks_little_and_wakes_at_once",
    ),
    "the benchmark's generator writes to a single broker": ("tests/spark/test_benchmark.py",),
    "one broker stands for three already": (
        "tests/spark/test_stream_source.py::test_fetches_wait_at_every_leader_and_stay_there",
    ),
    "errors are to name the only address": (
        "tests/client/test_unreachable.py::"
        "test_calls_end_when_a_broker_falls_silent_and_when_it_dies",
    ),
    "the broker's own store is changed": (
        "tests/client/test_group_consumer.py::test_commits_tell_the_epoch_of_what_was_read",
    ),
    "the answers of two brokers are compared, with ids and places": (
        "tests/compat/test_kafka_scripts.py",
    ),
    "a changed setting is in force at once only at the broker that changed it": (
        "tests/compat/test_kafka_group_configs.py",
    ),
    "a factor of two or three is too many": (
        "tests/compat/test_admin.py::test_more_replicas_than_brokers_are_refused",
        "tests/compat/test_kafka_tools.py::test_what_cannot_be_is_refused_with_kafkas_words",
    ),
    "broker 0 has all partitions": (
        "tests/compat/test_kafka_tools.py::test_settings_are_shown_and_changed",
        "tests/compat/test_kafka_tools.py::test_replicas_are_moved_between_log_directories",
    ),
    "a proxy stands before a single broker": (
        "tests/compat/test_late_requests.py",
        "tests/compat/test_load_shape.py",
        "tests/compat/test_replay.py",
        "tests/compat/test_requests.py::test_client_sends_today_what_is_kept_of_it",
        "tests/client/test_examples.py::test_promise_is_kept_when_the_worker_is_killed",
        "tests/spark/test_source.py::test_settings_of_the_client_are_those_of_its_requests",
    ),
}
"""Folders end in `/`; tests are without their parameters."""


def is_of(test: str, these: str) -> bool:
    """Return whether a node id is one of a folder, a file, or a test with any parameters."""
    name = test.partition("[")[0]
    return name == these or name.startswith(these if these.endswith("/") else f"{these}::")


def reason_of(test: str) -> str | None:
    """Return why a test needs a single broker, None for one that does not."""
    for reason, tests in ONE_BROKER.items():
        if any(is_of(test, one) for one in tests):
            return reason
    return None
