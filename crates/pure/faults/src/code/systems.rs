//! Codes of sandboxes, operator commands, peers, PostgreSQL and newer ones of all kinds: Q1100 and above.

/// Appends its rows to those before, and passes all of them to the table itself.
macro_rules! systems {
    ($last:ident $($rows:tt)*) => {
        $last! { $($rows)*
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

        /// The file system that holds the data of a member is not mounted.
        DataNotMounted = "Q1401", Waiting;
        /// The directory of the only member is empty and in another file system than its data was.
        DataElsewhere = "Q1402", Refused;
        /// Either the data dir or the separate WAL dir of the only member holds nothing.
        DataHalf = "Q1403", Refused;
        /// There is no empty data dir to accept.
        NothingToAccept = "Q1404", CannotMeet;
        /// Another machine runs as this node.
        AnotherMachine = "Q1405", Waiting;
        /// Another machine starts with the name of this node.
        SecondMachine = "Q1406", Waiting;
        /// Whether the member of this node runs on another machine is not known.
        MachineUnknown = "Q1407", Waiting;
        /// The data was put back to an older copy, and no quorum of the other members answers.
        RolledBackAlone = "Q1410", Waiting;
        /// The data of the only member was put back to an older copy.
        RolledBackOnly = "Q1411", Refused;
        /// A running member was started on data that had been put back to an older copy.
        RolledBackRuns = "Q1412", Refused;
        /// A member whose agent is silent answers at the URLs of its etcd: a quorum may serve.
        RecoverMemberAnswers = "Q1420", Refused;
        /// A member is silent, and the operator did not state that its machine is off.
        RecoverUnfenced = "Q1421", Refused;
        /// Newer backups appear in the store: a quorum may serve.
        RecoverStoreGrows = "Q1422", Refused;
        /// The store has seen this generation of the cluster, or a newer one.
        GenerationClaimed = "Q1423", Refused;
        /// Two recoveries made the same generation, and this node is of the one that lost.
        GenerationsFork = "Q1424", Refused;
        /// A store of backups is bound to another cluster.
        StoreBound = "Q1425", Refused;
        /// A store holds backups of several clusters, and none was named.
        LineageNotNamed = "Q1426", Refused;
        /// A store holds no backup of the cluster that was named.
        LineageMissing = "Q1427", Refused;
        /// A restore would end below a revision that clients have seen.
        RestoreGoesBack = "Q1428", Refused;
        /// The clock is ahead of the store's, so that nothing is removed by age.
        ClockAhead = "Q1429", Refused;
        /// A certificate has ended, and may be renewed with and nothing else.
        RenewalOnly = "Q1430", Refused;
        /// The clocks of two nodes are far apart.
        ClocksApart = "Q1431", CannotMeet;
        /// The damaged data of the only member holds more than the newest backup.
        StartBackupOlder = "Q1435", Refused;
        /// The WAL holds entries that the release of an upgrade cannot read.
        UpgradeOldEntries = "Q1436", Refused;
        /// A clock that this one has to be compared with cannot be read, so that nothing is removed by age.
        ClockUnknown = "Q1437", Refused;
        /// Fewer voters take part than a quorum needs.
        QuorumLost = "Q1440", Unreachable;
        /// A new member does not become a voter (warning).
        LearnerStuck = "Q1441", Waiting;
        /// etcd has found that the data of a member is damaged (warning).
        CorruptAlarm = "Q1442", Refused;
        /// No node holds the keys that certificates are renewed with (warning).
        NobodyRenews = "Q1443", CannotMeet;
        /// etcd does not start: it holds other data than its peers.
        CorruptAtStart = "Q1444", Refused;
        /// A node holds changes that the writer of a PostgreSQL mesh does not have, and stays out.
        PgDivergedWriter = "Q1445", Refused;
        /// Whether an old writer holds changes that the writer does not have cannot be read.
        PgUnproven = "Q1446", Waiting;
        /// A node has applied more of an old writer than the writer has (warning).
        PgAhead = "Q1447", CannotMeet;
        /// A node lacks changes of a former writer that the writer has, and takes the rows of the writer.
        PgLacksRows = "Q1448", Waiting;
        /// A take-over of backups that the cluster file orders was carried out before (warning).
        TakeOverDone = "Q1455", CannotMeet;

        /// A received cluster file names another source of members than this node's own file.
        ReceivedSource = "Q1460", Refused;

        /// An agent in clear text has an address that other machines reach.
        AgentExposed = "Q1470", ConfigInvalid;
        /// Other users may read or replace the token file of an agent in clear text.
        AgentTokenUnsafe = "Q1471", ConfigInvalid;
        /// The token of an agent in clear text cannot be read, or was not proved.
        AgentTokenRefused = "Q1472", Refused;

        /// The hash chain of an audit log does not hold.
        AuditBroken = "Q1480", CannotMeet;
        /// The cluster file cannot be read, or is far too large.
        ClusterFileUnreadable = "Q1481", ConfigInvalid;

        /// A record of a peer-managed cluster is not vouched for by a server (warning).
        RecordRefused = "Q1495", Refused;
        /// An agent or a record changes more of a cluster file than its members.
        FileOtherChange = "Q1496", Refused;
        /// A server is added to three or more without the word of a second server.
        Uncountersigned = "Q1497", Refused;
        /// A join waits for the word of a second server.
        ApprovalAwaited = "Q1498", Waiting;
        /// A node cannot be approved on this server.
        ApprovalRefused = "Q1499", Refused;
        /// A request needs the certificate of an operator with another role.
        OperatorNeeded = "Q1500", Refused;
        /// A cluster file that was sent is not signed by an operator.
        FileUnsigned = "Q1501", Refused;
        /// The signature of a cluster file does not count on this node.
        FileSignature = "Q1502", Refused;
        /// A node has no operators' authority, so that certificates of nodes may give orders (warning).
        OperatorsUnknown = "Q1503", CannotMeet;
        /// The join code is for another node.
        JoinOtherNode = "Q1505", Refused;
        /// A node with a join code waits for approval.
        JoinAwaitsApproval = "Q1506", Waiting;
        /// The second secret of an invitation is wrong.
        JoinSecretWrong = "Q1507", Refused;
        /// No such node waits for approval.
        NothingToApprove = "Q1508", CannotMeet;
        /// The other side does not prove a short join code.
        JoinUnproven = "Q1509", Refused;
        }
    };
}
