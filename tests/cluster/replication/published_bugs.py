"""Published bugs of replication in Kafka and its kind, and the tests that show each of them here.

A row names one bug, or several with one cause. Its tests fail in a broker that has the bug. The
simulations and the model plant it. `test_published_bugs.py` checks that all of the tests exist.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Bug(NamedTuple):
    """One or several published bugs.

    Attributes:
        numbers: KIPs, issues of Kafka (KAFKA-...) and of ZooKeeper, or the name of a report.
        text: the fault, in one sentence.
        tests: ids, as pytest has them.
    """

    numbers: tuple[str, ...]
    text: str
    tests: tuple[str, ...]


CLUSTER: Final = "tests/cluster"
REPLICATION: Final = f"{CLUSTER}/replication"
LIVE: Final = f"{REPLICATION}/test_live_published_bugs.py"
DECISIONS: Final = f"{REPLICATION}/test_fetch_decisions.py"
FETCHER: Final = f"{REPLICATION}/test_replica_fetcher.py"
KEEPER: Final = f"{REPLICATION}/test_in_sync_keeper.py"
PROPOSALS: Final = f"{REPLICATION}/test_alter_partition.py"
MODEL: Final = f"{REPLICATION}/test_whole_space.py::test_broken_rule_loses_a_record"
SIMULATION: Final = f"{CLUSTER}/simulation"
PLANTED: Final = f"{SIMULATION}/test_planted_faults.py::test_planted_fault_is_found"
PLANTED_REPLICA: Final = (
    f"{SIMULATION}/test_planted_replica_faults.py::test_planted_fault_of_a_replica_is_found"
)
FAULTS: Final = f"{CLUSTER}/faults/test_replicas.py"
MANAGER: Final = f"{CLUSTER}/test_replica_manager.py"
STALE: Final = f"{CLUSTER}/test_stale_orders.py"
CONTROLLER: Final = (
    "tests/scenarios/test_controller_scenarios.py::test_controller_scenario_plays_as_written"
)
IN_SYNC: Final = "tests/scenarios/test_in_sync_scenarios.py::test_in_sync_scenario_plays_as_written"
TRANSACTIONS: Final = "tests/scenarios/test_txn_scenarios.py"
FOLLOWERS: Final = "tests/handlers/test_fast_followers.py"
STORAGE: Final = "tests/storage"
FOLLOWED: Final = f"{STORAGE}/test_follower_append.py"
POSITIONS: Final = f"{STORAGE}/test_partition_followers.py"
TRUNCATION: Final = f"{STORAGE}/test_truncation_beside_readers.py"
TXN_LOG: Final = f"{STORAGE}/test_log_transactions.py"
COORDINATOR: Final = "tests/coordinator"


BUGS: Final = (
    # -- where logs part -----------------------------------------------------------------------
    Bug(
        ("KIP-101", "KAFKA-1211"),
        "A follower cut its log to its own high watermark, and acknowledged records went.",
        (
            f"{PLANTED_REPLICA}[cuts_to_its_high_watermark]",
            f"{DECISIONS}::test_follower_comes_to_have_the_leaders_log_in_few_steps",
        ),
    ),
    Bug(
        ("KIP-279", "KAFKA-6361"),
        "After several fast elections one round of epochs did not find where two logs part.",
        (
            f"{LIVE}::test_kip_279_three_unclean_elections_leave_equal_logs",
            f"{PLANTED_REPLICA}[cuts_once_in_a_leader_epoch]",
            f"{MODEL}[goes_back_by_epochs-2-2]",
            f"{FETCHER}::test_log_that_has_parted_is_cut_and_filled_again",
        ),
    ),
    Bug(
        ("KIP-320", "KAFKA-7395", "KAFKA-6880"),
        "A deposed leader answered fetches, and a follower of before was not refused.",
        (
            f"{FOLLOWERS}::test_follower_of_another_epoch_is_refused",
            "tests/handlers/test_list_offsets.py::test_leader_epochs_fence",
            f"{CLUSTER}/faults/test_faults.py::test_leader_is_cut_from_zookeeper_once",
            f"{MODEL}[forgets_positions-1-3]",
        ),
    ),
    Bug(
        ("KAFKA-3410", "KAFKA-7414"),
        "A follower ended its broker when an unclean leader had fewer records.",
        (
            f"{FETCHER}::test_follower_ahead_of_its_leader_goes_on",
            f"{DECISIONS}::test_log_outside_the_leaders_is_brought_into_it",
        ),
    ),
    Bug(
        ("KAFKA-2143",),
        "A follower gave up all of its records because its position was refused for a moment.",
        (
            f"{FETCHER}::test_position_that_was_refused_for_a_moment_costs_no_records",
            f"{DECISIONS}::test_log_outside_the_leaders_is_brought_into_it",
        ),
    ),
    Bug(
        ("KAFKA-7164",),
        "A follower that missed a leader epoch of another broker did not cut its log.",
        (f"{FETCHER}::test_missed_leader_epoch_is_no_missed_cut",),
    ),
    Bug(
        ("KAFKA-14704",),
        "A follower raised its high watermark before it cut its log.",
        (
            f"{PLANTED_REPLICA}[believes_the_high_watermark_before_it_cuts]",
            f"{DECISIONS}::test_log_is_cut_where_it_parts_and_nothing_else_is_believed",
        ),
    ),
    Bug(
        ("KAFKA-18723",),
        "A follower appended batches of a later leader epoch than the one that it had asked in.",
        (
            f"{FOLLOWED}::test_refused_response_changes_nothing[newer epoch]",
            f"{FOLLOWED}::test_epoch_that_has_changed_since_the_fetch_is_refused",
            f"{TRUNCATION}::test_range_keeps_its_bytes",
        ),
    ),
    Bug(
        ("KAFKA-7786",),
        "The answer to a fetch of an earlier leader epoch stopped the copying of a partition.",
        (
            f"{FETCHER}::test_answer_of_an_earlier_epoch_is_dropped",
            f"{DECISIONS}::test_answer_to_another_question_is_ignored",
        ),
    ),
    Bug(
        ("KAFKA-12153", "KAFKA-9491"),
        "A truncation left a high watermark or an open transaction past the end of the log.",
        (
            f"{TRUNCATION}::test_every_moment_of_a_truncation_is_before_or_after_it",
            f"{TRUNCATION}::test_readers_in_a_loop_see_the_log_of_one_moment",
            f"{TXN_LOG}::test_truncation_never_lets_readers_pass_an_open_transaction",
        ),
    ),
    # -- the in-sync set -----------------------------------------------------------------------
    Bug(
        ("KAFKA-7128",),
        "A follower joined while the new leader did not know the committed records yet.",
        (
            f"{MODEL}[knows_epoch_start-1-3]",
            f"{POSITIONS}::test_follower_may_not_join_below_the_start_of_the_leader_epoch",
            f"{IN_SYNC}[joining]",
        ),
    ),
    Bug(
        ("KAFKA-19996",),
        "Below min.insync.replicas late followers joined and left again and again.",
        (f"{IN_SYNC}[below_minimum]",),
    ),
    Bug(
        ("KAFKA-15583", "KAFKA-21110"),
        "The high watermark rose while fewer than min.insync.replicas counted.",
        (
            f"{POSITIONS}::test_high_watermark_stands_still_with_too_few_in_sync",
            f"{POSITIONS}::test_kernel_agrees_with_the_machine",
            "tests/handlers/test_acks_all.py::test_high_watermark_stands_still_below_the_minimum",
        ),
    ),
    Bug(
        ("KIP-903", "KAFKA-14139", "KAFKA-14617", "KAFKA-15221"),
        "A broker that had lost its records joined by a fetch of its earlier life, or led.",
        (
            f"{LIVE}::test_leader_comes_back_with_harmed_records[KIP-903]",
            f"{LIVE}::test_member_with_harmed_records_does_not_lead_alone[KIP-903]",
            f"{MODEL}[asks_for_registration-1-2]",
            f"{POSITIONS}::test_fetch_of_an_earlier_life_says_nothing",
            f"{CONTROLLER}[in_sync_sets]",
            f"{FOLLOWERS}::test_broker_of_an_earlier_registration_is_refused",
        ),
    ),
    Bug(
        ("KIP-966",),
        "The last member of the set lost records with its power, and led without them.",
        (
            f"{FAULTS}::test_nothing_is_lost_once[one-broker]",
            f"{FAULTS}::test_nothing_is_lost_once[several-hosts]",
            f"{CONTROLLER}[broker_lost]",
            f"{MANAGER}::test_lost_replica_of_several_leads_only_after_it_was_copied",
        ),
    ),
    Bug(
        ("KAFKA-1407", "KAFKA-2729"),
        "A leader whose session had ended never got its followers back into the set.",
        (f"{LIVE}::test_kafka_1407_leader_recovers_its_in_sync_set_after_each_session",),
    ),
    Bug(
        ("KAFKA-14144",),
        "A proposal whose answer was lost was refused for ever, though it had been written.",
        (
            f"{CONTROLLER}[in_sync_sets]",
            f"{IN_SYNC}[answers]",
            f"{KEEPER}::test_question_without_an_answer_is_asked_again_and_the_follower_counts"
            "_meanwhile",
            f"{PLANTED_REPLICA}[CountsWritten]",
        ),
    ),
    Bug(
        ("KAFKA-14154",),
        "A controller of before, behind its leader, refused a proposal for good.",
        (
            f"{CONTROLLER}[in_sync_sets]",
            f"{PROPOSALS}::test_error_settles_a_proposal_or_leaves_it_open",
        ),
    ),
    Bug(
        ("KAFKA-12367",),
        "A leader took the answer to a proposal of an earlier epoch for that to its own.",
        (
            f"{PLANTED_REPLICA}[TakesAnyAnswer]",
            f"{PLANTED_REPLICA}[takes_late_answers]",
            f"{KEEPER}::test_answer_of_an_earlier_epoch_changes_nothing",
        ),
    ),
    Bug(
        ("KAFKA-13091",),
        "The high watermark did not rise when a late follower had left the set.",
        (f"{KEEPER}::test_late_follower_counts_until_the_controller_has_agreed",),
    ),
    Bug(
        ("KAFKA-8733",),
        "A slow disk of the leader made healthy followers late.",
        (
            f"{FOLLOWERS}::test_time_that_python_takes_is_not_the_followers",
            f"{FOLLOWERS}::test_time_of_a_fetch_is_when_its_request_came",
            f"{PLANTED_REPLICA}[TicksAfterPause]",
        ),
    ),
    # -- orders and the controller -------------------------------------------------------------
    Bug(
        ("KAFKA-13790",),
        "A broker took a state of the same leader epoch for a new one, or missed it.",
        (
            f"{STALE}::test_leader_takes_no_set_from_an_order_of_its_own_epoch",
            f"{STALE}::test_follower_keeps_its_leader_in_an_order_of_the_same_epoch",
        ),
    ),
    Bug(
        ("KAFKA-3083", "KAFKA-6082"),
        "A controller that was followed by another wrote states on.",
        (
            f"{PLANTED}[writes_are_not_fenced]",
            f"{CLUSTER}/test_controller_store.py::test_deposed_controller_writes_nothing_at_all",
        ),
    ),
    Bug(
        ("KAFKA-7235", "KIP-570", "KAFKA-9539"),
        "A broker obeyed orders for its earlier life, and a stop from before its latest role.",
        (
            f"{PLANTED}[earlier_lives_are_not_fenced]",
            f"{PLANTED}[orders_that_were_sent_again_are_obeyed]",
            f"{MANAGER}::test_stopped_replica_goes_or_stays_as_ordered",
            f"{STALE}::test_stale_stop_takes_nothing_from_a_coordinator",
        ),
    ),
    Bug(
        ("KAFKA-14845", "KAFKA-7165", "KAFKA-1387", "KAFKA-5473", "ZOOKEEPER-2985"),
        "A broker could not register again, because the node of its old session was still there.",
        (
            f"{CLUSTER}/test_registration.py::test_registration_of_our_expired_session_is_replaced",
            f"{CLUSTER}/test_membership.py::test_registration_is_tried_again_ever_later",
            f"{CLUSTER}/test_session_file.py::"
            "test_registration_that_a_killed_broker_left_is_gone_at_once",
            f"{CLUSTER}/test_sessions_end.py::test_broker_whose_session_ends_is_a_member_again",
        ),
    ),
    Bug(
        ("KAFKA-3143", "KAFKA-3096"),
        "A controller and a replica died together, and the dead replica stayed leader or in sync.",
        (
            f"{LIVE}::test_kafka_3143_controller_and_follower_die_together",
            f"{CONTROLLER}[controller_and_replicas_lost]",
            f"{REPLICATION}/test_replica_fetchers.py::test_without_a_leader_no_broker_is_asked",
        ),
    ),
    Bug(
        ("KAFKA-9672", "KAFKA-6638"),
        "A broker that was no replica any more stayed in the set, or came back into it.",
        (f"{CONTROLLER}[reassignments_apart]", f"{CONTROLLER}[reassignments]"),
    ),
    Bug(
        ("KAFKA-13972",),
        "A move that was given up left its log behind: the stop had a leader epoch that was known.",
        (
            f"{CONTROLLER}[reassignments]",
            f"{MANAGER}::test_stopped_replica_goes_or_stays_as_ordered",
            f"{STALE}::test_coordinator_hears_of_every_way_to_lose_a_partition",
        ),
    ),
    Bug(
        ("KAFKA-9089", "KAFKA-19975"),
        "A move that failed, or could not end, stopped the other moves.",
        (f"{CONTROLLER}[reassignments_apart]", f"{CONTROLLER}[reassignments_go_on]"),
    ),
    Bug(
        ("KAFKA-14616", "KAFKA-15605", "KAFKA-10548"),
        "A broker that was away while its topic was deleted kept the log for the next topic.",
        (
            f"{PLANTED}[strays_are_loaded]",
            f"{PLANTED}[logs_outlive_their_topics]",
            f"{CLUSTER}/test_three_brokers.py::"
            "test_topic_that_is_deleted_while_a_broker_is_away_stays_deleted",
            f"{MANAGER}::test_another_topics_id_is_refused_at_the_replica_and_at_its_files",
        ),
    ),
    # -- clients, coordinators and disks -------------------------------------------------------
    Bug(
        ("KIP-207", "KAFKA-2334"),
        "After an election a consumer saw the end of a partition go back.",
        (f"{FOLLOWERS}::test_end_is_unknown_until_the_new_leader_knows_what_is_committed",),
    ),
    Bug(
        ("KAFKA-20634",),
        "A write was acknowledged after its records had been cut and others had their offsets.",
        (
            "tests/handlers/test_acks_all.py::test_own_append",
            "tests/handlers/test_acks_all.py::test_handler",
            "tests/handlers/test_acks_all.py::test_fast_path",
            f"{STORAGE}/test_ack_status.py::test_append_of_another_log_is_lost",
            f"{PLANTED_REPLICA}[answers_waits_of_earlier_leads]",
            f"{MODEL}[answers_old_waits-2-3]",
        ),
    ),
    Bug(
        ("KAFKA-9307", "KAFKA-16030", "KAFKA-15643"),
        "A coordinator whose lead ended as it read its log answered from that log later.",
        (f"{COORDINATOR}/test_shard_orders.py::test_kafka_9307_memory_is_that_of_the_last_lead",),
    ),
    Bug(
        ("KAFKA-20115", "KAFKA-16118", "KAFKA-19274"),
        "A coordinator kept the memory of a partition that was deleted or went elsewhere.",
        (
            f"{STALE}::test_coordinator_hears_of_every_way_to_lose_a_partition",
            f"{STALE}::test_coordinator_of_a_topic_that_was_created_again_is_another",
            f"{COORDINATOR}/test_shard_orders.py::test_kafka_9307_memory_is_that_of_the_last_lead",
        ),
    ),
    Bug(
        ("KAFKA-19999", "KIP-1228"),
        "A marker of version 2 came again, and was refused for ever or ended the next transaction.",
        (
            f"{STORAGE}/test_producer_state.py::"
            "test_marker_with_an_epoch_of_its_own_does_not_end_a_later_transaction",
            f"{COORDINATOR}/test_txn_coordinator.py::"
            "test_transaction_that_has_ended_in_a_partition_needs_no_marker_there",
            f"{CLUSTER}/test_failed_txn_coordinator.py::"
            "test_late_marker_of_a_dead_coordinator_does_not_end_the_next_transaction",
            f"{PLANTED}[markers_of_earlier_connections_are_written]",
        ),
    ),
    Bug(
        ("KAFKA-9666",),
        "A producer's epoch was raised in memory and not in the log.",
        (
            f"{TRANSACTIONS}::test_transaction_scenario_plays_as_written[log]",
            f"{TRANSACTIONS}::test_transaction_scenario_plays_as_written[restart]",
        ),
    ),
    Bug(
        ("KAFKA-9144",),
        "A partition forgot a producer, and an earlier coordinator ended its transaction.",
        (
            f"{STORAGE}/test_producer_state.py::"
            "test_only_silent_producers_outside_transactions_expire",
            f"{TXN_LOG}::test_older_producers_and_coordinators_end_nothing",
            f"{FOLLOWED}::test_follower_that_becomes_leader_knows_duplicates_and_open_transactions",
        ),
    ),
    Bug(
        ("KAFKA-20716",),
        "An unclean election lost a marker, and readers of committed records waited for ever.",
        (f"{LIVE}::test_kafka_20716_marker_that_an_unclean_election_lost_is_found",),
    ),
    Bug(
        ("KAFKA-20554",),
        "Records of acks=1 were lost when their leader stopped in order.",
        (f"{LIVE}::test_kafka_20554_rolling_restart_loses_no_record_of_acks_1",),
    ),
    Bug(
        ("KAFKA-15046", "KAFKA-16541"),
        "The leader epochs were synced under the log's lock; later they were not, and got lost.",
        (
            f"{STORAGE}/test_epochs_after_power_cuts.py::test_epochs_cover_what_a_power_cut_leaves",
            f"{STORAGE}/test_epochs_after_power_cuts.py::test_change_of_leadership_syncs_nothing",
        ),
    ),
    Bug(
        ("KAFKA-15608", "KAFKA-20961"),
        "A log that moved to another disk lost its leader epochs, and its copies looped for ever.",
        (
            f"{LIVE}::test_kafka_15608_idle_partition_keeps_its_epochs_on_another_disk",
            f"{STORAGE}/test_log_moves.py::test_leader_epoch_without_records_moves_with_its_log",
        ),
    ),
    # -- reports -------------------------------------------------------------------------------
    Bug(
        ("Jepsen 2013 (Kafka)",),
        "A leader shrank its set to itself, acknowledged records alone, and another led.",
        (
            f"{MODEL}[elects_in_sync-1-2]",
            f"{MODEL}[counts_proposed-1-2]",
            f"{PLANTED_REPLICA}[CountsWritten]",
            f"{PLANTED_REPLICA}[acknowledges_what_is_durable_here]",
            f"{FAULTS}::test_nothing_is_lost_once[one-broker]",
        ),
    ),
    Bug(
        ("Jepsen 2022 (Redpanda, issue 5090)",),
        "A broker that was elected answered before it knew all that was committed.",
        (
            f"{COORDINATOR}/test_group_coordinator.py::"
            "test_records_that_are_not_committed_are_shown_to_no_client",
            f"{FOLLOWERS}::test_end_is_unknown_until_the_new_leader_knows_what_is_committed",
        ),
    ),
    Bug(
        ("Jepsen 2025 (NATS)",),
        "One flipped bit on the disk of a minority cost records of all.",
        (
            f"{LIVE}::test_leader_comes_back_with_harmed_records[NATS]",
            f"{LIVE}::test_member_with_harmed_records_does_not_lead_alone[NATS]",
            f"{FOLLOWED}::"
            "test_every_flipped_bit_is_refused_but_in_an_offset_behind_which_nothing_comes",
            f"{FETCHER}::test_damaged_answer_is_not_appended",
        ),
    ),
)
