//! Which steps between releases of etcd are possible, and what has to be true before each member takes one.
//!
//! **Rule:** one minor version at a time, and what etcd itself forbids is refused before anything is touched. The version of a
//! cluster is that of its oldest member: as long as one has the earlier minor version, there is a way back for all.

use std::collections::BTreeMap;
use std::fmt;

use quorate_faults::Code;

use super::decide::refused;
use super::{ChangeHalt, ChangePlan, ClusterView, LogRead, NodeNow, NodeSeen, Restart, plan_change};
use crate::etcd_config::{self, Minor};
use crate::roster::names;
use crate::spec::Spec;
use crate::start::Halt;

/// The first 3.5 from which 3.6 can be reached: earlier ones keep promoted learners, and removed members, in a form that 3.6 does
/// not understand.
const LAST_OF_3_5: u64 = 26;

/// The first release that cannot read entries in the form of the v2 API, which 3.4 and 3.5 write.
const WITHOUT_V2: (u64, u64) = (3, 7);

/// Entries that may be added to the logs before their agents have to read them again. etcd takes a raft snapshot after 10,000
/// entries where nothing else is set, and an agent reads its log every two seconds.
const READ_LATE: u64 = 10_000;

/// Entries without a raft snapshot from which on none is expected: ten times the highest default of etcd.
const WITHOUT_SNAPSHOT_MAX: u64 = 1_000_000;

/// A release of etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Release {
    /// 3
    pub major: u64,
    /// 5
    pub minor: u64,
    /// 16
    pub patch: u64,
}

/// What a step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Every member has it already.
    Same,
    /// Within a minor version, up or down.
    Patch,
    /// To the next minor version.
    Up,
    /// Back to the minor version that the cluster still has.
    Back,
    /// To the minor version before, by etcd's own downgrade.
    Down,
}

/// Why a step is not possible, and what is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Lower case, no full stop.
    pub why: String,
    /// The way out.
    pub way_out: String,
}

/// Entries in the logs of members that a release cannot read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OldEntries {
    /// Who holds how many. Lower case, no full stop.
    pub holds: String,
    /// More was added to a log than its agent has read.
    pub is_read_late: bool,
}

/// What an operator asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// The release.
    pub to: Release,
    /// Go on although no store of backups is declared.
    pub without_backup: bool,
}

impl Release {
    /// Reads `3.5.16` or `v3.5.16`, also with something after it.
    pub fn parse(text: &str) -> Option<Release> {
        let numbers = text.trim().trim_start_matches('v');
        let mut parts = numbers.split(['-', '+', ' ']).next()?.split('.');
        let mut number = || parts.next()?.parse::<u64>().ok();
        let release = Release { major: number()?, minor: number()?, patch: number()? };
        parts.next().is_none().then_some(release)
    }

    /// The minor version, where there is a table for it.
    pub fn table(self) -> Option<Minor> {
        Minor::parse(&self.to_string())
    }

    /// Whether it adds a learner while a voter is down, if the others are enough. Earlier ones say "unhealthy cluster".
    pub fn adds_beside_a_dead_one(self) -> bool {
        match (self.major, self.minor) {
            (3, 5) => self.patch >= 30,
            (3, 6) => self.patch >= 11,
            (3, minor) => minor >= 7,
            _ => false,
        }
    }

    /// Whether it reads entries in the form of the v2 API, and the next minor version does not.
    pub fn is_last_with_v2(self) -> bool {
        (self.major, self.minor.saturating_add(1)) == WITHOUT_V2
    }

    /// Whether a member of this release has to be rid of entries in the form of the v2 API before it becomes `to`.
    pub fn drops_v2(self, to: Release) -> bool {
        self.minor() < WITHOUT_V2 && to.minor() >= WITHOUT_V2
    }

    fn minor(self) -> (u64, u64) {
        (self.major, self.minor)
    }
}

/// Whether members with these releases can get to `to`, and how.
pub fn allowed(members: &BTreeMap<String, Release>, to: Release) -> Result<Kind, Refusal> {
    let (Some(low), Some(high)) = (members.values().min(), members.values().max()) else {
        return Err(refusal("it is not known which release any member runs", "bring the agents back"));
    };
    if to.table().is_none() {
        return Err(refusal(&format!("etcd {to} is not known here"), "use etcd 3.4, 3.5, 3.6 or 3.7"));
    }
    if members.values().all(|release| *release == to) {
        return Ok(Kind::Same);
    }
    let (cluster, target) = (low.minor(), to.minor());
    let mixed = high.minor() != cluster;
    if mixed && high.minor() != (cluster.0, cluster.1 + 1) {
        let why = format!("members run {low} and {high}, which are further apart than one minor version");
        return Err(refusal(&why, &format!("bring all of them to {}.{} first", cluster.0, cluster.1 + 1)));
    }
    if target == cluster {
        return Ok(if mixed { Kind::Back } else { Kind::Patch });
    }
    if target == (cluster.0, cluster.1 + 1) {
        return up(members, cluster, to);
    }
    if target > cluster {
        let why = format!("from {}.{} to {to} is more than one minor version", cluster.0, cluster.1);
        let next = format!("{}.{}", cluster.0, cluster.1 + 1);
        return Err(refusal(&why, &format!("go to the latest {next} first: `quorate cluster upgrade --to {next}.N`")));
    }
    if mixed {
        let why = format!("members run {low} and {high}, and {to} is older than both");
        return Err(refusal(&why, &format!("bring all of them to {}.{} first", cluster.0, cluster.1)));
    }
    down(cluster, to)
}

fn up(members: &BTreeMap<String, Release>, cluster: (u64, u64), to: Release) -> Result<Kind, Refusal> {
    let early = |release: &&Release| release.minor() == (3, 5) && release.patch < LAST_OF_3_5;
    if cluster == (3, 5)
        && let Some(release) = members.values().find(early)
    {
        let why = format!("{release} cannot go to {to}: it stores members in a form that 3.6 does not understand");
        return Err(refusal(&why, &format!("go to 3.5.{LAST_OF_3_5} or later first")));
    }
    Ok(Kind::Up)
}

fn down(cluster: (u64, u64), to: Release) -> Result<Kind, Refusal> {
    let (major, minor) = cluster;
    if to.minor() != (major, minor.saturating_sub(1)) {
        let why = format!("from {major}.{minor} to {to} is more than one minor version");
        return Err(refusal(&why, "go down one minor version at a time"));
    }
    if minor < 6 {
        let why = format!("etcd {major}.{minor} cannot go down to {to}: that came with 3.6");
        return Err(refusal(&why, "restore a backup from before the upgrade into a new cluster"));
    }
    Ok(Kind::Down)
}

/// Settings of the file that etcd `to` does not have, each with its line.
pub fn vanished(spec: &Spec, to: Release) -> Vec<String> {
    let Some(minor) = to.table() else { return Vec::new() };
    let settings = spec.etcd.iter().filter_map(|setting| {
        let objection = etcd_config::check(setting, Some(minor)).err()?;
        let hint = objection.hint.map(|hint| format!(": {hint}")).unwrap_or_default();
        Some(format!("line {}: {}{hint}", setting.at.line, objection.what))
    });
    let release = etcd_config::check_release(spec, &to.to_string()).err().map(|fault| fault.to_string());
    settings.chain(release).collect()
}

/// Whether the database of a node is stored in a later form than `to` reads.
pub fn is_stored_later(storage: Option<&str>, to: Release) -> bool {
    let storage = storage.and_then(|text| Release::parse(text).or_else(|| Release::parse(&format!("{text}.0"))));
    storage.is_some_and(|storage| storage.minor() > to.minor())
}

/// The releases that members run, by node, as far as their agents say.
pub fn releases(view: &ClusterView) -> BTreeMap<String, Release> {
    let told = view.answers().filter_map(|(name, now)| {
        let listed = view.members().is_some_and(|(_, members)| members.iter().any(|one| Some(one.id) == now.member));
        let release = now.etcd.as_deref().and_then(Release::parse).filter(|_| listed)?;
        Some((name.to_owned(), release))
    });
    told.collect()
}

/// Whether logs hold entries behind their newest raft snapshot that etcd `to` cannot read: it panics on them. `Err`: whether
/// they do is unknown of a member, or no raft snapshot comes.
pub fn old_entries(view: &ClusterView, to: Release) -> Result<Option<OldEntries>, Box<ChangeHalt>> {
    let releases = releases(view);
    let concerned: Vec<(&str, &NodeNow)> = releases
        .iter()
        .filter(|(_, from)| from.drops_v2(to))
        .filter_map(|(name, _)| Some((name.as_str(), view.answer(name)?)))
        .collect();
    let unknown = |now: &NodeNow| now.v2_entries.is_none_or(|count| count > 0 && now.log.is_none());
    let unknown: Vec<&str> = concerned.iter().filter(|(_, now)| unknown(now)).map(|(name, _)| *name).collect();
    if !unknown.is_empty() {
        let why = format!("whether etcd {to} can read its log is not known of {}", names(unknown));
        let way_out = "its agent reads the log within a minute; see that all agents are of this release, and try again";
        return Err(Box::new(stop(why, way_out)));
    }
    let hold: Vec<(&str, u64, LogRead)> = concerned
        .iter()
        .filter_map(|(name, now)| Some((*name, now.v2_entries.filter(|count| *count > 0)?, now.log?)))
        .collect();
    if hold.is_empty() {
        return Ok(None);
    }
    let counts: Vec<String> = hold.iter().map(|(name, count, _)| format!("`{name}`: {count}")).collect();
    let holds = format!("etcd {to} cannot read entries of 3.5 or earlier in the logs of {}", counts.join(", "));
    if let Some((name, _, log)) =
        hold.iter().find(|(_, _, log)| log.last.saturating_sub(log.snapshot) > WITHOUT_SNAPSHOT_MAX)
    {
        let after = log.last.saturating_sub(log.snapshot);
        let why = format!("{holds}, and `{name}` has taken no raft snapshot for {after} entries");
        let way_out = "set a `snapshot-count` of 10000 under `etcd` in the cluster file, `quorate cluster apply`, and \
                       upgrade again; see `quorate explain Q1436`";
        return Err(Box::new(refused(Code::UpgradeOldEntries, why, way_out)));
    }
    let newest = view.indexes.values().max().copied().unwrap_or(0);
    let is_read_late = hold.iter().any(|(_, _, log)| newest.saturating_sub(log.last) > READ_LATE);
    Ok(Some(OldEntries { holds, is_read_late }))
}

/// What would be done to bring every member to a release: a backup and a healthy cluster before each, the leader last.
pub fn plan_upgrade(view: &ClusterView, spec: &Spec, ask: &Ask) -> Result<ChangePlan, ChangeHalt> {
    let to = ask.to;
    let releases = releases(view);
    // One whose etcd does not run starts with what its agent is told: that is the way back for one that does not come up.
    let unknown = |name: &&str| !releases.contains_key(*name) && view.answer(name).is_none_or(|now| now.etcd.is_some());
    let silent: Vec<&str> = spec.members.iter().map(|member| member.name.as_str()).filter(unknown).collect();
    if !silent.is_empty() {
        let why = format!("the release that runs is not known of {}", names(silent));
        return Err(stop(why, "bring the agents back first"));
    }
    let kind = allowed(&releases, to).map_err(|no| refused(Code::UpgradeRefused, no.why, &no.way_out))?;
    old_entries(view, to).map_err(|halt| *halt)?;
    let vanished = vanished(spec, to);
    if !vanished.is_empty() {
        let why = format!("the file has settings that etcd {to} does not: {}", vanished.join("; "));
        return Err(refused(Code::UpgradeRefused, why, "change them under `etcd` in the cluster file first"));
    }
    let stored = |(_, now): &(&str, &NodeNow)| is_stored_later(now.storage.as_deref(), to);
    if kind != Kind::Down && view.answers().any(|told| stored(&told)) {
        let why = format!("the data is already stored in a form that etcd {to} does not read");
        return Err(refused(Code::UpgradeRefused, why, "stay with the release that wrote it, or restore a backup"));
    }
    if spec.backup.is_none() && !ask.without_backup && kind != Kind::Same {
        let why = "no store of backups is declared, and a release is not changed without a backup".to_owned();
        return Err(refused(Code::UpgradeRefused, why, "declare `backup`, or say `--without-backup`"));
    }
    Ok(plan_change(&wished(view, &releases, to), spec))
}

/// The view as it is when every node has been told to run `to`.
fn wished(view: &ClusterView, releases: &BTreeMap<String, Release>, to: Release) -> ClusterView {
    let mut wished = view.clone();
    for (name, seen) in &mut wished.nodes {
        let NodeSeen::Answered(now) = seen else { continue };
        if let Some(from) = releases.get(name).filter(|from| **from != to) {
            let (why, release) = (format!("etcd {from} becomes {to}"), Some(to.to_string()));
            let (trust, moves) = now.restart.as_ref().map_or((false, false), |due| (due.trust, due.moves));
            now.restart = Some(Restart { why, release, trust, moves });
        }
    }
    wished
}

/// Why an upgrade does not go on, and how to get back.
pub(super) fn stopped(view: &ClusterView, halt: Halt) -> ChangeHalt {
    let releases = releases(view);
    let way_back = match releases.values().min() {
        Some(low) => format!("bring it back; the way back for all is `quorate cluster upgrade --to {low}`"),
        None => "bring it back".to_owned(),
    };
    stop(halt.why, &way_back)
}

fn stop(why: String, way_out: &str) -> ChangeHalt {
    let halt = Halt { code: Code::UpgradeStopped, why, way_out: way_out.to_owned(), lost: None };
    ChangeHalt { refused: false, halt }
}

fn refusal(why: &str, way_out: &str) -> Refusal {
    Refusal { why: why.to_owned(), way_out: way_out.to_owned() }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}
