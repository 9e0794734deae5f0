//! From "every node has the table" to "every link has it".
//!
//! **Invariant:** a table takes no writes of sessions before every link carries it: what is written earlier is never sent.

use std::time::Duration;

use futures_util::future::join_all;
use quorate_faults::{Code, Fault};
use tokio::time::Instant;

use crate::group::Seat;
use crate::sql::ident;

/// Has every link of the seats look again which tables are published.
pub async fn refresh(seats: &[Seat]) -> Result<(), Fault> {
    join_all(seats.iter().map(refresh_one)).await.into_iter().collect()
}

async fn refresh_one(seat: &Seat) -> Result<(), Fault> {
    // Only those that lack a table: it costs a question to the other side.
    let sql = "SELECT s.subname::text FROM pg_catalog.pg_subscription s WHERE s.subenabled AND s.subdbid = \
               (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()) \
               AND EXISTS (SELECT FROM (SELECT relation FROM mesh.tables UNION ALL SELECT 'mesh_sync.tokens'::regclass) t \
               WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_subscription_rel r WHERE r.srsubid = s.oid AND r.srrelid = t.relation))";
    for name in seat.client.values::<String>(sql, &[]).await? {
        seat.client
            .batch(&format!("ALTER SUBSCRIPTION {} REFRESH PUBLICATION WITH (copy_data = false)", ident(&name)))
            .await?;
    }
    Ok(())
}

/// Waits until every link of the seats carries every table, and then opens the tables.
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
                .hint("until then the new tables take no writes; call it again when the links are well")
                .caused_by(lacks));
            }
            // A link that an error had stopped was not asked before.
            refresh_one(seat).await?;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    for seat in seats {
        seat.client.execute("DELETE FROM mesh.pending", &[]).await?;
    }
    Ok(())
}
