//! The numbers that commands end with.

/// What a finished command tells its caller. Stable: scripts depend on these numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done, or already so.
    Done = 0,
    /// The request was understood and cannot be met (or a check has findings that matter).
    CannotMeet = 1,
    /// We failed: I/O error, bug.
    Failed = 2,
    /// Nothing is wrong, but what was waited for has not come.
    Waiting = 3,
    /// The given configuration, list or address is invalid.
    ConfigInvalid = 4,
    /// Refused, because going on could lose data.
    Refused = 5,
    /// The cluster or the source of truth did not answer.
    Unreachable = 6,
    /// The command line was not understood.
    Usage = 64,
    /// Try again later.
    Temporary = 75,
}
