//! One suite, the same for every store: real etcd of every supported release, real Consul, and the one in memory.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

#[path = "suite/keys.rs"]
mod keys;
#[path = "suite/leases.rs"]
mod leases;
#[path = "suite/locks.rs"]
mod locks;
#[path = "suite/services.rs"]
mod services;
mod support;
#[path = "suite/watches.rs"]
mod watches;

use support::World;

/// Runs each case against a world.
macro_rules! conforms {
    ($($store:ident)*) => { $(
        mod $store {
            cases! { super::World::$store() =>
                keys: an_absent_key_is_none_and_an_empty_list_an_answer,
                keys: what_was_put_is_read_back_with_its_revision,
                keys: a_key_remembers_when_it_was_made,
                keys: create_makes_a_key_once,
                keys: replace_needs_the_revision_that_was_seen,
                keys: delete_unchanged_needs_the_revision_that_was_seen,
                keys: deleting_what_is_not_there_is_no_fault,
                keys: a_transaction_changes_all_or_nothing,
                keys: all_changes_of_a_transaction_have_one_revision,
                keys: racing_swaps_lose_no_update,
                keys: racing_creates_have_one_winner,
                keys: values_may_be_any_bytes,
                keys: keys_may_be_any_bytes,
                keys: a_prefix_of_0xff_ends_where_it_should,
                keys: namespaces_do_not_see_each_other,
                keys: lists_are_whole_and_in_the_order_of_bytes,
                keys: keys_and_transactions_that_cannot_be_are_refused,
                keys: what_is_too_large_is_a_fault_and_the_largest_is_not,
                watches: a_watch_tells_what_happens_after_a_list_in_order,
                watches: a_watch_on_a_key_tells_of_no_other,
                watches: a_watch_on_a_prefix_tells_deletions,
                watches: a_watch_on_everything_tells_keys_of_any_bytes,
                watches: a_quiet_watch_says_so,
                watches: a_watch_goes_on_where_another_was,
                watches: a_revision_alone_resumes_or_is_compacted,
                watches: waits_that_are_given_up_lose_nothing,
                watches: concurrent_writers_are_told_without_loss_or_repetition,
                watches: several_watches_tell_the_same,
                leases: ending_a_lease_deletes_what_it_holds_and_a_watch_tells,
                leases: a_lease_ends_with_its_time_and_a_kept_one_does_not,
                leases: a_key_that_is_there_is_not_held_again,
                leases: a_lease_that_is_gone_holds_nothing,
                leases: writing_a_held_key_keeps_its_lease,
                leases: a_lease_that_someone_ended_is_noticed,
                locks: contenders_exclude_each_other_and_tokens_grow,
                locks: a_lock_is_lost_with_its_lease_and_that_is_noticed,
                locks: a_lock_that_someone_deleted_is_noticed,
                locks: who_lost_a_lock_changes_nothing_behind_its_fence,
                locks: waiting_for_a_lock_ends_with_the_holders_name,
                locks: a_released_lock_goes_to_who_waits,
                locks: one_lease_takes_a_lock_once,
                locks: waiting_ends_when_the_lease_is_lost,
                services: an_instance_is_listed_as_it_was_registered,
                services: health_is_told_to_who_watches,
                services: an_instance_that_ends_is_gone,
                services: an_instance_that_is_not_kept_is_no_longer_passing,
                services: an_instance_is_replaced_by_its_next_process,
                services: an_instance_that_the_store_forgot_is_registered_again,
                services: services_of_other_namespaces_are_not_seen,
            }
        }
    )* };
}

macro_rules! cases {
    ($world:expr => $($topic:ident: $case:ident,)*) => { $(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $case() {
            super::$topic::$case($world).await;
        }
    )* };
}

conforms! { memory etcd_3_4 etcd_3_5 etcd_newest consul }
