//! Codes of files, sources, formats, certificates and backups: Q0001 to Q0899.

/// Passes its rows to the macro `next`, which appends its own.
macro_rules! offline {
    ($next:ident $then:ident $last:ident) => {
        $next! { $then $last
        /// A bug of ours.
        Internal = "Q0001", Failed;
        /// A file or directory could not be read or written.
        Io = "Q0002", Failed;
        /// The command line was not understood.
        Usage = "Q0003", Usage;
        /// `explain` was asked for a code that does not exist.
        UnknownCode = "Q0004", CannotMeet;
        /// The disk (or quota) is full.
        DiskFull = "Q0005", Temporary;
        /// The user running the command may not do this.
        NoPermission = "Q0006", Failed;

        /// A `--source` URI that cannot be understood.
        SourceInvalid = "Q0101", ConfigInvalid;
        /// A source did not answer in time, or could not be reached.
        SourceUnreachable = "Q0102", Unreachable;
        /// A source answered with something that is not a member list.
        SourceNotAList = "Q0103", ConfigInvalid;
        /// A source or flag gave a list without members.
        RosterEmpty = "Q0104", ConfigInvalid;
        /// Two members share a name.
        RosterDuplicateName = "Q0105", ConfigInvalid;
        /// Two members share a peer URL (or one lists it twice).
        RosterDuplicateUrl = "Q0106", ConfigInvalid;
        /// The local member is not in the list.
        RosterSelfMissing = "Q0107", ConfigInvalid;
        /// More than one member could be the local one.
        RosterSelfAmbiguous = "Q0108", ConfigInvalid;
        /// A peer or client URL that etcd would not accept.
        RosterBadUrl = "Q0109", ConfigInvalid;
        /// More members than `--expect`.
        RosterTooMany = "Q0110", ConfigInvalid;
        /// Fewer members than `--expect` when the wait ended.
        RosterTooFew = "Q0111", Waiting;
        /// Two members hash to the same id, or one to zero.
        RosterBadId = "Q0112", ConfigInvalid;
        /// An even number of members (warning).
        RosterEven = "Q0113", ConfigInvalid;
        /// http and https mixed in one list (warning).
        RosterMixedSchemes = "Q0114", ConfigInvalid;
        /// A member name that etcd or the list format cannot carry.
        RosterBadName = "Q0115", ConfigInvalid;
        /// A secret for a source can be read by others (warning).
        SourceSecretOpen = "Q0116", ConfigInvalid;

        /// The target dir belongs to another cluster.
        InitOtherCluster = "Q0201", Refused;
        /// The target dir belongs to another member of this cluster.
        InitOtherMember = "Q0202", Refused;
        /// A running etcd holds the target dir.
        InitInUse = "Q0203", Refused;
        /// The target holds etcd data that cannot be read or understood.
        InitUnreadable = "Q0204", Refused;
        /// The target is not empty and is not an etcd data dir.
        InitNotEmpty = "Q0205", Refused;
        /// A left-over partial dir of an interrupted run was replaced (warning).
        InitLeftOver = "Q0206", Refused;
        /// Another quorate is building this very dir right now.
        InitBusy = "Q0207", Temporary;
        /// Only one half of a member is there: its db or its WAL.
        InitHalf = "Q0208", Refused;

        /// A running etcd holds the data dir, so its db cannot be read consistently.
        DataInUse = "Q0301", CannotMeet;
        /// A file or directory that every member has is missing.
        DataMissingPart = "Q0302", CannotMeet;
        /// Files or directories are open to others than their owner.
        DataModeOpen = "Q0303", CannotMeet;
        /// Files of one data dir belong to different users.
        DataOwnerMixed = "Q0304", CannotMeet;
        /// Left-overs of interrupted work.
        DataLeftOver = "Q0305", CannotMeet;
        /// A meta page of the db does not validate.
        BoltMeta = "Q0310", CannotMeet;
        /// The db is shorter than its meta page says.
        BoltTooShort = "Q0311", CannotMeet;
        /// A page's header or element table is impossible.
        BoltPage = "Q0312", CannotMeet;
        /// A page is reached by two ways.
        BoltPageTwice = "Q0313", CannotMeet;
        /// Keys are not in order.
        BoltOrder = "Q0314", CannotMeet;
        /// A branch page with one child: a later compaction would crash etcd.
        BoltSingleChild = "Q0315", CannotMeet;
        /// The freelist contradicts the tree.
        BoltFreelist = "Q0316", CannotMeet;
        /// A page larger than we examine.
        BoltTooLarge = "Q0317", CannotMeet;
        /// A bucket that etcd needs is missing.
        BucketMissing = "Q0320", CannotMeet;
        /// A value of the `meta` or `cluster` bucket is malformed.
        MetaValue = "Q0321", CannotMeet;
        /// A key of the `key` bucket is not a revision.
        RevisionInvalid = "Q0322", CannotMeet;
        /// A value of the `key` bucket is not what its revision says.
        KeyValueInvalid = "Q0323", CannotMeet;
        /// A key refers to a lease that does not exist.
        LeaseMissing = "Q0324", CannotMeet;
        /// A lease record is malformed.
        LeaseInvalid = "Q0325", CannotMeet;
        /// A member record is malformed.
        MemberInvalid = "Q0326", CannotMeet;
        /// An alarm is raised.
        AlarmRaised = "Q0327", CannotMeet;
        /// Auth records contradict each other.
        AuthInconsistent = "Q0328", CannotMeet;
        /// WAL segment names have a gap or cannot be parsed.
        WalNames = "Q0330", CannotMeet;
        /// A WAL segment does not begin as every segment does.
        WalHeader = "Q0331", CannotMeet;
        /// A WAL record is damaged and cannot be repaired.
        WalCorrupt = "Q0332", CannotMeet;
        /// The WAL ends in a torn write, which can be repaired.
        WalTornTail = "Q0333", CannotMeet;
        /// The WAL's entries do not form a log.
        WalEntries = "Q0334", CannotMeet;
        /// The hard state contradicts the log.
        WalHardState = "Q0335", CannotMeet;
        /// A raft snapshot file is damaged.
        SnapInvalid = "Q0340", CannotMeet;
        /// A raft snapshot's name and content disagree.
        SnapName = "Q0341", CannotMeet;
        /// The member list inside a raft snapshot cannot be read.
        SnapStore = "Q0342", CannotMeet;
        /// The db is older than the raft snapshot.
        IndexBehind = "Q0350", CannotMeet;
        /// The db claims entries that the log does not have.
        IndexAhead = "Q0351", CannotMeet;
        /// Ids in WAL, membership and snapshot disagree.
        IdsDisagree = "Q0352", CannotMeet;
        /// Member lists disagree.
        MembershipDisagrees = "Q0353", CannotMeet;
        /// Data without a raft snapshot point: members added later would stay empty.
        NoSnapshotPoint = "Q0354", CannotMeet;
        /// The stored term and the log's term disagree.
        TermDisagrees = "Q0355", CannotMeet;
        /// A snapshot file does not match its SHA-256.
        SnapshotHash = "Q0360", CannotMeet;
        /// A snapshot file carries no SHA-256.
        SnapshotNoHash = "Q0361", CannotMeet;

        /// The path is neither a data dir nor a snapshot file.
        NotEtcdData = "Q0401", CannotMeet;
        /// The path does not exist.
        NotFound = "Q0402", CannotMeet;

        /// A program that is needed is not installed.
        ProgramMissing = "Q0501", CannotMeet;
        /// A port that is needed is taken.
        PortBusy = "Q0502", CannotMeet;
        /// The demo cluster did not become healthy in time.
        DemoNotHealthy = "Q0503", Waiting;
        /// There is no demo cluster here.
        DemoAbsent = "Q0504", CannotMeet;

        /// No etcd endpoint answered.
        EtcdUnreachable = "Q0601", Unreachable;
        /// etcd answered with an error.
        EtcdRefused = "Q0602", CannotMeet;

        /// The revision to restore has been compacted away.
        RestoreCompacted = "Q0701", CannotMeet;
        /// The base of a restore holds what etcd itself could not read.
        RestoreBase = "Q0702", CannotMeet;
        /// The history of a restore cannot be read, or is out of order.
        RestoreHistory = "Q0703", CannotMeet;
        /// The snapshot or the options are not those of the given restore point.
        RestorePoint = "Q0704", Refused;
        /// The snapshot to restore carries no SHA-256.
        RestoreNoHash = "Q0705", Refused;
        /// Live keys referred to leases that nothing is known of; they were made (warning).
        RestoreLeases = "Q0706", CannotMeet;
        /// A restored cluster begins with a raised alarm (warning).
        RestoreAlarm = "Q0707", CannotMeet;
        /// A running etcd holds what is to be defragmented.
        DefragInUse = "Q0710", Refused;
        /// The defragmented file does not hold what the old one holds.
        DefragDiffers = "Q0711", Failed;

        /// A `--store` URL that cannot be understood.
        StoreInvalid = "Q0801", ConfigInvalid;
        /// The store could not be listed, read or written.
        StoreUnreachable = "Q0802", Unreachable;
        /// No full backup in the store can be used.
        ChainNone = "Q0803", CannotMeet;
        /// The store does not prove the state that was asked for.
        ChainTarget = "Q0804", CannotMeet;
        /// The newest state that can be proven is older than the newest one that is mentioned (warning, or an error with `--strict`).
        ChainShort = "Q0805", CannotMeet;
        /// An object of the store is damaged.
        ObjectDamaged = "Q0806", CannotMeet;
        /// An object holds something else than its name or manifest says.
        ObjectMisnamed = "Q0807", CannotMeet;
        /// A text that is not a restore point.
        PointInvalid = "Q0808", ConfigInvalid;
        /// The store does not lead to the given restore point.
        PointGone = "Q0809", Refused;
        /// Several members need a restore point that they all use.
        PointNeeded = "Q0810", Refused;
        /// A drill failed: what was restored does not verify or does not run.
        DrillFailed = "Q0811", CannotMeet;
        /// A new full does not equal the chain that it was made from.
        CompactDiffers = "Q0812", Failed;
        /// A name in the store that no layout knows (warning).
        ObjectUnknown = "Q0813", CannotMeet;
        /// The store does not accept the credentials, or does not allow what was asked.
        StoreDenied = "Q0820", CannotMeet;
        /// The bucket or container does not exist.
        BucketAbsent = "Q0821", CannotMeet;
        /// The store protects an object from being removed or replaced.
        StoreLocked = "Q0822", CannotMeet;
        /// The store cannot make an object only if it is not there.
        CreateUnsupported = "Q0823", CannotMeet;
        /// The target of a copy holds another cluster's backups.
        CopyOtherCluster = "Q0824", Refused;
        /// The target of a copy holds an object of the same name with other bytes.
        CopyDiffers = "Q0825", Refused;
        /// An object was left out of a copy, because its bytes are not those of its manifest (warning).
        CopyLeftOut = "Q0826", CannotMeet;
        /// Someone else uses the spool.
        SpoolLocked = "Q0830", Temporary;
        /// A file of the spool is damaged and was set aside (warning).
        SpoolDamaged = "Q0831", CannotMeet;
        /// The spool cannot take what it was given before it has been recovered.
        SpoolBroken = "Q0832", Failed;
        /// The store holds another object of the same name.
        ObjectTaken = "Q0833", Refused;
        /// A snapshot is older than what was there when it was asked for.
        FullBehind = "Q0834", Failed;
        /// Nothing is removed from a store that proves nothing.
        PruneUnproven = "Q0840", Refused;
        /// The store would not let an object go (warning).
        PruneLocked = "Q0841", CannotMeet;
        /// A schedule or keeping rule that cannot be understood.
        ScheduleInvalid = "Q0842", ConfigInvalid;
        /// The store holds the backups of another cluster.
        StoreOfOther = "Q0843", Refused;
        /// etcd's revision is lower than what was backed up (warning).
        RevisionWentBack = "Q0844", Refused;
        /// A stretch of history that no delta will hold (warning).
        HistoryHole = "Q0845", CannotMeet;
        /// The spool does not belong to what is backed up now (warning).
        SpoolSetAside = "Q0846", CannotMeet;
        /// The store did not answer when following began (warning).
        StoreNotSeen = "Q0847", Temporary;
        /// Another writer took over the store.
        WriterReplaced = "Q0850", Refused;
        /// etcd compacted history before it was recorded (warning).
        HistoryCompacted = "Q0851", CannotMeet;
        /// The spool is full, so recording waits (warning).
        SpoolFull = "Q0852", CannotMeet;
        /// A snapshot did not arrive whole.
        SnapshotBroken = "Q0853", CannotMeet;
        /// A second signal ended the program before the spool was uploaded.
        CutShort = "Q0854", Temporary;
        /// An address that cannot be listened on.
        ServeInvalid = "Q0855", ConfigInvalid;
        /// An endpoint answered for another cluster.
        OtherCluster = "Q0856", Refused;
        /// The end came before all of the spool was uploaded (warning).
        FlushIncomplete = "Q0857", Temporary;
        }
    };
}
