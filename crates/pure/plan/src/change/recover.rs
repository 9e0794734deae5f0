//! The decision to recover: the quorum is lost, and a cluster is made of what is left.
//!
//! **Rule:** nothing is recovered while a quorum could come back; whoever does not answer is dead only by a person's word, name by
//! name, and so is what cannot be looked at passed over; what may be lost is said before anything is done; and the cluster that
//! comes of it has a generation of its own.

mod fence;
mod spool;
#[cfg(test)]
mod tests;
mod words;

pub use fence::{ClaimSeen, Evidence, Probe, Reply, StoreWatch, WatchLine};
pub use spool::{Extended, SpoolPart, SpoolSeen, extend};

use std::collections::BTreeMap;

use quorate_etcd_formats::membership::{ClusterId, MemberId};
use quorate_faults::Code;
use serde::{Deserialize, Serialize};

use super::ChangeHalt;
use crate::roster::names;
use crate::spec::Spec;
use crate::start::{Halt, Verdict};

/// What the survey found at one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SurveyRow {
    /// Its name.
    pub node: String,
    /// What it says.
    pub seen: RowSeen,
    /// Its etcd confirms reads, which it can only do with a quorum, whatever is known of its data.
    pub serves: bool,
}

/// What a node says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowSeen {
    /// Its agent did not answer, and why.
    Silent(String),
    /// It holds no data.
    Blank {
        /// Its generation.
        generation: u64,
    },
    /// It holds data that was read to its end, and cannot be used.
    Damaged {
        /// Its generation.
        generation: u64,
        /// What is wrong with it.
        why: String,
    },
    /// What it holds could not be found out. Not the same as nothing.
    Unknown(String),
    /// It holds data.
    Holds(Box<Survivor>),
}

/// What a person has said, name by name.
#[derive(Debug, Clone, Copy, Default)]
pub struct Said<'a> {
    /// These nodes are dead, and never come back by themselves.
    pub dead: &'a [String],
    /// The machines of these nodes are off, which says as much and more.
    pub fenced: &'a [String],
    /// What these nodes hold, and nobody can look at, is not waited for.
    pub passed_over: &'a [String],
    /// The store is not asked, neither for backups nor for claims.
    pub without_store: bool,
    /// The cluster is to have the state of the backup at this point, whatever the nodes hold.
    pub point: Option<Point>,
}

/// An earlier state of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Point {
    /// After the last write that was recorded at or before this time, in ms since 1970.
    Time(i64),
    /// After this revision.
    Revision(u64),
}

/// What a node holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survivor {
    /// The generation in its ledger.
    pub generation: u64,
    /// The newest one that it has heard of, at least its own.
    pub newest: u64,
    /// Whose data it is.
    pub cluster: ClusterId,
    /// Which member.
    pub member: MemberId,
    /// Whether the data is whole. A torn tail can be cut off a copy.
    pub verdict: Verdict,
    /// Whether its etcd confirms reads, which it can only do with a quorum.
    pub serves: bool,
    /// The term of the last entry of its log.
    pub term: u64,
    /// The index of the last entry.
    pub index: u64,
    /// The revision that its log leads to, where that could be told.
    pub revision: Option<u64>,
    /// The hash of its keys, and the revision that it holds for.
    pub hash: Option<(u32, u64)>,
    /// The voters that it knows of, by id, with their nodes.
    pub voters: BTreeMap<MemberId, String>,
    /// How far its agent saw other members come.
    pub saw: BTreeMap<MemberId, u64>,
}

/// The newest that the store of backups can prove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreNewest {
    /// The file declares no store.
    NotDeclared,
    /// It does not answer. Not the same as empty.
    Unknown(String),
    /// Nothing in it can be proven.
    Empty,
    /// This much.
    Newest {
        /// Whose, where the layout says so.
        cluster: Option<ClusterId>,
        /// The revision.
        revision: u64,
        /// The epoch of its newest writer; 0 where there are none.
        epoch: u64,
    },
}

/// What the cluster is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// What this node holds.
    Survivor {
        /// The node.
        node: String,
        /// The revision, where known.
        revision: Option<u64>,
    },
    /// The newest backup, restored on this node.
    Backup {
        /// The node.
        node: String,
        /// The revision.
        revision: u64,
    },
}

/// One step of a recovery. Nothing here deletes anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecoverStep {
    /// The node writes down that it is about to be recovered, as this generation, and stops its etcd.
    Claim {
        /// The node.
        node: String,
        /// The generation.
        generation: u64,
    },
    /// A copy of its data is brought to its end: every entry of its log is applied.
    Replay {
        /// The node.
        node: String,
    },
    /// What waits in the spool of a node is uploaded into the store.
    Upload {
        /// The node.
        node: String,
        /// First revision.
        first: u64,
        /// Last revision.
        last: u64,
    },
    /// The newest backup is fetched.
    Fetch {
        /// The node.
        node: String,
        /// The revision.
        revision: u64,
    },
    /// A data dir of one member is made of it, beside the old one, with a new cluster, bumped revisions and all of them compacted.
    Rebuild {
        /// The node.
        node: String,
    },
    /// The old data is renamed, and the new one takes its place; the ledger has the new ids and the generation before that.
    Swap {
        /// The node.
        node: String,
        /// The generation.
        generation: u64,
    },
    /// etcd starts, alone.
    Start {
        /// The node.
        node: String,
    },
    /// This node's data is renamed and its ledger cleared, so that it joins the recovered cluster.
    Rejoin {
        /// The node.
        node: String,
    },
}

/// What would be done, and what it would cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovery {
    /// What the cluster is made of; none where nothing can be done.
    pub source: Option<Source>,
    /// What may be lost, one fact in a line.
    pub loses: Vec<String>,
    /// Nodes that must be confirmed dead, by name, and have not been.
    pub unconfirmed: Vec<String>,
    /// The generation that the recovered cluster has.
    pub generation: u64,
    /// The highest revision that the nodes which answer hold or have uploaded: the store may have grown up to it.
    pub held: u64,
    /// The steps, in their order.
    pub steps: Vec<RecoverStep>,
    /// Why nothing is done.
    pub halt: Option<ChangeHalt>,
}

/// Decides what a cluster without a quorum is recovered from.
pub fn plan_recovery(
    spec: &Spec,
    rows: &[SurveyRow],
    store: &StoreNewest,
    evidence: Evidence<'_>,
    said: Said<'_>,
) -> Recovery {
    let case = Case { spec, rows, store, evidence, said };
    let claimed = case.claims().map(|claim| claim.generation).max().unwrap_or(0);
    let generation = case.generations().max().unwrap_or(0).max(claimed).saturating_add(1);
    let mut it = Recovery {
        source: None,
        loses: Vec::new(),
        unconfirmed: case.unconfirmed(),
        generation,
        held: case.held(),
        steps: Vec::new(),
        halt: None,
    };
    let best = case.best();
    it.halt = case.refusal(best).or_else(|| case.unknown_store(best));
    if it.halt.is_some() {
        return it;
    }
    it.source = case.source(best);
    let Some(source) = it.source.clone() else {
        let why = "no node holds data that can be read, and there is no backup that can be proven".to_owned();
        let way_out = "every byte is kept; `quorate data verify` says what is left on each node";
        it.halt = Some(refused(Code::RecoverNothing, why, way_out));
        return it;
    };
    it.loses = case.loses(best, &source);
    it.steps = case.steps(&source, generation);
    if !it.unconfirmed.is_empty() {
        let why = format!("no answer, and not confirmed as dead: {}", listed(&it.unconfirmed));
        let flags: Vec<String> = it.unconfirmed.iter().map(|name| format!("--fenced {name}")).collect();
        let way_out = format!(
            "bring them back; or, if they will never come back, power the machines off and state it: `{}`",
            flags.join(" ")
        );
        it.halt = Some(refused(Code::RecoverUnconfirmed, why, &way_out));
        return it;
    }
    it.halt = evidence.unfenced(&case.unfenced());
    it
}

struct Case<'a> {
    spec: &'a Spec,
    rows: &'a [SurveyRow],
    store: &'a StoreNewest,
    evidence: Evidence<'a>,
    said: Said<'a>,
}

impl<'a> Case<'a> {
    fn generations(&self) -> impl Iterator<Item = u64> {
        self.rows.iter().filter_map(|row| match &row.seen {
            RowSeen::Silent(_) | RowSeen::Unknown(_) => None,
            RowSeen::Blank { generation } | RowSeen::Damaged { generation, .. } => Some(*generation),
            RowSeen::Holds(survivor) => Some(survivor.newest.max(survivor.generation)),
        })
    }

    fn survivors(&self) -> impl Iterator<Item = (&'a str, &'a Survivor)> {
        self.rows.iter().filter_map(|row| match &row.seen {
            RowSeen::Holds(survivor) => Some((row.node.as_str(), survivor.as_ref())),
            RowSeen::Silent(_) | RowSeen::Blank { .. } | RowSeen::Damaged { .. } | RowSeen::Unknown(_) => None,
        })
    }

    /// Whose data can be used.
    fn whole(&self) -> impl Iterator<Item = (&'a str, &'a Survivor)> {
        self.survivors().filter(|(_, survivor)| is_whole(survivor))
    }

    /// The furthest, as the members themselves would choose: the newest generation, then the last term, then the last index.
    fn best(&self) -> Option<(&'a str, &'a Survivor)> {
        // Of two that are equally far the first by name.
        let order = |it: &Survivor| (it.generation, it.term, it.index);
        let mut best: Option<(&str, &Survivor)> = None;
        for (node, survivor) in self.whole() {
            if best.is_none_or(|(name, known)| {
                order(survivor) > order(known) || (order(survivor) == order(known) && node < name)
            }) {
                best = Some((node, survivor));
            }
        }
        best
    }

    /// Declared nodes, and voters of the best survivor.
    fn everyone(&self) -> Vec<&'a str> {
        let declared = self.spec.members.iter().map(|member| member.name.as_str());
        let asked = self.rows.iter().map(|row| row.node.as_str());
        let voters = self.best().into_iter().flat_map(|(_, best)| best.voters.values().map(String::as_str));
        let mut all: Vec<&str> = declared.chain(asked).chain(voters).filter(|name| !name.is_empty()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    fn answered(&self, node: &str) -> bool {
        self.rows.iter().any(|row| row.node == node && !matches!(row.seen, RowSeen::Silent(_)))
    }

    /// The nodes that are called dead, or fenced.
    fn dead(&self) -> impl Iterator<Item = &'a str> {
        self.said.dead.iter().chain(self.said.fenced).map(String::as_str)
    }

    fn unconfirmed(&self) -> Vec<String> {
        let silent = self.everyone().into_iter().filter(|node| !self.answered(node));
        silent.filter(|node| !self.dead().any(|dead| dead == *node)).map(str::to_owned).collect()
    }

    /// The silent nodes whose machines may be on.
    fn unfenced(&self) -> Vec<String> {
        let silent = self.everyone().into_iter().filter(|node| !self.answered(node));
        silent.filter(|node| !self.said.fenced.iter().any(|name| name == node)).map(str::to_owned).collect()
    }

    fn refusal(&self, best: Option<(&str, &Survivor)>) -> Option<ChangeHalt> {
        // A quorum that serves is stopped where the state of a point is wanted instead.
        let serving = self.rows.iter().find(|row| is_serving(row));
        if let Some(row) = serving.filter(|_| self.said.point.is_none()) {
            let why = format!("the cluster has a quorum: `{}` confirms reads", row.node);
            let way_out = "there is nothing to recover; a node that lost its data is replaced when its agent runs";
            return Some(refused(Code::RecoverQuorum, why, way_out));
        }
        // Nor is it stopped where it is passed over.
        let stays = self.rows.iter().find(|row| is_serving(row) && matches!(row.seen, RowSeen::Unknown(_)));
        if let Some(SurveyRow { node, .. }) = stays {
            let why = format!("`{node}` confirms reads, and what it holds cannot be found out");
            let way_out = format!("make it readable, or stop its etcd: `quorate stop --name {node}` there");
            return Some(refused(Code::RecoverQuorum, why, &way_out));
        }
        // A quorum here that is stopped for an earlier state backs up until then.
        let watches = if serving.is_some() { &[] } else { self.evidence.watches };
        let held = self.held();
        let watches: Vec<(String, StoreWatch)> =
            watches.iter().filter(|(_, watch)| !watch.is_own(held)).cloned().collect();
        let evidence = Evidence { watches: &watches, ..self.evidence };
        if let Some(halt) = evidence.contradiction().or_else(|| self.claimed_elsewhere()) {
            return Some(halt);
        }
        let alive: Vec<&str> = self.dead().filter(|dead| self.answered(dead)).collect();
        if !alive.is_empty() {
            let why = format!("{} answered, and cannot be confirmed as dead", names(alive));
            let way_out = "leave out `--fenced` and `--confirm-dead` for nodes that answer";
            return Some(refused(Code::RecoverAlive, why, way_out));
        }
        let known = self.everyone();
        let strangers: Vec<&str> = self.dead().filter(|dead| !known.contains(dead)).collect();
        if !strangers.is_empty() {
            let why = format!("{} belong to nobody: neither the file nor a member knows them", names(strangers));
            return Some(refused(Code::RecoverAlive, why, "write the names as `quorate cluster status` shows them"));
        }
        let quorum = best.filter(|_| self.said.point.is_none()).and_then(|(_, best)| self.possible_quorum(best));
        quorum.or_else(|| self.unknown_nodes())
    }

    /// The highest revision that the nodes which answer hold in their data or their spools, or have uploaded from them.
    fn held(&self) -> u64 {
        let newest = self.best().map_or(0, |(_, best)| best.generation);
        let data = self.whole().filter(|(_, one)| one.generation == newest).filter_map(|(_, one)| one.revision);
        let spools = self.evidence.spools.iter().flat_map(|spool| &spool.parts).map(|part| part.last);
        data.chain(spools).max().unwrap_or(0).max(self.evidence.uploaded)
    }

    /// The claims that count.
    fn claims(&self) -> impl Iterator<Item = &'a ClaimSeen> {
        self.evidence.claims.iter().filter(|_| !self.said.without_store)
    }

    /// A recovery of which no node here has heard. One that a node which answers began, and knows nothing of, was given up.
    fn claimed_elsewhere(&self) -> Option<ChangeHalt> {
        let known = self.generations().max().unwrap_or(0);
        let newest = self.claims().max_by_key(|claim| claim.generation)?;
        if self.answered(&newest.node) || (newest.generation <= known && !self.is_foreign(newest, known)) {
            return None;
        }
        let why = format!(
            "`{}` claimed generation {} of this cluster in the store at {}, and no node here belongs to it",
            newest.node, newest.generation, newest.at
        );
        let way_out = "bring its nodes back, and let these join it: `quorate data reset`; or recover beside it: `--without-store`";
        Some(refused(Code::GenerationClaimed, why, way_out))
    }

    /// Whether a claimed generation that is not newer than the known one is another cluster: a recovery beside the store made the same number,
    /// or a later one. Numbers alone do not tell.
    fn is_foreign(&self, claim: &ClaimSeen, known: u64) -> bool {
        let Evidence { belongs, left, .. } = self.evidence;
        claim.cluster.is_some_and(|cluster| {
            let superseded = claim.generation < known && left.contains(&cluster);
            !belongs.contains(&cluster) && !superseded
        })
    }

    /// Enough whole data for the members to go on by themselves.
    fn possible_quorum(&self, best: &Survivor) -> Option<ChangeHalt> {
        let same = |survivor: &Survivor| {
            // Who has heard of a newer one does not start any more.
            survivor.newest <= survivor.generation
                && survivor.cluster == best.cluster
                && survivor.generation == best.generation
                && (best.voters.is_empty() || best.voters.contains_key(&survivor.member))
        };
        let able: Vec<&str> = self.whole().filter(|(_, one)| same(one)).map(|(node, _)| node).collect();
        // Where nobody can say who votes, all that are declared may.
        let voters = if best.voters.is_empty() { self.spec.members.len() } else { best.voters.len() };
        let needed = voters / 2 + 1;
        if able.len() >= needed {
            let why = format!("{} hold whole data, and {needed} of {voters} are a quorum", names(able));
            let way_out = "start their etcd: `quorate run`; what keeps it from starting is in `quorate cluster status`";
            return Some(refused(Code::RecoverQuorum, why, way_out));
        }
        None
    }

    fn unknown(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.rows.iter().filter_map(|row| match &row.seen {
            RowSeen::Unknown(why) => Some((row.node.as_str(), why.as_str())),
            RowSeen::Silent(_) | RowSeen::Blank { .. } | RowSeen::Damaged { .. } | RowSeen::Holds(_) => None,
        })
    }

    /// What cannot be looked at may reach furthest. Only a person passes over it.
    fn unknown_nodes(&self) -> Option<ChangeHalt> {
        let passed = |node: &str| self.said.passed_over.iter().any(|name| name == node);
        let (open, why): (Vec<&str>, Vec<String>) = self
            .unknown()
            .filter(|(node, _)| !passed(node))
            .map(|(node, why)| (node, format!("`{node}`: {why}")))
            .unzip();
        if !open.is_empty() {
            let flags: Vec<String> = open.iter().map(|node| format!("--pass-over {node}")).collect();
            let why = format!("what {} holds cannot be found out ({})", names(open), why.join("; "));
            let way_out = format!(
                "make it readable, and run this again; or, if what is there may be lost, say so: `{}`",
                flags.join(" ")
            );
            return Some(refused(Code::RecoverUnknown, why, &way_out));
        }
        let needless = self.said.passed_over.iter().map(String::as_str);
        let needless: Vec<&str> = needless.filter(|node| !self.unknown().any(|(known, _)| known == *node)).collect();
        (!needless.is_empty()).then(|| {
            let why =
                format!("{} need not be passed over: what they hold is known, or they are silent", names(needless));
            refused(
                Code::RecoverUnknown,
                why,
                "leave out `--pass-over` for them; machines that are off are named by `--fenced`",
            )
        })
    }

    /// A store that may hold more than the survivors has to be asked first.
    fn unknown_store(&self, best: Option<(&str, &Survivor)>) -> Option<ChangeHalt> {
        let StoreNewest::Unknown(why) = self.store else { return None };
        let what =
            if best.is_some() { "whether a backup is newer than what is left" } else { "whether there is a backup" };
        let why = format!("cannot tell {what}: the store does not answer ({why})");
        let way_out =
            "a store that does not answer is not taken for empty; bring it back, or do without it: `--without-store`";
        Some(refused(Code::RecoverStore, why, way_out))
    }

    /// The backup, if it can be ours and is newer.
    fn source(&self, best: Option<(&str, &Survivor)>) -> Option<Source> {
        let backup = match (self.store, best) {
            (StoreNewest::Newest { cluster: Some(cluster), .. }, Some((_, best))) if *cluster != best.cluster => None,
            (store, _) => self.extended(store).map(|extended| extended.revision),
        };
        let place = best.map(|(node, _)| node).or_else(|| {
            let mut reachable: Vec<&str> = self.rows.iter().map(|row| row.node.as_str()).collect();
            reachable.retain(|node| self.answered(node) && !self.unknown().any(|(unknown, _)| unknown == *node));
            reachable.into_iter().min()
        })?;
        if self.said.point.is_some() {
            return backup.map(|revision| Source::Backup { node: place.to_owned(), revision });
        }
        match (best, backup) {
            (Some((node, survivor)), Some(revision)) if survivor.revision.is_some_and(|known| known >= revision) => {
                Some(Source::Survivor { node: node.to_owned(), revision: survivor.revision })
            }
            (Some((node, survivor)), None) => {
                Some(Source::Survivor { node: node.to_owned(), revision: survivor.revision })
            }
            // What a survivor holds and cannot be told is not taken for less than the backup, which is known.
            (Some((node, Survivor { revision: None, .. })), Some(_)) => {
                Some(Source::Survivor { node: node.to_owned(), revision: None })
            }
            (_, Some(revision)) => Some(Source::Backup { node: place.to_owned(), revision }),
            (None, None) => None,
        }
    }

    fn loses(&self, best: Option<(&str, &Survivor)>, source: &Source) -> Vec<String> {
        let mut loses = Vec::new();
        if let Some(point) = self.said.point {
            loses.push(match point {
                Point::Time(_) => "every write after that time, also what nodes and newer backups hold".to_owned(),
                Point::Revision(revision) => {
                    format!("every write after revision {revision}, also what nodes and newer backups hold")
                }
            });
            loses.extend(spool::left_out(self.evidence.spools, self.end_of_store(), &self.uploads(source)));
            return loses;
        }
        match (source, best) {
            (Source::Backup { revision, .. }, Some((node, survivor))) => {
                let known = survivor.revision.unwrap_or(0);
                let more = revision.saturating_sub(known);
                loses.push(format!(
                    "nothing of the backup: it is {more} revisions ahead of `{node}` ({revision}, {known})"
                ));
            }
            (Source::Backup { revision, .. }, None) => {
                loses.push(format!("everything after revision {revision}, the newest of the backup"));
            }
            (Source::Survivor { node, .. }, Some((_, survivor))) => {
                let dead = survivor.voters.iter().filter(|(id, _)| **id != survivor.member);
                let saw = |id: &MemberId| self.survivors().filter_map(|(_, one)| one.saw.get(id)).max().copied();
                let furthest = dead.filter_map(|(id, name)| saw(id).map(|index| (index, name))).max();
                match furthest.filter(|(index, _)| *index > survivor.index) {
                    Some((index, name)) => loses.push(format!(
                        "up to {} entries of the log: `{name}` was seen at {index}, and `{node}` ends at {}",
                        index - survivor.index,
                        survivor.index
                    )),
                    None => loses.push(format!(
                        "what only dead members acknowledged after entry {} of term {}; nobody here saw them further",
                        survivor.index, survivor.term
                    )),
                }
                let newest = self.generations().max().unwrap_or(0);
                if newest > survivor.generation {
                    loses.push(format!("what was written to generation {newest}, whose data nobody here holds"));
                }
            }
            (Source::Survivor { .. }, None) => {}
        }
        let (reached, used) = match source {
            Source::Survivor { revision, .. } => (*revision, Vec::new()),
            Source::Backup { revision, .. } => (Some(*revision), self.uploads(source)),
        };
        loses.extend(spool::left_out(self.evidence.spools, reached, &used));
        loses.extend(self.unused());
        loses.extend(self.differences());
        loses
    }

    /// How far the store reaches, whatever point is wanted.
    fn end_of_store(&self) -> Option<u64> {
        match self.store {
            StoreNewest::Newest { revision, .. } => Some(self.evidence.newest.unwrap_or(0).max(*revision)),
            StoreNewest::NotDeclared | StoreNewest::Unknown(_) | StoreNewest::Empty => None,
        }
    }

    /// How far the store reaches once spools are uploaded; none where that does not lead to the point that is wanted.
    fn extended(&self, store: &StoreNewest) -> Option<Extended> {
        let (Some(point), StoreNewest::Newest { cluster, revision, epoch }) = (self.said.point, store) else {
            return extend(store, self.evidence.spools);
        };
        // Writes at or before the point may wait in a spool alone. They follow on the end of the store.
        let end = self.end_of_store().unwrap_or(*revision);
        let store = StoreNewest::Newest { cluster: *cluster, revision: end, epoch: *epoch };
        let extended = extend(&store, self.evidence.spools)?;
        let revision = match point {
            Point::Revision(wanted) if extended.revision < wanted => return None,
            Point::Revision(wanted) => wanted,
            // When they were written is known to the restore, which cuts what is later.
            Point::Time(_) if *revision == end => extended.revision,
            Point::Time(_) => *revision,
        };
        Some(Extended { revision, ..extended })
    }

    /// What is uploaded before the backup is restored.
    fn uploads(&self, source: &Source) -> Vec<(String, u64, u64)> {
        match source {
            Source::Survivor { .. } => Vec::new(),
            Source::Backup { .. } => self.extended(self.store).map(|extended| extended.uploads).unwrap_or_default(),
        }
    }

    /// What is there, and of no use.
    fn unused(&self) -> Vec<String> {
        let said = |row: &SurveyRow| match &row.seen {
            RowSeen::Damaged { why, .. } => Some(format!(
                "what only `{}` holds: its data is damaged ({why}), and is kept under another name",
                row.node
            )),
            RowSeen::Unknown(why) => {
                Some(format!("what only `{}` holds: it could not be looked at ({why}), and is left as it is", row.node))
            }
            RowSeen::Silent(_) | RowSeen::Blank { .. } | RowSeen::Holds(_) => None,
        };
        self.rows.iter().filter_map(said).collect()
    }

    /// Two who differ at one revision: one of them is wrong, and nobody can tell which.
    fn differences(&self) -> Vec<String> {
        let hashes: Vec<(&str, u32, u64)> =
            self.whole().filter_map(|(node, one)| one.hash.map(|(hash, at)| (node, hash, at))).collect();
        let mut said = Vec::new();
        for (at, (node, hash, revision)) in hashes.iter().enumerate() {
            for (other, theirs, same) in hashes.iter().skip(at + 1) {
                if revision == same && hash != theirs {
                    said.push(format!("`{node}` and `{other}` differ at revision {revision}: one of them is damaged"));
                }
            }
        }
        said
    }

    fn steps(&self, source: &Source, generation: u64) -> Vec<RecoverStep> {
        let (node, make) = match source {
            Source::Survivor { node, .. } => (node, RecoverStep::Replay { node: node.clone() }),
            Source::Backup { node, revision } => (node, RecoverStep::Fetch { node: node.clone(), revision: *revision }),
        };
        let name = || node.clone();
        let uploads = self.uploads(source).into_iter();
        let mut steps: Vec<RecoverStep> =
            uploads.map(|(node, first, last)| RecoverStep::Upload { node, first, last }).collect();
        steps.extend([
            RecoverStep::Claim { node: name(), generation },
            make,
            RecoverStep::Rebuild { node: name() },
            RecoverStep::Swap { node: name(), generation },
            RecoverStep::Start { node: name() },
        ]);
        let joins = |row: &&SurveyRow| matches!(row.seen, RowSeen::Holds(_) | RowSeen::Damaged { .. });
        let others = self.rows.iter().filter(joins).map(|row| row.node.as_str()).filter(|other| other != node);
        steps.extend(others.map(|other| RecoverStep::Rejoin { node: other.to_owned() }));
        steps
    }
}

/// Whether its etcd confirms reads.
fn is_serving(row: &SurveyRow) -> bool {
    row.serves || matches!(&row.seen, RowSeen::Holds(survivor) if survivor.serves)
}

fn is_whole(survivor: &Survivor) -> bool {
    matches!(survivor.verdict, Verdict::Valid | Verdict::RepairableTail(_))
}

fn listed(list: &[String]) -> String {
    names(list.iter().map(String::as_str))
}

fn halt(code: Code, why: String, way_out: &str) -> Halt {
    Halt { code, why, way_out: way_out.to_owned(), lost: None }
}

fn refused(code: Code, why: String, way_out: &str) -> ChangeHalt {
    ChangeHalt { refused: true, halt: halt(code, why, way_out) }
}
