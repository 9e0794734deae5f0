//! `quorate data inspect`: what is in a data dir or snapshot file, without changing a byte.

use std::path::PathBuf;
use std::sync::atomic::AtomicU64;

use quorate_etcd::datadir::{self, Found};
use quorate_etcd_formats::ReadAt;
use quorate_etcd_formats::inspect::{self, Inspection, Kind, MemberInfo, Settings};
use quorate_faults::{Exit, Fault};
use serde::Serialize;

use crate::printer::Printer;
use crate::render::{Page, Report, bytes};

/// Flags of `data inspect`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate data inspect /var/lib/etcd
  quorate data inspect backup.db --hash --count
  quorate data inspect /var/lib/etcd --output json | jq -r .cluster_id

While etcd runs on the data dir, only the meta pages, the WAL and the raft snapshot are shown.")]
pub(crate) struct Args {
    /// A data dir or a snapshot file
    pub(crate) path: PathBuf,

    /// The dir of the WAL, if it is a separate one
    #[arg(long, value_name = "DIR")]
    pub(crate) wal_dir: Option<PathBuf>,

    /// Compute the hashes that etcdutl and etcdctl print [default: for files under 64 MiB]
    #[arg(long, overrides_with = "no_hash")]
    pub(crate) hash: bool,

    /// Do not compute hashes
    #[arg(long)]
    pub(crate) no_hash: bool,

    /// Also count keys, live keys and free pages
    #[arg(long)]
    pub(crate) count: bool,
}

/// Shows it.
pub(crate) fn run(args: Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let found = datadir::open(&args.path, args.wal_dir.as_deref())?;
    let hash = match (args.hash, args.no_hash) {
        (true, _) => Some(true),
        (false, true) => Some(false),
        (false, false) => None,
    };
    let done = AtomicU64::new(0);
    let settings = Settings { hash, count: args.count, workers: super::workers(), progress: &done };
    let total = match &found {
        Found::DataDir(dir) => dir.bytes(),
        Found::File(file) => file.len(),
    };
    let inspection = super::watched(printer, "reading", total, &done, || match &found {
        Found::DataDir(dir) => Ok(inspect::data_dir(&dir.view(), settings)),
        Found::File(file) => inspect::file(file, settings),
    })?;
    let inspection = inspection
        .map_err(|error| datadir::not_a_database(format!("cannot inspect `{}`", args.path.display()), error))?;
    let told_nothing = inspection.member_id.is_none() && inspection.database.size_bytes.is_none();
    printer.report(&Outcome { path: args.path.display().to_string(), inspection });
    Ok(if told_nothing { Exit::CannotMeet } else { Exit::Done })
}

/// What is printed.
#[derive(Serialize)]
struct Outcome {
    path: String,
    #[serde(flatten)]
    inspection: Inspection,
}

impl Report for Outcome {
    fn render(&self, page: &mut Page) {
        let found = &self.inspection;
        page.heading(format!("{} {}", kind(found), self.path));
        if found.running == Some(true) {
            let pid = found.running_pid.map_or_else(String::new, |pid| format!(" (process {pid})"));
            page.line(format!("etcd is running on it{pid}: only what does not change underfoot is shown"));
        }
        page.pairs(
            identity(found).into_iter().chain(state(found)).chain(sizes(found)).chain(log(found)).chain(hashes(found)),
        );
        if let Some(members) = found.database.members.as_ref().filter(|members| !members.is_empty()) {
            page.gap();
            page.table(["MEMBER", "ID", "ROLE", "PEER URLS", "CLIENT URLS"], members.iter().map(member));
        }
        if !found.unread.is_empty() {
            page.gap();
            page.heading("could not be read");
            for what in &found.unread {
                page.line(format!("  {what}"));
            }
        }
    }
}

type Pairs = Vec<(&'static str, String)>;

fn kind(found: &Inspection) -> &'static str {
    match found.kind {
        Kind::DataDir => "data dir",
        Kind::Snapshot => "snapshot",
        Kind::Database => "database",
    }
}

fn identity(found: &Inspection) -> Pairs {
    let mut pairs = Pairs::new();
    if let Some(id) = found.cluster_id {
        pairs.push(("cluster id", id.to_string()));
    }
    if let Some(id) = found.member_id {
        let name =
            found.name.as_ref().filter(|name| !name.is_empty()).map_or_else(String::new, |name| format!(" ({name})"));
        pairs.push(("member id", format!("{id}{name}")));
    }
    let versions =
        [("storage version", &found.database.storage_version), ("cluster version", &found.database.cluster_version)];
    pairs.extend(versions.into_iter().filter_map(|(what, version)| Some((what, version.clone()?))));
    pairs
}

fn state(found: &Inspection) -> Pairs {
    let db = &found.database;
    let mut pairs = Pairs::new();
    if let Some(revision) = db.revision {
        let compacted = db.compact_revision.map_or_else(String::new, |compacted| format!(", compacted at {compacted}"));
        pairs.push(("revision", format!("{revision}{compacted}")));
    }
    if let Some(index) = db.consistent_index {
        let term = db.term.map_or_else(String::new, |term| format!(" (term {term})"));
        pairs.push(("applied index", format!("{index}{term}")));
    }
    if let (Some(keys), Some(live)) = (db.keys, db.live_keys) {
        pairs.push(("keys", format!("{live} live, {keys} revisions kept")));
    }
    if let Some(leases) = db.leases {
        pairs.push(("leases", leases.to_string()));
    }
    if let Some(enabled) = db.auth_enabled {
        pairs.push(("auth", if enabled { "on" } else { "off" }.to_owned()));
    }
    for alarm in db.alarms.iter().flatten() {
        pairs.push(("alarm", format!("{} on member {}", alarm.alarm, alarm.member_id)));
    }
    if let Some(removed) = db.members_removed.as_ref().filter(|removed| !removed.is_empty()) {
        let removed: Vec<_> = removed.iter().map(ToString::to_string).collect();
        pairs.push(("removed members", removed.join(", ")));
    }
    pairs
}

fn sizes(found: &Inspection) -> Pairs {
    let db = &found.database;
    let (Some(size), Some(used)) = (db.size_bytes, db.used_bytes) else { return Pairs::new() };
    let free = db.free_pages.zip(db.page_bytes).map_or_else(String::new, |(pages, page)| {
        format!(", {} of it free ({pages} page{})", bytes(pages * u64::from(page)), if pages == 1 { "" } else { "s" })
    });
    vec![("size", format!("{}, {} used{free}", bytes(size), bytes(used)))]
}

fn log(found: &Inspection) -> Pairs {
    let mut pairs = Pairs::new();
    if let Some(wal) = &found.wal {
        let count = wal.segments.len();
        let range = match (wal.first_index, wal.last_index) {
            (Some(first), Some(last)) => format!(", entries {first} to {last}"),
            _ => ", no entries".to_owned(),
        };
        pairs.push(("wal", format!("{count} segment{}{range}", if count == 1 { "" } else { "s" })));
    }
    if let Some(state) = &found.hard_state {
        let vote = if state.vote.0 == 0 { "nobody".to_owned() } else { state.vote.to_string() };
        pairs.push(("hard state", format!("term {}, voted for {vote}, committed {}", state.term, state.commit)));
    }
    if let Some(snap) = &found.raft_snapshot {
        let learners =
            if snap.learners.is_empty() { String::new() } else { format!(", {} learners", snap.learners.len()) };
        let voters = snap.voters.len();
        let plural = if voters == 1 { "" } else { "s" };
        pairs.push((
            "raft snapshot",
            format!("index {}, term {}, {voters} voter{plural}{learners}", snap.index, snap.term),
        ));
    }
    pairs
}

fn hashes(found: &Inspection) -> Pairs {
    let db = &found.database;
    let mut pairs = Pairs::new();
    if let Some(hash) = db.hash {
        pairs.push(("hash", format!("{hash:08x} ({hash})")));
    }
    if let Some([old, new]) = db.hashkv.as_deref() {
        let text = if old.hash == new.hash {
            new.hash.to_string()
        } else {
            format!("{} (etcd {}), {} ({})", new.hash, new.etcd, old.hash, old.etcd)
        };
        pairs.push(("hashkv", text));
    }
    pairs
}

fn member(member: &MemberInfo) -> [String; 5] {
    let name = if member.name.is_empty() { "(never started)".to_owned() } else { member.name.clone() };
    let role = if member.learner { "learner" } else { "voter" };
    [name, member.id.to_string(), role.to_owned(), member.peer_urls.join(" "), member.client_urls.join(" ")]
}
