//! Decides what `data init` does to a directory, from what was seen there.
//!
//! **Invariant:** the answer is to write only where it is certain that nothing is there. Unknown is not empty.

mod refuse;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use quorate_etcd_formats::membership::{ClusterId, MemberId};
use quorate_faults::Fault;

/// Who this machine is to be, and where.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// The member's name.
    pub name: String,
    /// The member's id, computed from its peer URLs and the token.
    pub member: MemberId,
    /// The cluster's id, computed from all member ids.
    pub cluster: ClusterId,
    /// The data dir.
    pub data_dir: PathBuf,
    /// Where the WAL goes, if not inside the data dir.
    pub wal_dir: Option<PathBuf>,
}

/// What was seen at the data dir and, if one is wanted, at the separate WAL dir.
#[derive(Debug, Clone)]
pub struct SeenTarget {
    /// At `--data-dir`.
    pub data: SeenData,
    /// At `--wal-dir`.
    pub wal: Option<SeenWal>,
}

/// What was seen at the data dir.
#[derive(Debug, Clone)]
pub enum SeenData {
    /// No such path.
    Absent,
    /// A directory with nothing of anyone's in it.
    Empty,
    /// `member/` with a WAL inside.
    Member(SeenMember),
    /// `member/` without a WAL inside. With a separate WAL dir, that is how it should be.
    NoWal {
        /// Whether `member/snap/db` is there.
        has_db: bool,
        /// Whether there is a raft snapshot in `member/snap`.
        has_snap: bool,
        /// Whether etcd runs on it.
        used: Used,
    },
    /// etcd data that cannot be understood, and why.
    Unreadable(String),
    /// Something that is not etcd's, and what.
    Foreign(String),
    /// It could not be found out, and why.
    Unknown(String),
}

/// What was seen at the separate WAL dir.
#[derive(Debug, Clone)]
pub enum SeenWal {
    /// No such path.
    Absent,
    /// A directory with nothing of anyone's in it.
    Empty,
    /// WAL segments.
    Wal {
        /// Whose.
        of: SeenMember,
        /// Whether they are, byte for byte, what would be written now, with nothing behind it.
        as_written: bool,
    },
    /// WAL segments that cannot be understood, and why.
    Unreadable(String),
    /// Something that is not etcd's, and what.
    Foreign(String),
    /// It could not be found out, and why.
    Unknown(String),
}

/// Whose WAL it is.
#[derive(Debug, Clone)]
pub struct SeenMember {
    /// From the WAL's first segment.
    pub cluster: ClusterId,
    /// From the WAL's first segment.
    pub member: MemberId,
    /// The member's name, where the db or the WAL says it.
    pub name: Option<String>,
    /// Whether `member/snap/db` is there. Meaningless for a separate WAL dir.
    pub has_db: bool,
    /// Whether etcd runs on it.
    pub used: Used,
}

/// Whether a running etcd holds the files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Used {
    /// No lock is held.
    No,
    /// A lock is held, by this process where that is known.
    By(Option<u32>),
    /// It could not be found out, and why.
    Unknown(String),
}

/// Where a new directory is built before it is renamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spot {
    /// Beside the target, which does not exist: the whole directory is renamed into place.
    Beside,
    /// Inside the target, which exists and is empty: it may be a mount point, and its owner and mode are someone's choice.
    Inside,
}

/// What to do.
#[derive(Debug)]
pub enum InitDecision {
    /// Nothing: the dir is this very member of this very cluster.
    AlreadyThisMember {
        /// The name on record, where it is another than the one that was given.
        other_name: Option<String>,
        /// Whether etcd runs on it.
        running: bool,
    },
    /// Make the whole.
    Build { data: Spot, wal: Option<Spot> },
    /// An earlier run put the separate WAL in place and was stopped before the data dir followed: make only that.
    FinishAfterWal { data: Spot },
    /// Touch nothing.
    Refuse(Fault),
}

/// Decides from what was seen.
pub fn plan_init(wanted: &Wanted, seen: &SeenTarget) -> InitDecision {
    let outcome = match &seen.wal {
        None => plan_without_wal_dir(wanted, &seen.data),
        Some(wal) => plan_with_wal_dir(wanted, &seen.data, wal),
    };
    outcome.unwrap_or_else(InitDecision::Refuse)
}

fn plan_without_wal_dir(wanted: &Wanted, data: &SeenData) -> Result<InitDecision, Fault> {
    let dir = &wanted.data_dir;
    match data {
        SeenData::Absent => Ok(InitDecision::Build { data: Spot::Beside, wal: None }),
        SeenData::Empty => Ok(InitDecision::Build { data: Spot::Inside, wal: None }),
        SeenData::Member(there) => {
            refuse::unless_same(wanted, dir, there)?;
            if !there.has_db {
                return Err(refuse::db_missing(dir));
            }
            Ok(already(wanted, there, &Used::No))
        }
        SeenData::NoWal { used, has_db, .. } => Err(refuse::wal_missing(dir, *has_db, used)),
        SeenData::Unreadable(why) => Err(refuse::unreadable(dir, why)),
        SeenData::Foreign(what) => Err(refuse::foreign(dir, what)),
        SeenData::Unknown(why) => Err(refuse::unknown(dir, why)),
    }
}

fn plan_with_wal_dir(wanted: &Wanted, data: &SeenData, wal: &SeenWal) -> Result<InitDecision, Fault> {
    let wal_dir = wanted.wal_dir.as_ref().unwrap_or(&wanted.data_dir);
    // Whose a directory is matters more than what the other one lacks, so the WAL is judged first.
    let (of, as_written) = match wal {
        SeenWal::Absent => return plan_new_wal(wanted, data, Spot::Beside),
        SeenWal::Empty => return plan_new_wal(wanted, data, Spot::Inside),
        SeenWal::Wal { of, as_written } => (of, *as_written),
        SeenWal::Unreadable(why) => return Err(refuse::unreadable(wal_dir, why)),
        SeenWal::Foreign(what) => return Err(refuse::foreign(wal_dir, what)),
        SeenWal::Unknown(why) => return Err(refuse::unknown(wal_dir, why)),
    };
    refuse::unless_same(wanted, wal_dir, of)?;
    let spot = match data {
        SeenData::NoWal { has_db: true, has_snap: false, used: Used::No } if as_written => {
            return Err(refuse::started_too_early(wanted));
        }
        SeenData::NoWal { has_db: true, used, .. } => return Ok(already(wanted, of, used)),
        SeenData::NoWal { has_db: false, .. } => return Err(refuse::db_missing(&wanted.data_dir)),
        SeenData::Absent => Spot::Beside,
        SeenData::Empty => Spot::Inside,
        SeenData::Member(_) | SeenData::Unreadable(_) | SeenData::Foreign(_) | SeenData::Unknown(_) => {
            return Err(refuse::data_beside_wal(wanted, data));
        }
    };
    match &of.used {
        Used::No if as_written => Ok(InitDecision::FinishAfterWal { data: spot }),
        Used::No => Err(refuse::data_lost(wanted, wal_dir)),
        Used::By(pid) => Err(refuse::in_use(wal_dir, *pid, Some(of))),
        Used::Unknown(why) => Err(refuse::unknown(wal_dir, why)),
    }
}

/// No separate WAL yet: the data dir must be free of anything, or the pair would be a mix.
fn plan_new_wal(wanted: &Wanted, data: &SeenData, wal: Spot) -> Result<InitDecision, Fault> {
    match data {
        SeenData::Absent => Ok(InitDecision::Build { data: Spot::Beside, wal: Some(wal) }),
        SeenData::Empty => Ok(InitDecision::Build { data: Spot::Inside, wal: Some(wal) }),
        SeenData::NoWal { used, has_db, .. } => Err(refuse::wal_missing(&wanted.data_dir, *has_db, used)),
        SeenData::Member(_) | SeenData::Unreadable(_) | SeenData::Foreign(_) | SeenData::Unknown(_) => {
            Err(refuse::data_beside_wal(wanted, data))
        }
    }
}

fn already(wanted: &Wanted, there: &SeenMember, db_used: &Used) -> InitDecision {
    let running = [&there.used, db_used].into_iter().any(|used| matches!(used, Used::By(_)));
    let other_name = there.name.clone().filter(|name| *name != wanted.name);
    InitDecision::AlreadyThisMember { other_name, running }
}
