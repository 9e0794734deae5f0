//! From "every node has the table" to "every link has it".
//!
//! **Invariant:** a table takes no writes of sessions before every link carries it: what is written earlier is never sent.

use std::time::Duration;

use quorate_faults::{Code, Fault};
use tokio::time::Instant;

use crate::group::Seat;
use crate::sql::{Client, ident};

/// Has the subscriptions of a server take the tables that they lack. `client`: to the server itself, as its superuser, since only the
/// owner of a subscription may do this and no function can. Returns the subscriptions that took some.
pub async fn refresh(client: &Client) -> Result<Vec<String>, Fault> {
    let there: bool = client.value("SELECT pg_catalog.to_regclass('mesh.tables') IS NOT NULL", &[]).await?;
    // Every table that a link may lack is kept closed until none does: this is all that is read most of the time.
    if !there || !client.value::<bool>("SELECT EXISTS (SELECT FROM mesh.pending)", &[]).await? {
        return Ok(Vec::new());
    }
    // Only those that lack a table: it costs a query to the other side. A server without workers connects to no other node.
    let sql = "SELECT s.subname::text FROM pg_catalog.pg_subscription s WHERE s.subenabled AND s.subdbid = \
               (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()) \
               AND pg_catalog.current_setting('max_logical_replication_workers') <> '0' \
               AND EXISTS (SELECT FROM (SELECT relation FROM mesh.tables UNION ALL SELECT 'mesh_sync.tokens'::regclass) t \
               WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_subscription_rel r WHERE r.srsubid = s.oid AND r.srrelid = t.relation))";
    let names: Vec<String> = client.values(sql, &[]).await?;
    for name in &names {
        client
            .batch(&format!("ALTER SUBSCRIPTION {} REFRESH PUBLICATION WITH (copy_data = false)", ident(name)))
            .await?;
    }
    Ok(names)
}

/// Waits until every link of the seats carries every table, and then opens the tables. Each node's agent has its own links take them
/// ([`refresh`]).
pub async fn apply_gate(seats: &[Seat], limit: Duration) -> Result<(), Fault> {
    let begun = Instant::now();
    for seat in seats {
        loop {
            let sql = "SELECT s.subname::text || ' lacks ' || t.relation::regclass::text FROM pg_catalog.pg_subscription s \
                       CROSS JOIN mesh.tables t LEFT JOIN pg_catalog.pg_subscription_rel r ON r.srsubid = s.oid AND r.srrelid = t.relation \
                       WHERE r.srsubstate IS DISTINCT FROM 'r' AND s.subdbid = (SELECT oid FROM pg_catalog.pg_database \
                       WHERE datname = pg_catalog.current_database()) ORDER BY 1 LIMIT 1";
            let Some(lacks) = seat.client.values::<String>(sql, &[]).await?.pop() else { break };
            if begun.elapsed() >= limit {
                return Err(Fault::new(
                    Code::PgSchemaWaits,
                    format!("not every link of `{}` carries every table after {limit:?}", seat.member.name),
                )
                .hint("until then the new tables take no writes; each node's agent has its links take them: does it run? Call it again when the links are well")
                .caused_by(lacks));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    for seat in seats {
        seat.client.execute("DELETE FROM mesh.pending", &[]).await?;
    }
    Ok(())
}
