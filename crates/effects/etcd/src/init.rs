//! Makes a member's data dir offline: looks at the target, and builds where nothing is.
//!
//! Founding and restoring differ in one file: the database. Whoever restores hands in how it is written.
//!
//! **Invariant:** at every instant the target is either nothing that etcd would start on, or the whole; and an existing
//! data dir is never changed.

mod build;
pub(crate) mod left_overs;
mod observe;
mod paths;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use quorate_etcd_formats::founding::{Form, Founding, FoundingFiles};
use quorate_etcd_formats::membership::Member;
use quorate_etcd_formats::rebuild::Options;
use quorate_faults::{Code, Fault};
use quorate_host::durable::{Disk, DiskFile};
use quorate_plan::Warning;
use quorate_plan::init::{InitDecision, Wanted, plan_init};

pub use build::{DIR_MODE, FILE_MODE};
pub use paths::Target;

use crate::engine::{self, Ingredients};
use build::Placed;
use left_overs::LeftOver;

/// How often a run looks again after it lost a race. Each round ends with another run having won, so few are needed.
const ROUNDS_MAX: usize = 3;

/// Which member is to be made, in which form.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The whole cluster.
    pub founding: &'a Founding,
    /// The member of it that lives here.
    pub local: &'a Member,
    /// For which etcd.
    pub form: Form,
}

/// What is to be done, before anything was.
#[derive(Debug)]
pub struct Planned {
    target: Target,
    files: FoundingFiles,
    decision: InitDecision,
    left_overs: Vec<LeftOver>,
}

/// A file or directory that would be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewPath {
    /// Its final path.
    pub path: PathBuf,
    /// Permission bits.
    pub mode: u32,
    /// Its size; `None`: a directory.
    pub size: Option<u64>,
}

/// How it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The member was made.
    Made,
    /// An interrupted run had made the WAL; the rest was made.
    Finished,
    /// It was this very member already.
    Already {
        /// The name on record, where it is another than the one that was given.
        other_name: Option<String>,
        /// Whether etcd runs on it.
        running: bool,
    },
}

/// What was done, and what the operator should know besides.
#[derive(Debug)]
pub struct Done {
    /// How it ended.
    pub outcome: Outcome,
    /// Left-overs that were replaced.
    pub warnings: Vec<Warning>,
}

/// Writes the database into an empty file. Called in each round that builds.
pub type Fill<'f> = dyn FnMut(&mut dyn DiskFile) -> Result<(), Fault> + 'f;

/// Looks at the target and decides. Changes nothing.
pub fn plan(target: &Target, request: Request<'_>) -> Result<Planned, Fault> {
    let mut files = request.founding.files(request.local.id, request.form);
    if target.wal_dir().is_some() {
        files.wal = request.founding.separate_wal(request.local.id, request.form);
    }
    let wanted = Wanted {
        name: request.local.name.clone(),
        member: request.local.id,
        cluster: request.founding.cluster_id,
        data_dir: target.data_dir().to_owned(),
        wal_dir: target.wal_dir().map(Path::to_owned),
    };
    let seen = observe::observe_target(target, &files);
    let decision = plan_init(&wanted, &seen);
    let left_overs = left_overs::observe_left_overs(target, &files);
    Ok(Planned { target: target.clone(), files, decision, left_overs })
}

/// Makes the member, unless it is there, with a blank database. Safe to repeat, also after being killed at any point.
pub fn ensure_member(disk: &impl Disk, target: &Target, request: Request<'_>) -> Result<Done, Fault> {
    let membership = Some((request.founding, request.form));
    let options = Options { membership, ..Options::copy() };
    let mut fill = |file: &mut dyn DiskFile| {
        let progress = AtomicU64::new(0);
        let ingredients = Ingredients { base: None, events: None, options, progress: &progress };
        engine::write_database(file, ingredients).map(|_| ())
    };
    ensure_member_with(disk, target, request, &mut fill)
}

/// The same with a database that `fill` writes.
pub fn ensure_member_with(
    disk: &impl Disk,
    target: &Target,
    request: Request<'_>,
    fill: &mut Fill<'_>,
) -> Result<Done, Fault> {
    let mut warnings = Vec::new();
    for _ in 0..ROUNDS_MAX {
        let planned = plan(target, request)?;
        warnings.extend(planned.warnings());
        let outcome = planned.carry_out(disk, fill)?;
        if let Some(outcome) = outcome {
            return Ok(Done { outcome, warnings });
        }
    }
    Err(left_overs::busy(target.data_dir()))
}

impl Planned {
    /// What was decided.
    pub fn decision(&self) -> &InitDecision {
        &self.decision
    }

    /// What is wrong with the target, if anything.
    pub fn into_refusal(self) -> Result<Planned, Fault> {
        match self.decision {
            InitDecision::Refuse(fault) => Err(fault),
            decision => Ok(Planned { decision, ..self }),
        }
    }

    /// Left-overs that would be, or were, replaced.
    pub fn warnings(&self) -> Vec<Warning> {
        self.left_overs.iter().map(LeftOver::warning).collect()
    }

    /// Everything that would be made, parents first. Empty if there is nothing to do.
    pub fn new_paths(&self) -> Vec<NewPath> {
        build::new_paths(&self.target, &self.files, &self.decision)
    }

    /// `None`: another run was quicker, and what it did must be looked at.
    fn carry_out(self, disk: &impl Disk, fill: &mut Fill<'_>) -> Result<Option<Outcome>, Fault> {
        match self.decision {
            InitDecision::Refuse(fault) => Err(fault),
            InitDecision::AlreadyThisMember { other_name, running } => {
                left_overs::ensure_removed_unless_busy(disk, &self.left_overs)?;
                build::sync_what_is_there(disk, &self.target)?;
                Ok(Some(Outcome::Already { other_name, running }))
            }
            InitDecision::Build { data, wal } => {
                left_overs::ensure_removed(disk, &self.left_overs)?;
                let placed = build::build(disk, &self.target, &self.files, data, wal, fill)?;
                Ok((placed == Placed::All).then_some(Outcome::Made))
            }
            InitDecision::FinishAfterWal { data } => {
                left_overs::ensure_removed(disk, &self.left_overs)?;
                let placed = build::finish_after_wal(disk, &self.target, &self.files, data, fill)?;
                Ok((placed == Placed::All).then_some(Outcome::Finished))
            }
        }
    }
}

/// A path that no directory can be made at.
fn bad_path(flag: &str, path: &Path, why: &str) -> Fault {
    Fault::new(Code::Usage, format!("cannot use {flag} `{}`: {why}", path.display()))
        .hint("see `quorate data init --help`")
}
