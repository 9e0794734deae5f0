//! The closed list of fault codes, each with its page and the exit code it ends a command with.

use crate::Exit;

macro_rules! codes {
    ($($(#[doc = $doc:literal])* $name:ident = $code:literal, $exit:ident;)*) => {
        /// One operator-visible fault or finding.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code { $($(#[doc = $doc])* $name,)* }

        impl Code {
            /// Every code, in the order of their numbers.
            pub const ALL: &'static [Code] = &[$(Code::$name,)*];

            /// `Q` and four digits.
            pub fn as_str(self) -> &'static str {
                match self { $(Code::$name => $code,)* }
            }

            /// The exit code of a command that ends with this fault.
            pub fn exit(self) -> Exit {
                match self { $(Code::$name => Exit::$exit,)* }
            }

            /// The page from `docs/faults/`, in Markdown.
            pub fn page(self) -> &'static str {
                match self { $(Code::$name => include_str!(concat!("../../../../docs/faults/", $code, ".md")),)* }
            }
        }
    };
}

codes! {
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

    /// Another agent works on the state dir.
    StateDirBusy = "Q0900", Refused;
    /// The member that is to be started already runs.
    AlreadyRunning = "Q0901", Refused;
    /// The shim, which is to be the parent of etcd, does not work.
    ShimFailed = "Q0902", Failed;
    /// The program could not be executed.
    NotExecuted = "Q0903", Failed;
    /// The shim does not answer or does not follow.
    ShimSilent = "Q0904", Temporary;
    /// The program ended as soon as it was started.
    EndedAtOnce = "Q0905", Failed;
    /// A process does not end, not even by SIGKILL.
    NotEnding = "Q0906", Failed;
    /// etcd was taken over while it ran, and has no shim yet.
    TakenOver = "Q0907", CannotMeet;
    /// A setting that etcd does not have.
    EtcdKeyUnknown = "Q0915", ConfigInvalid;
    /// A setting of etcd that Quorate sets itself.
    EtcdKeyOurs = "Q0916", ConfigInvalid;
    /// A setting that this version of etcd does not have.
    EtcdKeyVersion = "Q0917", ConfigInvalid;
    /// A setting of etcd with a value of another form.
    EtcdValueInvalid = "Q0918", ConfigInvalid;
    /// etcd does not accept its settings.
    EtcdRefusedSettings = "Q0919", ConfigInvalid;
    /// The cluster has other members than etcd was told, or knows this one as started.
    EtcdRefusedCluster = "Q0920", Refused;
    /// The cluster file cannot be read as YAML.
    SpecUnreadable = "Q0930", ConfigInvalid;
    /// The cluster file says something that cannot be.
    SpecMistake = "Q0931", ConfigInvalid;
    /// The cluster file has a key that means nothing.
    SpecUnknownKey = "Q0932", ConfigInvalid;
    /// The list from the cluster file's source does not fit the file.
    SourceSize = "Q0933", Waiting;
    /// The ledger of this node cannot be read.
    LedgerUnreadable = "Q0935", Refused;
    /// It cannot be seen what the data dir holds.
    StartUnknown = "Q0940", Waiting;
    /// This member was removed from its cluster.
    StartRemoved = "Q0941", Refused;
    /// The data dir belongs to another member or cluster than the ledger says.
    StartForeign = "Q0942", Refused;
    /// A peer belongs to a newer generation of this cluster.
    StartOutdated = "Q0943", Refused;
    /// Data that this node's ledger knows nothing of.
    StartNotOurs = "Q0944", Refused;
    /// The data is damaged or gone, and there is no backup.
    StartNoBackup = "Q0945", Refused;
    /// The data is damaged, and the other members do not answer.
    StartAlone = "Q0946", Waiting;
    /// The data is gone, and the other members do not answer.
    StartDiskLost = "Q0947", Waiting;
    /// There is no data, but a backup of this cluster.
    StartBackupExists = "Q0948", Refused;
    /// Nodes disagree on what is to be founded.
    StartDisagree = "Q0949", Refused;
    /// Waiting for the cluster, its other members or its declaration.
    StartWaiting = "Q0950", Waiting;
    /// etcd ends again and again.
    CrashLoop = "Q0951", Temporary;
    /// A change of members cannot be proven to keep the quorum.
    StartUnproven = "Q0952", Waiting;
    /// Another change of members is under way.
    StartAnotherChange = "Q0953", Waiting;
    /// The independent check does not agree to a plan.
    PlanRefused = "Q0954", Refused;
    /// The last member does not leave.
    LastMember = "Q0955", Refused;
    /// A voter does not take part, and nothing is changed meanwhile.
    ChangeUnhealthy = "Q0956", Waiting;
    /// The nodes hold different cluster files.
    FilesDiffer = "Q0957", Waiting;
    /// The cluster is being torn down.
    TornDown = "Q0958", Refused;
    /// A step between two releases of etcd that is not possible.
    UpgradeRefused = "Q0959", Refused;
    /// An upgrade has stopped at a member.
    UpgradeStopped = "Q0960", Waiting;
    /// A port to listen on could not be taken.
    ListenFailed = "Q0961", CannotMeet;
    /// This etcd is older than the data.
    EtcdOlder = "Q0962", Refused;
    /// The etcd program has another version than the one that is wanted.
    EtcdOtherVersion = "Q0963", ConfigInvalid;
    /// etcd ended without having been asked to.
    EtcdEnded = "Q0964", Temporary;
    /// Another member answers at this member's address.
    AnotherAnswers = "Q0965", Refused;
    /// The running etcd has earlier settings (warning).
    SettingsChanged = "Q0966", CannotMeet;
    /// etcd takes no writes: its space is used up.
    NoSpace = "Q0967", CannotMeet;
    /// The database is close to its quota (warning).
    QuotaNear = "Q0968", CannotMeet;
    /// Backups have stopped for now (warning).
    BackupsStopped = "Q0969", Temporary;
    /// A cluster of several members, where one is meant.
    SeveralMembers = "Q0970", CannotMeet;
    /// The member is not the one in the cluster file.
    AdoptMismatch = "Q0971", Refused;
    /// A reset without `--yes`.
    ResetNotAsked = "Q0972", Usage;
    /// No agent answers.
    NoAgent = "Q0973", Unreachable;
    /// Something else runs in this member's place.
    StrangerRuns = "Q0974", Refused;
    /// Another node's agent does not answer.
    PeerSilent = "Q0975", Unreachable;
    /// A request was meant for another cluster.
    PeerOtherCluster = "Q0976", Refused;
    /// A request comes from an older generation of the cluster.
    PeerOutdated = "Q0977", Refused;
    /// An agent did not take a request.
    PeerRequest = "Q0978", CannotMeet;
    /// The founding still waits for nodes.
    BootstrapWaiting = "Q0979", Waiting;
    /// Two clusters live under one name (warning).
    SplitBrain = "Q0980", Refused;
    /// Members hold other data at the same revision (warning).
    HashesDiffer = "Q0981", Refused;
    /// Nodes run with other files, versions or settings than declared (warning).
    Drift = "Q0982", CannotMeet;
    /// A change of members would not be safe now.
    UnsafeChange = "Q0983", Waiting;
    /// A learner has not caught up yet.
    StillLearning = "Q0984", Waiting;
    /// The cluster's members are not the declared ones (warning).
    OtherMembers = "Q0985", CannotMeet;
    /// Leadership could not be handed over before a stop (warning).
    StillLeads = "Q0986", Temporary;
    /// A cluster file was meant to replace another one.
    FileStale = "Q0987", Refused;
    /// A living cluster cannot be changed like this.
    ChangeRefused = "Q0988", Refused;
    /// What would be done is not what was approved.
    PlanDiffers = "Q0989", Refused;

    /// A flag of `wrap` or `sidecar` that cannot be used.
    GardenerFlag = "Q0990", CannotMeet;
    /// The sidecar does not answer, or not as it should.
    SidecarSilent = "Q0991", CannotMeet;
    /// etcd's configuration, as mounted or as the sidecar gave it, cannot be used.
    GardenerConfig = "Q0992", CannotMeet;
    /// The volume belongs to another namespace or pod.
    WrongVolume = "Q0993", CannotMeet;
    /// The sidecar does not let etcd start.
    InitRefused = "Q0994", CannotMeet;
    /// A change of the cluster waits (warning).
    ChangeWaits = "Q0995", Waiting;
    /// A change that was begun is not done yet.
    ChangeUnfinished = "Q0996", Waiting;
    /// A change that nobody confirmed.
    ChangeUnconfirmed = "Q0997", Usage;
    /// The cluster file does not say which release of etcd runs.
    ReleaseUndeclared = "Q0998", ConfigInvalid;

    /// There is no certificate authority here, or not a whole one.
    CaMissing = "Q1000", CannotMeet;
    /// Another certificate authority is there already.
    CaOther = "Q1001", Refused;
    /// The passphrase of the issuing keys is wrong, or was not given.
    CaPassphrase = "Q1002", CannotMeet;
    /// A token, name or address that cannot stand in a certificate.
    CertificateName = "Q1003", ConfigInvalid;
    /// A file of requests or certificates that cannot be read.
    BundleUnreadable = "Q1004", ConfigInvalid;
    /// A request that is not signed.
    RequestRefused = "Q1005", Refused;
    /// Certificates that do not fit this node.
    InstallRefused = "Q1006", Refused;
    /// This node trusts another authority than the one that signed.
    InstallOtherCa = "Q1007", Refused;
    /// Someone else works on the folder of the certificates.
    CertificatesBusy = "Q1008", Temporary;
    /// The cluster file names no folder for certificates.
    NoCertificateDir = "Q1009", ConfigInvalid;
    /// A certificate, key or authority is missing or cannot be read.
    CertificateMissing = "Q1010", CannotMeet;
    /// A key does not belong to its certificate.
    CertificateKeyOther = "Q1011", CannotMeet;
    /// A certificate has ended, or does not hold yet.
    CertificateExpired = "Q1012", CannotMeet;
    /// A certificate is not of the authority that others trust.
    CertificateUntrusted = "Q1013", CannotMeet;
    /// A certificate does not cover an address.
    CertificateAddress = "Q1014", CannotMeet;
    /// A certificate may not be used in this way.
    CertificateUsage = "Q1015", CannotMeet;
    /// Peers and clients have one authority (warning).
    CertificateSharedCa = "Q1016", CannotMeet;
    /// Others can read a private key (warning).
    KeyExposed = "Q1017", CannotMeet;
    /// A certificate ends soon (warning).
    CertificateEnding = "Q1018", CannotMeet;
    /// Certificates could not be renewed (warning).
    RenewalFailed = "Q1019", Temporary;
    /// This etcd cannot ask peers for a name (warning).
    PeerNameUnchecked = "Q1020", CannotMeet;
    /// Another node's certificates were asked for.
    RenewalForeign = "Q1021", Refused;
    /// A change of trust that nobody trusted has signed, or an old one.
    TrustRefused = "Q1022", Refused;
    /// A rotation of authorities waits for nodes.
    RotationWaiting = "Q1023", Waiting;
    /// Another rotation is under way, or none.
    RotationOther = "Q1024", Refused;
    /// Nothing is known that could be revoked under this name.
    NothingToRevoke = "Q1025", CannotMeet;
    /// A list of revoked certificates cannot be used.
    RevocationsUnusable = "Q1026", CannotMeet;
    /// The file of a user's password cannot be used.
    PasswordFile = "Q1030", ConfigInvalid;
    /// Enabling auth now would lock the agent out.
    AuthLockOut = "Q1031", Refused;
    /// A private key would have been shown.
    LinkKeyExposed = "Q1032", Usage;
    /// A file of a link holds no certificate or key.
    LinkFile = "Q1033", CannotMeet;
    /// The certificate of an agent names another node than its own.
    AgentUnnamed = "Q1035", CannotMeet;
    /// Who asks an agent for a change is no node of the cluster.
    NotAdmitted = "Q1036", Refused;

    /// A quorum answers, or could be started: there is nothing to recover.
    RecoverQuorum = "Q1060", Refused;
    /// A node does not answer, and nobody said that it is dead.
    RecoverUnconfirmed = "Q1061", Refused;
    /// A node was called dead, and answers or is no member.
    RecoverAlive = "Q1062", Refused;
    /// There is nothing to recover from.
    RecoverNothing = "Q1063", Refused;
    /// The store of backups does not answer, and may reach further.
    RecoverStore = "Q1064", Refused;
    /// A recovery without the cluster's name.
    RecoverNotAsked = "Q1065", Usage;
    /// The data is not what the survey saw.
    RecoverChanged = "Q1066", Refused;
    /// The backup reaches further than the data that was to be recovered.
    RecoverBackupNewer = "Q1067", Refused;
    /// etcd did not come up on the copy.
    RecoverBoot = "Q1068", CannotMeet;
    /// A recovery is not finished yet.
    RecoverWaiting = "Q1069", Waiting;
    /// Another recovery has been ordered.
    RecoverOther = "Q1070", Refused;
    /// A node answers, and what it holds cannot be found out.
    RecoverUnknown = "Q1071", Refused;
    /// The copy does not hold what the log ends with.
    RecoverIncomplete = "Q1072", Refused;
    /// A list of revoked certificates was here, and is gone.
    RevocationsMissing = "Q1073", Refused;

    /// A strict box cannot be had on this machine.
    BoxRefused = "Q1100", CannotMeet;
    /// A part of a box could not be set up.
    BoxFailed = "Q1101", Failed;
    /// A program that no box can be made for: a script, or another machine's.
    BoxProgram = "Q1102", CannotMeet;
    /// A path or capability that a box was to have is not there.
    BoxPath = "Q1103", ConfigInvalid;
    /// The user that a box was to run as does not exist.
    BoxUser = "Q1104", ConfigInvalid;
    /// A part of a box is not, or not fully, enforced here.
    BoxWeaker = "Q1105", CannotMeet;
    /// The box that the cluster file asks for cannot be had here, so etcd is not started.
    EtcdBoxRefused = "Q1106", Refused;
    /// A file or directory cannot be given to the user of a box.
    NotGiven = "Q1107", CannotMeet;
    /// A member that joins cannot make its WAL dir in its box.
    BoxJoining = "Q1108", CannotMeet;
    /// What runs has another box than the cluster file asks for (warning).
    BoxEarlier = "Q1109", CannotMeet;
    /// etcd sees its certificates as they were when it was started (warning).
    BoxCertificates = "Q1110", CannotMeet;
    /// A process waits for what must be ready before it.
    ProcessWaits = "Q1111", Waiting;
    /// A hook of a process failed.
    HookFailed = "Q1112", Failed;
    /// A process ended, and is started again.
    ProcessEnded = "Q1113", Temporary;
    /// A process ends again and again.
    ProcessLoop = "Q1114", Temporary;
    /// A process is not well.
    ProcessUnhealthy = "Q1115", Temporary;
    /// A directory that was to be a state dir is open to others and holds other things.
    StateDirForeign = "Q1116", Refused;

    /// No process of that name is kept on this machine.
    ProcessUnknown = "Q1150", CannotMeet;
    /// The process does not run.
    ProcessNotRunning = "Q1151", CannotMeet;
    /// Several members of this machine have a process of that name.
    ProcessAmbiguous = "Q1152", Usage;
    /// `strace` is not installed.
    StraceMissing = "Q1153", CannotMeet;
    /// The kernel does not let us trace the process.
    TraceRefused = "Q1154", CannotMeet;
    /// A command could not be brought to where a process is.
    EnterFailed = "Q1155", Failed;
    /// The command is not there where the process is.
    CommandMissing = "Q1156", CannotMeet;
    /// The audit log could not be written, so nothing was done.
    AuditFailed = "Q1157", Failed;
    /// `etcdctl` is not installed, and what was asked for needs it.
    CtlMissing = "Q1158", CannotMeet;
    /// Nothing says which cluster or member is meant.
    NoCluster = "Q1159", ConfigInvalid;
    /// A command was not recorded, because no member is kept on this machine (warning).
    NotAudited = "Q1160", CannotMeet;
    /// A command runs with other rights than the process in some respect (warning).
    NotTheSame = "Q1161", CannotMeet;
    /// Tracing slows the process down (warning).
    TraceSlows = "Q1162", CannotMeet;

    /// Settings of a shared store that cannot be used.
    CoordinationInvalid = "Q1200", ConfigInvalid;
    /// A shared store did not answer.
    CoordinationSilent = "Q1201", Unreachable;
    /// A shared store said no.
    CoordinationRefused = "Q1202", CannotMeet;
    /// A value or transaction larger than the shared store takes.
    CoordinationTooLarge = "Q1203", CannotMeet;
    /// A key or name that a shared store cannot have.
    CoordinationKey = "Q1204", CannotMeet;
    /// More keys than can be read at once.
    CoordinationTooMuch = "Q1205", CannotMeet;
    /// Someone else holds the lock.
    LockTaken = "Q1206", Temporary;
    /// A lease, and what it held, is gone.
    LeaseGone = "Q1207", Temporary;
    /// An answer of a shared store that cannot be understood.
    CoordinationUnreadable = "Q1208", CannotMeet;
    /// The text is no join code.
    JoinCodeInvalid = "Q1210", ConfigInvalid;
    /// The door does not let this token in.
    JoinTurnedAway = "Q1211", Refused;
    /// Too many wrong tokens from one address.
    JoinTooOften = "Q1212", Temporary;
    /// Something speaks against a join.
    JoinObjections = "Q1213", Refused;
    /// Another change of peers goes on.
    PeersBusy = "Q1214", Temporary;
    /// The cluster file is not in the form that is edited.
    PeerFileEdit = "Q1215", CannotMeet;
    /// What a node is cannot be read.
    NodeStateUnreadable = "Q1216", Refused;
    /// The node belongs to no cluster.
    NodeBlank = "Q1217", ConfigInvalid;
    /// A person's file declares the cluster.
    NotByHand = "Q1218", Refused;
    /// Something objects to a detach.
    DetachVetoed = "Q1219", Refused;
    /// A node cannot be asked before its detach.
    DetachUnproven = "Q1220", Refused;
    /// There is no such peer.
    PeerUnknown = "Q1221", CannotMeet;
    /// GlusterD 2 left its files here.
    GlusterdLeft = "Q1222", Refused;
    /// Whoever invites does not answer.
    DoorSilent = "Q1223", Unreachable;
    /// A join was undone.
    JoinUndone = "Q1224", CannotMeet;
    /// The node is part of something else.
    NodeElsewhere = "Q1225", Refused;
    /// A request about peers that is not met.
    PeersRefused = "Q1226", Refused;
    /// A client node reaches no member, or has no port to listen on.
    NoUpstream = "Q1227", Unreachable;
    /// A node that is to have another role does not answer.
    RoleUnanswered = "Q1228", Unreachable;
    /// What speaks against making a server of a client.
    RoleObjections = "Q1229", Refused;
    /// Who the clients are stands in the cluster's store, which cannot be read.
    ClientsUnread = "Q1230", Unreachable;
    /// etcd is run by others, and this would change it.
    ExternalEtcd = "Q1237", Refused;
    /// GlusterD 2 ran this node as a proxy.
    GlusterdProxy = "Q1238", Refused;
    /// The issuing keys are not for who asks.
    KeysWithheld = "Q1239", Refused;
    /// Who is to leave is the only server with the issuing keys.
    KeysWouldGo = "Q1240", Refused;

    /// A PostgreSQL that cannot tell whose change it was.
    PgTooOld = "Q1250", CannotMeet;
    /// A data dir of PostgreSQL could not be made or looked at.
    PgInit = "Q1251", Failed;
    /// A data dir of PostgreSQL that is not this node's.
    PgForeignData = "Q1252", Refused;
    /// Data of another major version of PostgreSQL.
    PgDataVersion = "Q1253", Refused;
    /// A PostgreSQL server does not answer.
    PgSilent = "Q1255", Unreachable;
    /// A PostgreSQL server does not let us in.
    PgAuth = "Q1256", CannotMeet;
    /// A PostgreSQL server refuses a statement.
    PgSql = "Q1257", CannotMeet;
    /// Something in PostgreSQL took longer than its limit.
    PgTimeout = "Q1258", Temporary;
    /// A setting for PostgreSQL that cannot be used.
    PgConfig = "Q1259", ConfigInvalid;
    /// A password that not all programs read alike.
    PgPassword = "Q1260", ConfigInvalid;
    /// An extension that a server does not have.
    PgExtension = "Q1261", CannotMeet;
    /// A database that belongs to another group or node.
    PgOtherGroup = "Q1262", Refused;
    /// A link cannot be made without a copy.
    PgJoinInstead = "Q1263", Refused;
    /// A slot of an earlier life of a node.
    PgStaleSlot = "Q1264", Refused;
    /// What was written on one node has not come to another.
    PgNotReplicated = "Q1265", Temporary;
    /// A change of the schema waits for nodes or links.
    PgSchemaWaits = "Q1266", Temporary;
    /// Nodes have different texts for one version of the schema.
    PgSchemaDiffers = "Q1267", Refused;
    /// Nodes hold different rows.
    PgDiverged = "Q1268", CannotMeet;
    /// A change of the schema that PostgreSQL refuses.
    PgSchemaInvalid = "Q1269", CannotMeet;
    /// A replicated table without a primary key.
    PgNoKey = "Q1270", CannotMeet;
    /// A node with rows cannot join.
    PgNotEmpty = "Q1271", Refused;
    /// Another change of the group is not finished.
    PgChangeUnderWay = "Q1272", Temporary;
    /// The journal of the group cannot be read.
    PgJournal = "Q1273", CannotMeet;
    /// pgbouncer or haproxy does not answer.
    PgProxySilent = "Q1274", Unreachable;
    /// What a node has missed is no longer kept for it.
    PgSlotLost = "Q1275", Refused;
    /// The server of a member does not know a node that is to join, and would refuse its links.
    PgNotKnown = "Q1280", Waiting;

    /// No group of PostgreSQL servers, or no such node of it, is declared.
    PgNotDeclared = "Q1300", ConfigInvalid;
    /// The data dir of a PostgreSQL server is not this node's.
    PgDataRefused = "Q1301", Refused;
    /// A database is bound to another group.
    PgGroupsDiffer = "Q1302", Refused;
    /// The group was made without this node.
    PgNotMember = "Q1303", Refused;
    /// A bootstrap of PostgreSQL waits for somebody.
    PgWaiting = "Q1304", Waiting;
    /// A step of the bootstrap of PostgreSQL did not end in time.
    PgStepTimeout = "Q1305", Temporary;
    /// The fence of the write master could not be sure.
    PgFence = "Q1306", Failed;
    /// The write master could not be moved.
    PgSwitchover = "Q1307", Temporary;
    /// Pooler or proxy cannot be brought up.
    PgProxyFailed = "Q1308", Failed;
    /// What the store holds about a group cannot be read.
    PgRecords = "Q1309", CannotMeet;
    /// The write master cannot leave the group.
    PgIsWriter = "Q1310", Refused;
    /// The agent of a node ended right after it was started.
    PgAgentEnded = "Q1311", Failed;
}

impl Code {
    /// Finds a code by its number, in any case, with or without the `Q`.
    pub fn parse(text: &str) -> Option<Code> {
        let digits = text.trim().trim_start_matches(['Q', 'q']);
        Code::ALL.iter().copied().find(|code| &code.as_str()[1..] == digits)
    }

    /// The page's headline without the code.
    pub fn title(self) -> &'static str {
        let headline = self.page().lines().next().unwrap_or_default();
        headline.split_once(": ").map_or(headline, |(_, title)| title)
    }
}

impl serde::Serialize for Code {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests;
