//! The checks, by subject.

mod ebbs;
mod events;
mod fibers;
mod idle;
mod interrupts;
mod iobuf;
mod memory;
mod parallel;
mod platform;
mod quiescence;
mod regions;
mod tasks;
mod timers;

use crate::Check;
use alloc::boxed::Box;

/// Defines the table of checks from a list of paths.
macro_rules! checks {
    ($($module:ident::$name:ident,)+) => {
        /// All checks, in the order in which they run.
        pub const CHECKS: &[Check] = &[$(Check {
            name: concat!(stringify!($module), "::", stringify!($name)),
            run: || Box::pin($module::$name()),
        }),+];
    };
}

checks! {
    platform::time_advances_and_is_the_same_on_all_cores,
    platform::random_words_differ,
    platform::the_cell_has_the_resources_of_its_descriptor,
    ebbs::each_core_has_its_own_representative,
    ebbs::a_representative_is_created_at_its_first_use,
    ebbs::a_cell_has_one_representative_for_all_cores,
    events::events_of_a_core_run_in_the_order_of_creation,
    events::an_event_runs_on_its_target_core,
    events::messages_of_all_cores_arrive,
    events::no_wake_up_is_lost_between_cores_that_halt,
    events::events_inherit_their_activity,
    events::affinity_labels_keep_to_a_core_of_the_cell,
    events::cycles_are_charged_to_their_activity,
    events::no_cycle_is_unattributed,
    events::any_number_of_activities_come_and_go,
    tasks::an_awaited_task_returns_its_output,
    tasks::a_task_that_is_cancelled_is_dropped,
    tasks::a_task_that_yields_lets_others_run,
    tasks::a_task_is_woken_from_another_core,
    timers::alarms_ring_in_the_order_of_their_deadlines,
    timers::a_sleep_is_never_short,
    timers::an_alarm_that_is_unset_does_not_ring,
    timers::a_timeout_ends_a_future_that_takes_too_long,
    timers::alarms_ring_on_every_core,
    interrupts::a_core_is_interrupted_by_itself,
    interrupts::a_long_event_learns_of_interrupts_and_keeps_its_registers,
    interrupts::cores_interrupt_each_other,
    interrupts::every_vector_has_its_own_handler,
    idle::an_idle_handler_runs_until_it_is_dropped,
    parallel::parts_run_on_all_cores_and_results_keep_their_order,
    parallel::nested_parallel_work_completes,
    memory::objects_of_all_sizes_are_disjoint_and_aligned,
    memory::objects_are_freed_by_other_cores,
    memory::freed_memory_is_allocated_again,
    memory::large_objects_are_allocated_from_fragmented_memory,
    memory::fragmented_memory_is_not_used_up,
    regions::pages_are_filled_at_first_access,
    regions::pages_are_filled_in_groups_and_in_other_sizes,
    regions::prefaulted_pages_never_fault,
    regions::an_application_s_own_pager_fills_each_page_once,
    regions::regions_of_all_cores_are_disjoint_and_their_addresses_reused,
    regions::impossible_regions_are_refused,
    quiescence::deferred_work_of_all_cores_runs,
    quiescence::a_table_is_read_consistently_during_writes,
    fibers::fibers_block_at_any_call_depth_while_events_run,
    fibers::fibers_stay_on_their_core_and_use_stacks_again,
    iobuf::a_chain_is_split_and_joined,
    iobuf::views_of_one_memory_are_read_on_all_cores,
}
