//! The guards of the start decision, by name, so that tests can take away one at a time and show what goes wrong without it.
//!
//! **Invariant:** the path that agents take has no switch: `Every` holds all guards at compile time.

/// What keeps a plan from doing harm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "`Guard::text` says what each one is")]
pub enum Guard {
    UnknownData,
    UnreadableLedger,
    SameFileSystem,
    Tombstone,
    ForeignData,
    NewerGeneration,
    DataUnknownToLedger,
    OtherCluster,
    Removed,
    CheckFirst,
    RolledBack,
    OnlyMemberRestores,
    Remembered,
    ListedAsStarted,
    ResumeUnstarted,
    UsedDeclaration,
    EveryonePromised,
    Disagreement,
    GiveUpUnstarted,
    OthersGaveUp,
    StoreUnknown,
    BackupExists,
    TellPeers,
    WriteStarted,
    LedgerFirst,
    OneChange,
    HealthyFirst,
    LeaderMoves,
    FileAgreed,
    DeclaredStays,
    UndoOnlyDown,
    OnePause,
    TornDown,
    AnotherMachine,
    Nonces,
}

impl Guard {
    /// All of them.
    pub const ALL: [Guard; 35] = [
        Guard::UnknownData,
        Guard::UnreadableLedger,
        Guard::SameFileSystem,
        Guard::Tombstone,
        Guard::ForeignData,
        Guard::NewerGeneration,
        Guard::DataUnknownToLedger,
        Guard::OtherCluster,
        Guard::Removed,
        Guard::CheckFirst,
        Guard::RolledBack,
        Guard::OnlyMemberRestores,
        Guard::Remembered,
        Guard::ListedAsStarted,
        Guard::ResumeUnstarted,
        Guard::UsedDeclaration,
        Guard::EveryonePromised,
        Guard::Disagreement,
        Guard::GiveUpUnstarted,
        Guard::OthersGaveUp,
        Guard::StoreUnknown,
        Guard::BackupExists,
        Guard::TellPeers,
        Guard::WriteStarted,
        Guard::LedgerFirst,
        Guard::OneChange,
        Guard::HealthyFirst,
        Guard::LeaderMoves,
        Guard::FileAgreed,
        Guard::DeclaredStays,
        Guard::UndoOnlyDown,
        Guard::OnePause,
        Guard::TornDown,
        Guard::AnotherMachine,
        Guard::Nonces,
    ];

    /// Those that the change of a living cluster holds.
    pub const IN_CHANGE: [Guard; 6] = [
        Guard::HealthyFirst,
        Guard::LeaderMoves,
        Guard::FileAgreed,
        Guard::DeclaredStays,
        Guard::UndoOnlyDown,
        Guard::OnePause,
    ];

    /// Whether the start decision holds it.
    pub fn is_in_start(self) -> bool {
        self == Guard::HealthyFirst || !Guard::IN_CHANGE.contains(&self)
    }

    /// What it keeps.
    pub fn text(self) -> &'static str {
        match self {
            Guard::UnknownData => "data that cannot be seen is not taken for absent",
            Guard::UnreadableLedger => "a ledger that cannot be read is not taken for empty",
            Guard::SameFileSystem => {
                "data is taken for lost only in the file system that held it, or where that is accepted"
            }
            Guard::Tombstone => "a node that was removed for good does nothing",
            Guard::ForeignData => "data with other ids than the ledger's is not touched",
            Guard::NewerGeneration => "a node of an older generation does nothing",
            Guard::DataUnknownToLedger => "data that an empty ledger does not know is not started",
            Guard::OtherCluster => "a node joins no other cluster than its own",
            Guard::Removed => "a member that the cluster does not list is not started",
            Guard::CheckFirst => "data is checked before etcd starts on it",
            Guard::RolledBack => "data that ends before what its member acknowledged is not started",
            Guard::OnlyMemberRestores => "only the only member is restored from a backup",
            Guard::Remembered => "a node that a peer remembers as started founds nothing",
            Guard::ListedAsStarted => "a node that is listed as started founds nothing and resumes nothing",
            Guard::ResumeUnstarted => "only an id that never started is started without data",
            Guard::UsedDeclaration => "a declaration is used once",
            Guard::EveryonePromised => "a cluster is founded when every declared peer has promised it",
            Guard::Disagreement => "a cluster is not founded against anyone's word",
            Guard::GiveUpUnstarted => "a promise is given up only if nobody can have started on it",
            Guard::OthersGaveUp => "another founding is promised when every peer gave the earlier one up",
            Guard::StoreUnknown => "a store that does not answer is not taken for empty",
            Guard::BackupExists => "a cluster that has a backup is not founded anew",
            Guard::TellPeers => "every peer writes a start down before etcd first runs",
            Guard::WriteStarted => "the ledger says `started` before etcd first runs",
            Guard::LedgerFirst => "the ledger says what is wished before the cluster is asked",
            Guard::OneChange => "one change of members at a time",
            Guard::HealthyFirst => "nothing is changed while a voter is down, unless that heals",
            Guard::LeaderMoves => "whoever leads hands over before it leaves or restarts",
            Guard::FileAgreed => "nobody leaves by a file that a quorum does not hold",
            Guard::DeclaredStays => "a declared member that was not asked to leave stays",
            Guard::UndoOnlyDown => "a learner that is up is not undone",
            Guard::OnePause => "members restart one at a time",
            Guard::TornDown => "a cluster that was torn down is not started",
            Guard::Nonces => "no two bootstraps have the same ids: the nonces of all promises are part of them",
            Guard::AnotherMachine => "a member that runs on another machine is not removed, and not started beside it",
        }
    }
}

/// Which guards are held.
pub(crate) trait Guards {
    fn hold(&self, guard: Guard) -> bool;
}

/// All of them.
pub(crate) struct Every;

impl Guards for Every {
    fn hold(&self, _guard: Guard) -> bool {
        true
    }
}

/// All but one.
pub(crate) struct Without(pub(crate) Guard);

impl Guards for Without {
    fn hold(&self, guard: Guard) -> bool {
        self.0 != guard
    }
}
