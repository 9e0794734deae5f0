//! Links that a row has stopped which is there already: what stops them, and how they go on.
//!
//! **Invariant:** a transaction is left out only if it was tried again and stopped the link again, and a row was found that is in
//! its way; its rows are written down in the transaction that says so. What comes behind it waits at its node all the while.

use std::collections::BTreeMap;
use std::time::Duration;

use quorate_faults::{Code, Fault};
use quorate_plan::postgres::{Deed, RowChange, Transaction, Value, first_after, position_text};
use tokio::time::Instant;

use super::repair::{Source, known, undecided};
use crate::group::{PUBLICATION, Seat, link_name, myself, observe_links, position, revive_link};
use crate::sql::{Client, ident, literal, state_of};

/// A link that stops again and again is enabled for a moment at each attempt; so long it is looked at.
const WATCH: Duration = Duration::from_secs(1);
/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(30);
/// How long a slot may be held by an attempt of the link.
const HELD: Duration = Duration::from_secs(10);
/// A link that is behind may meet what others have met a moment later.
const ROUNDS: usize = 5;
/// How often a link may stop at what it was told to leave out.
const TRIES: u32 = 3;
/// Changes that are asked for at a time; transactions come whole, and most are small.
const ASKED: [i32; 3] = [1, 2_000, 200_000];

/// A link that an error has stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stopped {
    /// The node that gets nothing.
    pub node: String,
    /// The node whose changes wait.
    pub from: String,
    /// By which position the transaction is known that stops it; `None`: none waits that was not applied.
    pub finish: Option<String>,
    /// The first row of it that cannot be there; `None`: it was not such a row.
    pub conflict: Option<Conflict>,
}

/// Two rows that cannot both be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The table.
    pub table: String,
    /// The unique index that says so.
    pub constraint: String,
    /// Which values both have, such as `(name)=(a)`.
    pub key: String,
    /// The row that comes, as JSON.
    pub comes: String,
    /// The row that is there, as JSON.
    pub there: String,
    lww: bool,
    change: usize,
}

impl Conflict {
    /// What the server says of it.
    pub fn error(&self) -> String {
        format!("duplicate key value violates unique constraint \"{}\": {} is there already", self.constraint, self.key)
    }
}

/// What became of a link that was stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Way {
    /// The node that got nothing.
    pub node: String,
    /// The node whose changes waited.
    pub from: String,
    /// The transactions that were left out, by their positions.
    pub skipped: Vec<String>,
    /// How many of their rows were written down.
    pub rows: u64,
    /// The lines in the log of conflicts, by table.
    notes: BTreeMap<String, Vec<i64>>,
}

/// Links among the seats that errors have stopped, and by what. Looks only.
pub async fn stopped(seats: &[Seat]) -> Result<Vec<Stopped>, Fault> {
    let mut found = Vec::new();
    for (from, to) in stopped_links(seats).await? {
        let waits = waiting(from, to).await?;
        let conflict = match &waits {
            Some(transaction) => conflict_of(&to.client, transaction).await?,
            None => None,
        };
        found.push(Stopped {
            node: to.member.name.clone(),
            from: from.member.name.clone(),
            finish: waits.map(|transaction| position_text(transaction.finish)),
            conflict,
        });
    }
    Ok(found)
}

/// The links that errors have stopped: whence, whither.
async fn stopped_links(seats: &[Seat]) -> Result<Vec<(&Seat, &Seat)>, Fault> {
    let mut found: Vec<(&Seat, &Seat)> = Vec::new();
    let begun = Instant::now();
    loop {
        let mut doubtful = false;
        for to in seats {
            for (id, link) in observe_links(to).await?.incoming {
                let Some(from) = seats.iter().find(|seat| seat.member.id == id) else { continue };
                let known = found.iter().any(|(a, b)| (a.member.id, b.member.id) == (id, to.member.id));
                if link.paused || known {
                    continue;
                }
                if !link.enabled {
                    found.push((from, to));
                }
                doubtful |= link.enabled && (!link.running || link.errors > 0);
            }
        }
        if !doubtful || begun.elapsed() >= WATCH {
            return Ok(found);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// The next transaction that a link has to apply, from the slot that keeps it.
async fn waiting(from: &Seat, to: &Seat) -> Result<Option<Transaction>, Fault> {
    let applied = position(&to.client).await?.applied.get(&from.member.id).copied().unwrap_or_default();
    let sql = "SELECT data FROM pg_catalog.pg_logical_slot_peek_binary_changes($1::text::name, NULL, $2, 'proto_version', '1', \
               'publication_names', $3, 'origin', 'none')";
    let (name, begun) = (link_name(from.member.id, to.member.id), Instant::now());
    for asked in ASKED {
        let messages: Vec<Vec<u8>> = loop {
            match from.client.values(sql, &[&name, &asked, &PUBLICATION]).await {
                Ok(messages) => break messages,
                // The link holds it for another attempt.
                Err(fault) if state_of(&fault).as_deref() == Some("55006") && begun.elapsed() < HELD => {
                    tokio::time::sleep(LOOK_EVERY).await;
                }
                Err(fault) => return Err(fault),
            }
        };
        let found = first_after(messages.iter().map(Vec::as_slice), applied).map_err(|why| {
            Fault::new(
                Code::PgSql,
                format!("cannot understand what `{}` keeps for `{}`", from.member.name, to.member.name),
            )
            .caused_by(why)
        })?;
        if found.is_some() || messages.len() < usize::try_from(asked).unwrap_or_default() {
            return Ok(found);
        }
    }
    let what = format!("`{}` keeps too much for `{}` to look through", from.member.name, to.member.name);
    Err(Fault::new(Code::PgTimeout, what).hint("let the link apply what it can first; `quorate pg status` shows it"))
}

/// A table as the node has it that changes come to.
#[derive(Debug, Default)]
struct Table {
    name: String,
    key: Vec<String>,
    lww: bool,
    columns: Vec<(String, String)>,
    unique: Vec<Unique>,
}

#[derive(Debug)]
struct Unique {
    name: String,
    primary: bool,
    predicate: String,
    nulls_too: bool,
    words: Vec<String>,
}

async fn table_of(client: &Client, change: &RowChange) -> Result<Option<Table>, Fault> {
    let sql = "SELECT format('%I.%I', schema, name), lww, ARRAY(SELECT quote_ident(a.attname) FROM pg_catalog.pg_index i \
               JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey) \
               WHERE i.indrelid = relation AND i.indisprimary ORDER BY a.attnum) \
               FROM mesh.tables WHERE keyed AND schema = $1::text AND name = $2::text";
    let Some(row) = client.opt(sql, &[&change.schema, &change.table]).await? else { return Ok(None) };
    let mut table = Table {
        name: client.read(&row, 0)?,
        lww: client.read(&row, 1)?,
        key: client.read(&row, 2)?,
        ..Table::default()
    };
    let sql = "SELECT attname::text, pg_catalog.format_type(atttypid, atttypmod) FROM pg_catalog.pg_attribute \
               WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum";
    for row in client.query(sql, &[&table.name]).await? {
        table.columns.push((client.read(&row, 0)?, client.read(&row, 1)?));
    }
    let sql = "SELECT i.indexrelid::regclass::text, i.indisprimary, coalesce(pg_catalog.pg_get_expr(i.indpred, i.indrelid), 'true'), \
               i.indnullsnotdistinct, ARRAY(SELECT pg_catalog.pg_get_indexdef(i.indexrelid, n, true) \
               FROM generate_series(1, i.indnkeyatts) n ORDER BY n) FROM pg_catalog.pg_index i \
               WHERE i.indrelid = $1::text::regclass AND i.indisunique AND i.indisvalid ORDER BY i.indexrelid";
    for row in client.query(sql, &[&table.name]).await? {
        table.unique.push(Unique {
            name: client.read(&row, 0)?,
            primary: client.read(&row, 1)?,
            predicate: client.read(&row, 2)?,
            nulls_too: client.read(&row, 3)?,
            words: client.read(&row, 4)?,
        });
    }
    Ok(Some(table))
}

impl Table {
    /// The row that comes, as a row of this table.
    fn comes(&self, change: &RowChange) -> String {
        let value = |name: &str| change.columns.iter().find(|(column, _)| column == name).map(|(_, value)| value);
        let column = |(name, kind): &(String, String)| {
            let text = match value(name) {
                Some(Value::Text(text)) => literal(text),
                Some(Value::Null | Value::Unchanged) | None => "NULL".to_owned(),
            };
            format!("CAST({text} AS {kind}) AS {}", ident(name))
        };
        format!("(SELECT {})", self.columns.iter().map(column).collect::<Vec<_>>().join(", "))
    }

    /// Asks for a row that is there and shares with the one that comes what no two may share.
    fn question(&self, unique: &Unique, comes: &str, deed: Deed) -> Option<String> {
        let same_key = match (unique.primary, deed) {
            // Of two versions of a row the rule of the table decides; a change has found its row.
            (true, Deed::Insert) if !self.lww => "true",
            (true, _) => return None,
            (false, _) => "l.mesh_key <> r.mesh_key",
        };
        let names: Vec<String> = (0..unique.words.len()).map(|at| format!("mesh_{at}")).collect();
        let named = |word: (&String, &String)| format!("({}) AS {}", word.0, word.1);
        let words = unique.words.iter().zip(&names).map(named).collect::<Vec<_>>().join(", ");
        let equal = if unique.nulls_too { "IS NOT DISTINCT FROM" } else { "=" };
        let on = names.iter().map(|name| format!("l.{name} {equal} r.{name}")).collect::<Vec<_>>().join(" AND ");
        let values = names.iter().map(|name| format!("r.{name}")).collect::<Vec<_>>().join(", ");
        let key = self.key.join(", ");
        Some(format!(
            "SELECT '(' || {list} || ')=' || ROW({values})::text, pg_catalog.to_jsonb(r.mesh_row)::text, pg_catalog.to_jsonb(l.mesh_row)::text \
             FROM (SELECT mesh_l AS mesh_row, ROW({key})::text AS mesh_key, {words} FROM {table} mesh_l WHERE {predicate}) l \
             JOIN (SELECT mesh_r AS mesh_row, ROW({key})::text AS mesh_key, {words} FROM {comes} mesh_r WHERE {predicate}) r \
             ON {on} WHERE {same_key} LIMIT 1",
            list = literal(&unique.words.join(", ")),
            table = self.name,
            predicate = unique.predicate,
        ))
    }
}

/// The tables of a transaction, each asked for once.
async fn tables_of(client: &Client, changes: &[RowChange]) -> Result<BTreeMap<(String, String), Table>, Fault> {
    let mut tables = BTreeMap::new();
    for change in changes {
        let name = (change.schema.clone(), change.table.clone());
        if !tables.contains_key(&name)
            && let Some(table) = table_of(client, change).await?
        {
            tables.insert(name, table);
        }
    }
    Ok(tables)
}

/// The first row of a transaction that cannot be there beside one that is.
async fn conflict_of(client: &Client, transaction: &Transaction) -> Result<Option<Conflict>, Fault> {
    let tables = tables_of(client, &transaction.changes).await?;
    for (at, change) in transaction.changes.iter().enumerate().filter(|(_, change)| change.deed != Deed::Delete) {
        let Some(table) = tables.get(&(change.schema.clone(), change.table.clone())) else { continue };
        let comes = table.comes(change);
        for unique in &table.unique {
            let Some(question) = table.question(unique, &comes, change.deed) else { continue };
            if let Some(row) = client.opt(&question, &[]).await? {
                return Ok(Some(Conflict {
                    table: table.name.clone(),
                    constraint: unique.name.clone(),
                    key: client.read(&row, 0)?,
                    comes: client.read(&row, 1)?,
                    there: client.read(&row, 2)?,
                    lww: table.lww,
                    change: at,
                }));
            }
        }
    }
    Ok(None)
}

/// Lets every link go on that rows have stopped which are there already: each transaction that stops one is left out there, with
/// its rows in the log of conflicts. Rows are not the same everywhere then: [`super::repair`] is due, and [`forget_found`].
pub async fn skip(seats: &[Seat], source: &Source, limit: Duration) -> Result<Vec<Way>, Fault> {
    known(seats, source)?;
    let mut ways: Vec<Way> = Vec::new();
    for _ in 0..ROUNDS {
        let links = stopped_links(seats).await?;
        if links.is_empty() {
            break;
        }
        for (from, to) in links {
            let same = |way: &Way| way.from == from.member.name && way.node == to.member.name;
            let at = ways.iter().position(same).unwrap_or_else(|| {
                let (node, from) = (to.member.name.clone(), from.member.name.clone());
                ways.push(Way { node, from, skipped: Vec::new(), rows: 0, notes: BTreeMap::new() });
                ways.len() - 1
            });
            pass(from, to, source, limit, &mut ways[at]).await?;
        }
    }
    Ok(ways)
}

/// Has one link go on.
async fn pass(from: &Seat, to: &Seat, source: &Source, limit: Duration, way: &mut Way) -> Result<(), Fault> {
    let mut again = 0;
    while !goes_on(from, to, limit).await? {
        let (transaction, conflict) = decided(from, to, source).await?;
        let at = position_text(transaction.finish);
        if way.skipped.last() != Some(&at) {
            match leave_out(from, to, (&transaction, &conflict), way).await {
                Ok(()) => {
                    way.skipped.push(at);
                    again = 0;
                }
                // Nothing of it was kept.
                Err(fault) if meets_another(&fault) && again < TRIES => again += 1,
                Err(fault) => return Err(fault),
            }
        } else if again < TRIES {
            // An attempt that had begun before it was told to leave it out has ended as all before it.
            again += 1;
        } else {
            return Err(not_passed(from, to, &at));
        }
    }
    Ok(())
}

fn not_passed(from: &Seat, to: &Seat, at: &str) -> Fault {
    let what = format!("the link from `{}` to `{}` does not pass {at}", from.member.name, to.member.name);
    Fault::new(Code::PgNotReplicated, what).hint(log_says(to))
}

fn log_says(to: &Seat) -> String {
    format!("the log of PostgreSQL on `{0}` says why: `quorate logs` there", to.member.name)
}

/// The node's agent, or the link itself, has changed the subscription in this very moment.
fn meets_another(fault: &Fault) -> bool {
    state_of(fault).as_deref() == Some("XX000")
}

/// Tries once more. Whether all comes through that was written until now; no: an error has stopped it again.
async fn goes_on(from: &Seat, to: &Seat, limit: Duration) -> Result<bool, Fault> {
    let begun = Instant::now();
    let target: i64 =
        from.client.value("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::int8", &[]).await?;
    while let Err(fault) = revive_link(&to.client, from.member.id).await {
        if !meets_another(&fault) || begun.elapsed() >= limit {
            return Err(fault);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let (name, sql) = (
        link_name(from.member.id, to.member.id),
        "SELECT coalesce(pg_wal_lsn_diff(greatest(s.confirmed_flush_lsn, r.replay_lsn), '0/0')::int8 >= $2, false) \
         FROM pg_catalog.pg_replication_slots s LEFT JOIN pg_catalog.pg_stat_replication r ON r.pid = s.active_pid \
         WHERE s.slot_name = $1",
    );
    loop {
        let row = from.client.opt(sql, &[&name, &target]).await?;
        if row.map(|row| from.client.read::<bool>(&row, 0)).transpose()?.unwrap_or_default() {
            return Ok(true);
        }
        if observe_links(to).await?.incoming.get(&from.member.id).is_some_and(|link| !link.enabled) {
            return Ok(false);
        }
        if begun.elapsed() >= limit {
            let what =
                format!("what `{}` wrote has not come to `{}` within {limit:?}", from.member.name, to.member.name);
            return Err(Fault::new(Code::PgNotReplicated, what).hint(log_says(to)));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// What stops a link, if it may be left out.
async fn decided(from: &Seat, to: &Seat, source: &Source) -> Result<(Transaction, Conflict), Fault> {
    let found = waiting(from, to).await?;
    let conflict = match &found {
        Some(transaction) => conflict_of(&to.client, transaction).await?,
        None => None,
    };
    let (Some(transaction), Some(conflict)) = (found, conflict) else {
        let what = format!("the link from `{}` to `{}` is stopped by something else", from.member.name, to.member.name);
        return Err(Fault::new(Code::PgDiverged, format!("{what} than a row that is there already")).hint(log_says(to)));
    };
    if *source == Source::Newest && !conflict.lww {
        return Err(undecided(&conflict.table));
    }
    Ok((transaction, conflict))
}

/// Writes the rows of a transaction down and has the link leave it out, in one transaction.
async fn leave_out(
    from: &Seat,
    to: &Seat,
    (transaction, conflict): (&Transaction, &Conflict),
    way: &mut Way,
) -> Result<(), Fault> {
    let client = &to.client;
    let tables = tables_of(client, &transaction.changes).await?;
    let me = myself(client).await?.map(|me| me.id).unwrap_or_default();
    let name = link_name(from.member.id, me);
    let mut notes: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    let work = async {
        client.batch("BEGIN").await?;
        for (at, change) in transaction.changes.iter().enumerate().filter(|(_, change)| change.deed != Deed::Delete) {
            let Some(table) = tables.get(&(change.schema.clone(), change.table.clone())) else { continue };
            let unchanged = change.columns.iter().filter(|(_, value)| *value == Value::Unchanged);
            let unchanged: Vec<&String> = unchanged.map(|(name, _)| name).collect();
            let kept = if at == conflict.change { conflict.there.as_str() } else { "null" };
            let sql = format!(
                "INSERT INTO mesh.conflicts (relation, kind, came, kept, lost) SELECT $1, 'skipped', 'from elsewhere', \
                 $2::text::jsonb, pg_catalog.to_jsonb(mesh_r) - $3::text[] FROM {} mesh_r RETURNING id",
                table.comes(change)
            );
            let id: i64 = client.value(&sql, &[&table.name, &kept, &unchanged]).await?;
            notes.entry(table.name.clone()).or_default().push(id);
        }
        let at = position_text(transaction.finish);
        // Whoever pauses a link writes that down first; such a one is not let go on.
        if !client.value::<bool>("SELECT mesh.skip($1, $2::text::pg_lsn)", &[&name, &at]).await? {
            return Err(Fault::new(Code::PgChangeUnderWay, format!("the link from `{}` is paused", from.member.name)));
        }
        client.batch("COMMIT").await
    };
    let done = work.await;
    if done.is_err() {
        client.batch("ROLLBACK").await?;
    }
    done?;
    way.rows += notes.values().map(|ids| ids.len() as u64).sum::<u64>();
    for (table, ids) in notes {
        way.notes.entry(table).or_default().extend(ids);
    }
    Ok(())
}

/// Takes those rows of left out transactions off the log that a repair has put where they were left out: they are not lost.
pub async fn forget_found(seats: &[Seat], ways: &mut [Way]) -> Result<(), Fault> {
    for way in ways {
        let Some(seat) = seats.iter().find(|seat| seat.member.name == way.node) else { continue };
        for (table, ids) in &way.notes {
            let sql = "SELECT string_agg(format('t.%1$I = r.%1$I', a.attname), ' AND ') FROM pg_catalog.pg_index i \
                       JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey) \
                       WHERE i.indrelid = $1::text::regclass AND i.indisprimary";
            let same: String = seat.client.value(sql, &[table]).await?;
            let sql = format!(
                "DELETE FROM mesh.conflicts c WHERE c.id = ANY ($1) AND EXISTS (SELECT FROM {table} t, \
                 pg_catalog.jsonb_populate_record(NULL::{table}, c.lost) r WHERE {same} AND pg_catalog.to_jsonb(t) = c.lost)"
            );
            way.rows = way.rows.saturating_sub(seat.client.execute(&sql, &[ids]).await?);
        }
    }
    Ok(())
}
