//! The refusals of `data init`: each says what is there, what was wanted, and the way out.

use std::path::Path;

use quorate_faults::{Code, Fault};

use super::{SeenData, SeenMember, Used, Wanted};

/// Refuses data of another cluster or member, and says whether etcd is at work on it.
pub(super) fn unless_same(wanted: &Wanted, dir: &Path, there: &SeenMember) -> Result<(), Fault> {
    let same_cluster = there.cluster == wanted.cluster;
    if same_cluster && there.member == wanted.member {
        return Ok(());
    }
    if let Used::By(pid) = there.used {
        return Err(in_use(dir, pid, Some(there)));
    }
    let shown = dir.display();
    if same_cluster {
        let attempt = format!(
            "cannot initialise `{shown}`: it is member {} of cluster `{}`, not member {}",
            member(there),
            wanted.cluster,
            named(wanted.member, Some(&wanted.name)),
        );
        let hint = format!(
            "each machine gives its own `--name`; if the name is right and the data there is not needed, \
             move it away: `mv {shown} {shown}.old`"
        );
        return Err(Fault::new(Code::InitOtherMember, attempt).hint(hint));
    }
    let attempt = format!(
        "cannot initialise `{shown}`: it is member {} of cluster `{}`, and cluster `{}` was wanted",
        member(there),
        there.cluster,
        wanted.cluster,
    );
    let hint = format!(
        "cluster ids come from the peer URLs and `--token`, so check those first; if the data there is not needed, \
         move it away: `mv {shown} {shown}.old`"
    );
    Err(Fault::new(Code::InitOtherCluster, attempt).hint(hint))
}

pub(super) fn in_use(dir: &Path, pid: Option<u32>, there: Option<&SeenMember>) -> Fault {
    let who = pid.map_or_else(String::new, |pid| format!(" (process {pid})"));
    let what =
        there.map_or_else(String::new, |there| format!(" as member {} of cluster `{}`", member(there), there.cluster));
    let attempt = format!("cannot initialise `{}`: a running etcd{who} holds it{what}", dir.display());
    Fault::new(Code::InitInUse, attempt)
        .hint("give the directory of the new member; if this is it, stop that etcd first and see what it holds")
}

pub(super) fn unreadable(dir: &Path, why: &str) -> Fault {
    let shown = dir.display();
    Fault::new(
        Code::InitUnreadable,
        format!("cannot initialise `{shown}`: it holds etcd data that cannot be understood: {why}"),
    )
    .hint(format!(
        "see `quorate data verify {shown}`; if the data is not needed, move it away: `mv {shown} {shown}.old`"
    ))
}

pub(super) fn unknown(dir: &Path, why: &str) -> Fault {
    let shown = dir.display();
    Fault::new(Code::InitUnreadable, format!("cannot initialise `{shown}`: cannot tell what is there: {why}"))
        .hint("run as the user that owns the directory, or as root; what cannot be seen is not taken for empty")
}

pub(super) fn foreign(dir: &Path, what: &str) -> Fault {
    let shown = dir.display();
    Fault::new(Code::InitNotEmpty, format!("cannot initialise `{shown}`: {what}"))
        .hint("give a directory that is empty or does not exist yet")
}

/// A WAL that has a history, and no db: the disk with the data was lost, or not mounted.
pub(super) fn data_lost(wanted: &Wanted, wal_dir: &Path) -> Fault {
    let attempt = format!(
        "cannot initialise `{}`: the WAL of this member in `{}` has been written to since it was made, \
         so its data dir has been lost or is not mounted",
        wanted.data_dir.display(),
        wal_dir.display(),
    );
    Fault::new(Code::InitHalf, attempt).hint(
        "mount the data dir; if it is lost for good, replace the member in its cluster instead of founding it again",
    )
}

/// etcd was started between the two halves of an interrupted run. It made an empty db, and stopped.
pub(super) fn started_too_early(wanted: &Wanted) -> Fault {
    let shown = wanted.data_dir.display();
    let attempt = format!(
        "cannot initialise `{shown}`: etcd was started on it before an interrupted run was finished, and left a db that it \
         cannot start on"
    );
    Fault::new(Code::InitHalf, attempt)
        .hint(format!("nothing has been stored there yet: move it away (`mv {shown} {shown}.old`) and run this again"))
}

/// A WAL without a db in the same data dir.
pub(super) fn db_missing(dir: &Path) -> Fault {
    let shown = dir.display();
    Fault::new(
        Code::InitHalf,
        format!("cannot initialise `{shown}`: it is this member, but its db `member/snap/db` is missing"),
    )
    .hint(format!(
        "bring the file back; if it is lost, move the rest away (`mv {shown} {shown}.old`) and replace the member"
    ))
}

/// A `member/` without a WAL, where none is known to be elsewhere.
pub(super) fn wal_missing(dir: &Path, has_db: bool, used: &Used) -> Fault {
    if let Used::By(pid) = used {
        return in_use(dir, *pid, None);
    }
    let shown = dir.display();
    let what = if has_db { "a db without its WAL" } else { "the directories of a member without db and WAL" };
    Fault::new(Code::InitHalf, format!("cannot initialise `{shown}`: it holds {what}")).hint(format!(
        "if its WAL is elsewhere, give that as `--wal-dir`; do not start etcd on it before, which would take the db for \
         its own; if it is not needed, move it away: `mv {shown} {shown}.old`"
    ))
}

/// A separate WAL dir was given, and the data dir is not one that goes with it.
pub(super) fn data_beside_wal(wanted: &Wanted, data: &SeenData) -> Fault {
    let dir = &wanted.data_dir;
    match data {
        SeenData::Member(there) => match unless_same(wanted, dir, there) {
            Err(other) => other,
            Ok(()) => Fault::new(
                Code::InitHalf,
                format!(
                    "cannot initialise `{}`: it is this member already, with its WAL inside and not in `--wal-dir`",
                    dir.display()
                ),
            )
            .hint("leave out `--wal-dir`, here and for etcd"),
        },
        SeenData::Unreadable(why) => unreadable(dir, why),
        SeenData::Foreign(what) => foreign(dir, what),
        SeenData::Unknown(why) => unknown(dir, why),
        SeenData::NoWal { has_db, used, .. } => wal_missing(dir, *has_db, used),
        SeenData::Absent | SeenData::Empty => unknown(dir, "it changed while it was looked at"),
    }
}

fn member(there: &SeenMember) -> String {
    named(there.member, there.name.as_deref())
}

fn named(id: quorate_etcd_formats::membership::MemberId, name: Option<&str>) -> String {
    match name {
        Some(name) if !name.is_empty() => format!("`{id}` (`{name}`)"),
        _ => format!("`{id}`"),
    }
}
