//! What the options of both servers have in common.

/// What survives a crash of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// What was acknowledged has been forced to disk.
    #[default]
    Durable,
    /// Nothing is forced to disk: for test servers, whose data nobody misses.
    Throwaway,
}

/// Whether the server gets the signals that are sent to its launcher's process group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProcessGroup {
    /// A group of its own: Ctrl-C in a terminal does not reach the server, so that its launcher can
    /// finish its work first.
    #[default]
    Own,
    /// The launcher's group: whatever kills a test by its group takes the server with it.
    Callers,
}
