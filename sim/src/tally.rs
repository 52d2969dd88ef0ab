//! How often each thing happened, so that a run in which nothing happened is no passed run.

use std::fmt;

macro_rules! tally {
    ($($(#[doc = $doc:literal])* $name:ident;)*) => {
        /// Counts over schedules.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Tally {
            $($(#[doc = $doc])* pub $name: u64,)*
        }

        impl Tally {
            /// Adds another run's counts.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }
        }

        impl fmt::Display for Tally {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                $(writeln!(f, "{:>12} {}", self.$name, stringify!($name))?;)*
                Ok(())
            }
        }
    };
}

tally! {
    /// Schedules.
    schedules;
    /// Steps, those of the end apart.
    steps;
    /// Events in all logs.
    events;
    /// Commands that were queued.
    queued;
    /// Retries that were answered with the first command.
    replayed;
    /// Commands that were refused because their lane was full.
    lane_full;
    /// Commands that were released.
    released;
    /// Sessions that were opened.
    sessions;
    /// Dispatches.
    dispatched;
    /// Commands that a daemon took on.
    accepted;
    /// Executors that were started.
    started;
    /// Commands that a busy node returned.
    returned;
    /// Appends that an old epoch lost.
    fenced;
    /// Ends that a lying gateway changed or stripped of their signature.
    forged;
    /// Ends that a sweeper came too late for.
    overtaken;
    /// Writes of a journal that failed.
    journal_failed;
    /// Journals that were lost.
    journals_lost;
    /// Processes of daemons that were started.
    process_starts;
    /// Losses of power.
    power_losses;
    /// Gateways that died.
    gateway_deaths;
    /// Connections that were cut.
    cuts;
    /// Frames that arrived twice.
    duplicates;
    /// Nodes that were deleted.
    nodes_deleted;
    /// Commands that ended as `succeeded`, those apart that ended the daemon.
    succeeded;
    /// Commands that ended the daemon and succeeded, by the new daemon's word.
    rebooted;
    /// Commands that ended the daemon and succeeded, by what the reconnect proved.
    rebooted_by_rejoin;
    /// Commands that ended as `failed`, for a reason of their kind.
    failed;
    /// Commands that ended as `failed`, `interrupted`.
    interrupted;
    /// Commands that ended as `failed`, `journal-lost`.
    journal_lost;
    /// Commands that ended as `failed`, `timeout`.
    timed_out;
    /// Commands that ended as `rejected`.
    rejected;
    /// Commands that ended as `expired`.
    expired;
    /// Commands that were cancelled while they waited.
    cancelled_pending;
    /// Commands that their node cancelled.
    cancelled_by_node;
    /// Commands that ended with their node.
    node_deleted;
    /// Of those with a lost journal, the ones that an old `Hello` made so.
    falsely_lost;
    /// Late results.
    late_results;
    /// Generations that were applied in a session.
    generations_applied;
}
