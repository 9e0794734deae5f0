//! Codes of agents and clusters: Q0900 to Q1099.

/// Appends its rows to those before, and passes all of them on.
macro_rules! cluster {
    ($next:ident $last:ident $($rows:tt)*) => {
        $next! { $last $($rows)*
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
        }
    };
}
