//! Takes the steps about an old writer: stops and restarts subscriptions, reads the own log, compares rows, replaces data.
//!
//! **Rule:** what is done was decided by `plan/postgres/returning.rs`; each function may be repeated.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quorate_faults::{Code, Fault};
use quorate_plan::postgres::{self as plan, Diverged, Records, UnsentNow};
use quorate_postgres::group;
use quorate_postgres::server;
use quorate_postgres::sql::{Client, Limits};
use tracing::{info, warn};

use super::execute::{blocking, stop_server, write};
use super::here::{DATABASE, Here};
use super::life::Shared;
use super::observe;
use crate::turn::{in_words, stamp};

/// How long a comparison of all rows may take in one statement.
const COMPARE: Duration = Duration::from_secs(60);
const CONNECT: Duration = Duration::from_secs(3);

fn number(records: &Records, node: &str) -> Result<u16, Fault> {
    records.number(node).ok_or_else(|| Fault::new(Code::PgNotMember, format!("`{node}` is no member of the group")))
}

/// How far this node has applied what others wrote.
#[derive(Debug, Default)]
pub(super) struct Applied {
    /// Whether the server answered.
    pub(super) known: bool,
    /// Of the last writer.
    pub(super) last: u64,
    /// Whether nothing more of the last writer is applied.
    pub(super) link_held: bool,
    /// Of each member.
    pub(super) positions: BTreeMap<String, u64>,
}

/// How far this node has applied what the other members wrote, the last writer among them.
pub(super) async fn applied_here(client: &Client, records: &Records) -> Result<Applied, Fault> {
    let last = records.last_writer.as_ref().map(|(last, _)| last.node.clone()).unwrap_or_default();
    let nodes = records.group.as_ref().map(|(group, _)| group.nodes.clone()).unwrap_or_default();
    let Some(me) = group::myself(client).await? else { return Ok(Applied::default()) };
    let from = nodes.get(&last).copied().filter(|id| *id != me.id);
    // Looked at first: what is applied afterwards would be missing from the positions.
    let link_held = match from {
        Some(from) => group::is_held(client, from).await?,
        None => true,
    };
    let position = group::position(client).await?;
    let applied = |id: &u16| position.applied.get(id).copied();
    let positions = nodes.iter().filter_map(|(name, id)| Some((name.clone(), applied(id)?))).collect();
    let last = from.as_ref().and_then(applied).unwrap_or_default();
    Ok(Applied { known: true, last, link_held, positions })
}

/// Stops applying the changes of a node.
pub(super) async fn hold(shared: &Shared, from: &str, order: group::Order) -> Result<(), Fault> {
    let id = number(&observe::records(&shared.store).await?, from)?;
    let client = shared.here.own(DATABASE, shared.here.limits()).await?;
    group::hold_link(&client, id, order).await?;
    info!(from, "stopped applying its changes until it is known what it holds");
    Ok(())
}

/// Applies the changes of a node again, if nothing is on record against it now.
pub(super) async fn release(shared: &Shared, from: &str) -> Result<(), Fault> {
    let records = observe::records(&shared.store).await?;
    if records.is_out(from) {
        return Ok(());
    }
    let client = shared.here.own(DATABASE, shared.here.limits()).await?;
    group::release_link(&client, number(&records, from)?).await?;
    info!(from, "applies its changes again");
    Ok(())
}

/// What the own log holds beyond the cutoff of this node.
pub(super) async fn read_own_log(here: &Here, records: &Records) -> UnsentNow {
    let me = here.name();
    let Some((cutoff, _)) = records.cutoff(me).filter(|_| records.divergence(me).is_none()) else {
        return UnsentNow::NotRead;
    };
    let Some(writer) = records.number(&cutoff.writer) else {
        return UnsentNow::Unknown(format!("`{}` is no member any more", cutoff.writer));
    };
    // A log that keeps much takes its time: the connection of other looks would not wait for it.
    let read = async {
        let client = here.own(DATABASE, here.limits()).await?;
        group::unsent(&client, writer, cutoff.applied).await
    };
    match read.await {
        Ok(unsent) => UnsentNow::Known(unsent),
        Err(fault) => UnsentNow::Unknown(in_words(&fault)),
    }
}

/// Removes the cutoff of this node. The log is read again before: what was decided is no older than this.
pub(super) async fn clear_cutoff(shared: &Shared, epoch: u64) -> Result<(), Fault> {
    let me = shared.here.name();
    let records = observe::records(&shared.store).await?;
    if records.cutoff(me).is_none_or(|(cutoff, _)| cutoff.epoch != epoch) {
        return Ok(());
    }
    let proven =
        matches!(read_own_log(&shared.here, &records).await, UnsentNow::Known(unsent) if unsent.transactions == 0);
    match plan::clear_cutoff(&records, me).filter(|_| proven) {
        Some(txn) => write(shared, &txn).await,
        None => Ok(()),
    }
}

/// Records what this node holds that the writer does not have.
pub(super) async fn note_diverged(shared: &Shared, diverged: &Diverged) -> Result<(), Fault> {
    let records = observe::records(&shared.store).await?;
    write(shared, &plan::note_diverged(&records, shared.here.name(), diverged)).await?;
    let (origin, transactions) = (&diverged.origin, diverged.transactions);
    warn!(code = %Code::PgDivergedWriter, origin, transactions, "this node holds changes that the writer does not have");
    Ok(())
}

/// Compares the rows of this node with those of the writer, and records how many differ. A comparison that fails is tried again.
pub(super) async fn compare_rows(shared: &Arc<Shared>) -> Result<(), Fault> {
    let me = shared.here.name();
    let records = observe::records(&shared.store).await?;
    let (Some((diverged, _)), Some((writer, _))) = (records.divergence(me), &records.writer) else { return Ok(()) };
    let compared = async {
        let limits = Limits { connect: CONNECT, statement: COMPARE, lock: CONNECT };
        let own = shared.here.own_mesh(limits).await?;
        let writer = shared.here.member(&writer.node, number(&records, &writer.node)?);
        let writer = writer.ok_or_else(|| Fault::new(Code::PgNotDeclared, "the writer is not declared"))?;
        let other = Client::connect(&shared.here.place(&writer)?, limits).await?;
        group::count_differing(&own, &other).await
    };
    match compared.await {
        Ok(rows) => {
            let diverged = Diverged { rows: Some(rows), ..diverged.clone() };
            write(shared, &plan::note_diverged(&records, me, &diverged)).await
        }
        Err(fault) => {
            warn!(code = %fault.code(), "rows were not compared with the writer: {}", in_words(&fault));
            Ok(())
        }
    }
}

/// Renames the data dir, with the server stopped. Nothing is deleted.
pub(super) async fn replace_data(shared: &Shared) -> Result<(), Fault> {
    stop_server(&shared.here, "the agent: its data is replaced").await?;
    let here: Here = shared.here.clone();
    let stamp = stamp();
    let new = blocking(move || server::replace_data(&here.data_dir(), &here.mark(), &stamp)).await?;
    if let Some(new) = new {
        warn!(renamed_to = %new.display(), "the data dir was renamed; nothing was deleted");
    }
    Ok(())
}
