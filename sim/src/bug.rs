//! Bugs that can be planted, each in a driver or at the seam of a machine, never in the product:
//! they show that the simulation finds what it is there to find.
//!
//! To add a bug: a variant with its line below, and the place that asks for it.

macro_rules! bugs {
    ($($(#[doc = $doc:literal])* $name:ident;)*) => {
        /// A planted bug.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Bug {
            $($(#[doc = $doc])* $name,)*
        }

        impl Bug {
            /// Every bug.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];
        }
    };
}

bugs! {
    /// A dispatch is appended as the gateway's look saw the command, not as it is.
    DispatchOnStaleSnapshot;
    /// A sweep is appended as the sweeper saw the command, not as it is.
    SweepOnStaleSnapshot;
    /// The ledger does not compare epochs.
    EpochNotCompared;
    /// The gateway counts credits by a counter of its own, and misses what others end.
    CreditsCounted;
    /// The gateway does not look at credits.
    CreditsIgnored;
    /// The gateway dispatches the newest first.
    OrderIgnored;
    /// The gateway goes on with the next command when the ledger did not take one in.
    RoundGoesOn;
    /// The ledger does not look at `notBefore`.
    NotBeforeIgnored;
    /// The ledger does not look at `notAfter` when it dispatches.
    NotAfterIgnored;
    /// The ledger does not look at the backoff of a busy node.
    BackoffIgnored;
    /// A held command is dispatched.
    HoldIgnored;
    /// What a batch holds is released without its approval.
    QuorumIgnored;
    /// The ledger does not look at generations.
    GenerationIgnored;
    /// A cancel ends a command in flight at once.
    CancelEndsInFlight;
    /// A second terminal report settles again.
    SettledAgain;
    /// A reconnect proves nothing.
    RejoinProvesNothing;
    /// A retry of a key queues a second command.
    KeyForgotten;
    /// The session answers before the ledger has taken the report in.
    AnswerBeforeCommit;
    /// A reconnect replays what ends the daemon, also when it was accepted.
    ReplaysSelfTerminating;
    /// No wake-up and no repair: the gateway looks once, when a session opens.
    WakesLost;
    /// The journal is never synced.
    JournalNotSynced;
    /// The effect starts before its records are in the journal.
    EffectBeforeJournal;
    /// A restart forgets what ended, confirmed or not.
    EndsForgotten;
    /// A lost journal comes back under the same id.
    LostJournalKeepsItsId;
    /// The ledger does not look at signatures over ends.
    SignatureNotHeld;
    /// The ledger takes a fresh journal's word that nothing happened.
    FreshJournalBelieved;
    /// A restart runs again whatever has no end.
    RunsAgainAfterCrash;
    /// The daemon takes its own clock for the server's.
    NodeClockTrusted;
    /// The node says that it ended a command before that is in the journal.
    SaysBeforeJournal;
    /// The sweeper takes what is in flight for ended at its `notAfter`.
    SweepsTooEarly;
    /// The sweeper never comes to what is in flight.
    SweepForgetsFlight;
}
