//! The rows that a new control database begins with.
//!
//! **Invariant:** their keys are computed from what they are, so that two nodes that both insert them insert the same rows.

use quorate_faults::Fault;

use crate::sql::Client;

/// What kind of cluster it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClusterRole {
    /// It knows all databases of all clusters.
    Manager,
    /// It holds databases.
    Service,
}

impl ClusterRole {
    fn name(self) -> &'static str {
        match self {
            ClusterRole::Manager => "manager",
            ClusterRole::Service => "service",
        }
    }
}

/// What the rows are made with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeedValues {
    /// The cluster.
    pub cluster_id: String,
    /// Its kind.
    pub role: ClusterRole,
    /// How its databases are served: `mesh`.
    pub cluster_service: String,
    /// Where backups go.
    pub backups_path: String,
    /// The port for backups.
    pub port: u16,
    /// The program that makes them.
    pub pg_dump: String,
    /// The group that manages it, where it is a service.
    pub manager: Option<String>,
}

/// Action, data, where it runs, for which kind of cluster, how often.
const SCHEDULES: [(&str, &str, &str, &str, &str); 18] = [
    ("Vacuum", "tasks.tasks", "read", "all", "5 minutes"),
    ("Vacuum", "tasks.tasks", "write", "all", "5 minutes"),
    ("DeleteBackupHistory", "", "read", "all", "1 hour"),
    ("BackupDatabase", "rdpg", "read", "all", "1 hour"),
    ("BackupAllDatabases", "", "read", "manager", "1 hour"),
    ("EnforceFileRetention", "", "read", "all", "1 hour"),
    ("EnforceFileRetention", "", "write", "all", "1 hour"),
    ("EnforceRemoteFileRetention", "", "read", "all", "1 hour"),
    ("FindFilesToCopyToS3", "", "read", "all", "5 minutes"),
    ("FindFilesToCopyToS3", "", "write", "all", "5 minutes"),
    ("ClearStuckTasks", "", "read", "all", "1 hour"),
    ("ClearStuckTasks", "", "write", "all", "1 hour"),
    ("ReconcileAvailableDatabases", "", "read", "manager", "1 minute"),
    ("ReconcileAllDatabases", "", "read", "manager", "5 minutes"),
    ("ScheduleNewDatabaseBackups", "", "write", "service", "1 minute"),
    ("PrecreateDatabases", "", "write", "service", "1 minute"),
    ("DecommissionDatabases", "", "write", "service", "15 minutes"),
    ("Reconfigure", "pgbouncer", "any", "service", "1 hour"),
];

/// What needs a bucket: it is switched on by whoever configures one.
const NEED_BUCKET: [&str; 2] = ["EnforceRemoteFileRetention", "FindFilesToCopyToS3"];

/// Inserts what is not there, in one transaction. Returns how many rows.
pub async fn seed_v1(client: &Client, values: &SeedValues) -> Result<u64, Fault> {
    client.batch("BEGIN").await?;
    match insert(client, values).await {
        Ok(rows) => client.batch("COMMIT").await.map(|()| rows),
        Err(fault) => {
            // What failed left its transaction open.
            client.batch("ROLLBACK").await?;
            Err(fault)
        }
    }
}

async fn insert(client: &Client, values: &SeedValues) -> Result<u64, Fault> {
    let mut rows = 0;
    for (action, data, node_type, role, frequency) in SCHEDULES {
        if role != "all" && role != values.role.name() {
            continue;
        }
        let sql = "INSERT INTO tasks.schedules (id, cluster_id, cluster_service, role, action, data, node_type, frequency, enabled) \
                   VALUES (md5(concat_ws('/', 'schedule', $1::text, $2::text, $3::text, $4::text))::uuid, $1, $5, $6, $2, $3, $4, $7::text::interval, $8) \
                   ON CONFLICT (id) DO NOTHING";
        let cluster = (&values.cluster_id, &values.cluster_service);
        let enabled = !NEED_BUCKET.contains(&action);
        rows += client
            .execute(sql, &[cluster.0, &action, &data, &node_type, cluster.1, &role, &frequency, &enabled])
            .await?;
    }
    let config = [
        ("BackupsPath", values.backups_path.clone()),
        ("BackupPort", values.port.to_string()),
        ("pgDumpBinaryLocation", values.pg_dump.clone()),
        ("defaultDaysToKeepFileHistory", "180".to_owned()),
        ("Role", values.role.name().to_owned()),
    ];
    // By this a service finds the group that knows of all databases.
    let manager = values.manager.iter().map(|manager| ("ManagerClusterID", manager.clone()));
    for (key, value) in config.into_iter().chain(manager) {
        let sql = "INSERT INTO rdpg.config (cluster_id, key, value) VALUES ($1, $2, $3) ON CONFLICT (cluster_id, key) DO NOTHING";
        rows += client.execute(sql, &[&values.cluster_id, &key, &value]).await?;
    }
    // The same on every rebuild: whoever remembers a catalog must find it again.
    let service = "INSERT INTO cfsb.services (id, service_id, name, description) VALUES (md5('quorate/service/postgres')::uuid, \
                   md5('quorate/service/postgres')::uuid::text, 'postgres', 'Reliable PostgreSQL service') ON CONFLICT DO NOTHING";
    rows += client.execute(service, &[]).await?;
    let plans = [
        ("shared-nr", "postgresql", "A PostgreSQL database with no replication on a shared server."),
        ("shared", "mesh", "A reliable PostgreSQL database on a shared server."),
    ];
    for (name, kind, description) in plans {
        let sql = "INSERT INTO cfsb.plans (id, service_id, plan_id, cluster_service, name, description) VALUES \
                   (md5('quorate/plan/' || $1::text)::uuid, md5('quorate/service/postgres')::uuid::text, \
                   md5('quorate/plan/' || $1::text)::uuid::text, $2, $1, $3) ON CONFLICT DO NOTHING";
        rows += client.execute(sql, &[&name, &kind, &description]).await?;
    }
    Ok(rows)
}
