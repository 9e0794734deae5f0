//! Each row of the decision, with the words that the operator reads.

use super::*;

fn wanted(wal_dir: bool) -> Wanted {
    Wanted {
        name: "n1".into(),
        member: MemberId(0xa1),
        cluster: ClusterId(0xc1),
        data_dir: "/d".into(),
        wal_dir: wal_dir.then(|| "/w".into()),
    }
}

fn member(cluster: u64, member: u64, name: &str) -> SeenMember {
    let name = Some(name.to_owned()).filter(|name| !name.is_empty());
    SeenMember { cluster: ClusterId(cluster), member: MemberId(member), name, has_db: true, used: Used::No }
}

fn used(mut member: SeenMember, used: Used) -> SeenMember {
    member.used = used;
    member
}

fn wal(of: SeenMember, as_written: bool) -> Option<SeenWal> {
    Some(SeenWal::Wal { of, as_written })
}

/// One line per decision: the variant, or the code, the attempt and the hint.
fn text(data: SeenData, wal: Option<SeenWal>) -> String {
    match plan_init(&wanted(wal.is_some()), &SeenTarget { data, wal }) {
        InitDecision::Refuse(fault) => {
            assert_eq!(fault.code().exit(), quorate_faults::Exit::Refused);
            format!("{}: {fault}\n{}", fault.code(), fault.hint_text().unwrap_or_default())
        }
        other => format!("{other:?}"),
    }
}

#[track_caller]
fn check(data: SeenData, wal: Option<SeenWal>, expected: &str) {
    assert_eq!(text(data, wal), expected);
}

/// Only the first line: the hint is the same as in the row before.
#[track_caller]
fn check_attempt(data: SeenData, wal: Option<SeenWal>, expected: &str) {
    assert_eq!(text(data, wal).lines().next().unwrap_or_default(), expected);
}

#[test]
fn builds_only_where_nothing_is() {
    check(SeenData::Absent, None, "Build { data: Beside, wal: None }");
    check(SeenData::Empty, None, "Build { data: Inside, wal: None }");
    check(SeenData::Absent, Some(SeenWal::Absent), "Build { data: Beside, wal: Some(Beside) }");
    check(SeenData::Empty, Some(SeenWal::Empty), "Build { data: Inside, wal: Some(Inside) }");
    check(SeenData::Absent, Some(SeenWal::Empty), "Build { data: Beside, wal: Some(Inside) }");
}

#[test]
fn this_very_member_is_left_alone_even_while_etcd_runs_on_it() {
    let same = || member(0xc1, 0xa1, "n1");
    check(SeenData::Member(same()), None, "AlreadyThisMember { other_name: None, running: false }");
    check(
        SeenData::Member(used(same(), Used::By(Some(7)))),
        None,
        "AlreadyThisMember { other_name: None, running: true }",
    );
    check(
        SeenData::Member(used(same(), Used::Unknown("no locks here".into()))),
        None,
        "AlreadyThisMember { other_name: None, running: false }",
    );
    check(
        SeenData::Member(member(0xc1, 0xa1, "old")),
        None,
        "AlreadyThisMember { other_name: Some(\"old\"), running: false }",
    );
    check(
        SeenData::NoWal { has_db: true, has_snap: true, used: Used::By(None) },
        wal(same(), false),
        "AlreadyThisMember { other_name: None, running: true }",
    );
}

#[test]
fn another_cluster_is_refused_with_both_ids() {
    check(
        SeenData::Member(member(0xc2, 0xa2, "m9")),
        None,
        "Q0201: cannot initialise `/d`: it is member `a2` (`m9`) of cluster `c2`, and cluster `c1` was wanted\n\
         cluster ids come from the peer URLs and `--token`, so check those first; if the data there is not needed, \
         move it away: `mv /d /d.old`",
    );
    check_attempt(
        SeenData::Absent,
        wal(member(0xc2, 0xa2, ""), false),
        "Q0201: cannot initialise `/w`: it is member `a2` of cluster `c2`, and cluster `c1` was wanted",
    );
    // The same member id in another cluster (one URL, another roster) is another cluster.
    check_attempt(
        SeenData::Member(member(0xc2, 0xa1, "n1")),
        None,
        "Q0201: cannot initialise `/d`: it is member `a1` (`n1`) of cluster `c2`, and cluster `c1` was wanted",
    );
}

#[test]
fn another_member_of_this_cluster_is_refused_with_both_names() {
    check(
        SeenData::Member(member(0xc1, 0xa2, "n2")),
        None,
        "Q0202: cannot initialise `/d`: it is member `a2` (`n2`) of cluster `c1`, not member `a1` (`n1`)\n\
         each machine gives its own `--name`; if the name is right and the data there is not needed, \
         move it away: `mv /d /d.old`",
    );
}

#[test]
fn a_running_etcd_is_named() {
    check(
        SeenData::Member(used(member(0xc2, 0xa2, ""), Used::By(Some(4711)))),
        None,
        "Q0203: cannot initialise `/d`: a running etcd (process 4711) holds it as member `a2` of cluster `c2`\n\
         give the directory of the new member; if this is it, stop that etcd first and see what it holds",
    );
    check_attempt(
        SeenData::NoWal { has_db: true, has_snap: true, used: Used::By(None) },
        None,
        "Q0203: cannot initialise `/d`: a running etcd holds it",
    );
    check_attempt(
        SeenData::Absent,
        wal(used(member(0xc1, 0xa1, "n1"), Used::By(None)), true),
        "Q0203: cannot initialise `/w`: a running etcd holds it as member `a1` (`n1`) of cluster `c1`",
    );
}

#[test]
fn what_cannot_be_seen_is_not_taken_for_empty() {
    check(
        SeenData::Unknown("permission denied".into()),
        None,
        "Q0204: cannot initialise `/d`: cannot tell what is there: permission denied\n\
         run as the user that owns the directory, or as root; what cannot be seen is not taken for empty",
    );
    check_attempt(
        SeenData::Absent,
        Some(SeenWal::Unknown("permission denied".into())),
        "Q0204: cannot initialise `/w`: cannot tell what is there: permission denied",
    );
    check_attempt(
        SeenData::Unknown("permission denied".into()),
        Some(SeenWal::Absent),
        "Q0204: cannot initialise `/d`: cannot tell what is there: permission denied",
    );
    check_attempt(
        SeenData::Absent,
        wal(used(member(0xc1, 0xa1, ""), Used::Unknown("no locks available".into())), true),
        "Q0204: cannot initialise `/w`: cannot tell what is there: no locks available",
    );
}

#[test]
fn data_that_cannot_be_understood_and_strangers_files_are_left_alone() {
    check(
        SeenData::Unreadable("its WAL does not begin with a member's ids".into()),
        None,
        "Q0204: cannot initialise `/d`: it holds etcd data that cannot be understood: its WAL does not begin with a \
         member's ids\n\
         see `quorate data verify /d`; if the data is not needed, move it away: `mv /d /d.old`",
    );
    check(
        SeenData::Foreign("it is a file".into()),
        None,
        "Q0205: cannot initialise `/d`: it is a file\ngive a directory that is empty or does not exist yet",
    );
    check_attempt(
        SeenData::Empty,
        Some(SeenWal::Foreign("it is not empty: `notes.txt`".into())),
        "Q0205: cannot initialise `/w`: it is not empty: `notes.txt`",
    );
}

#[test]
fn an_interrupted_run_with_a_separate_wal_is_finished() {
    let ours = || wal(member(0xc1, 0xa1, "n1"), true);
    check(SeenData::Absent, ours(), "FinishAfterWal { data: Beside }");
    check(SeenData::Empty, ours(), "FinishAfterWal { data: Inside }");
}

#[test]
fn half_a_member_is_never_completed_by_guessing() {
    let same = || member(0xc1, 0xa1, "n1");
    check(
        SeenData::Absent,
        wal(same(), false),
        "Q0208: cannot initialise `/d`: the WAL of this member in `/w` has been written to since it was made, so its \
         data dir has been lost or is not mounted\n\
         mount the data dir; if it is lost for good, replace the member in its cluster instead of founding it again",
    );
    check(
        SeenData::NoWal { has_db: true, has_snap: true, used: Used::No },
        Some(SeenWal::Absent),
        "Q0208: cannot initialise `/d`: it holds a db without its WAL\n\
         if its WAL is elsewhere, give that as `--wal-dir`; do not start etcd on it before, which would take the db for \
         its own; if it is not needed, move it away: `mv /d /d.old`",
    );
    check_attempt(
        SeenData::NoWal { has_db: false, has_snap: false, used: Used::No },
        None,
        "Q0208: cannot initialise `/d`: it holds the directories of a member without db and WAL",
    );
    check(
        SeenData::Member(SeenMember { has_db: false, ..same() }),
        None,
        "Q0208: cannot initialise `/d`: it is this member, but its db `member/snap/db` is missing\n\
         bring the file back; if it is lost, move the rest away (`mv /d /d.old`) and replace the member",
    );
    check(
        SeenData::NoWal { has_db: true, has_snap: false, used: Used::No },
        wal(same(), true),
        "Q0208: cannot initialise `/d`: etcd was started on it before an interrupted run was finished, and left a db that \
         it cannot start on\n\
         nothing has been stored there yet: move it away (`mv /d /d.old`) and run this again",
    );
    // etcd keeps no raft snapshot before it has written much; a log with a history needs none.
    check_attempt(
        SeenData::NoWal { has_db: true, has_snap: false, used: Used::No },
        wal(same(), false),
        "AlreadyThisMember { other_name: None, running: false }",
    );
    check(
        SeenData::Member(same()),
        Some(SeenWal::Empty),
        "Q0208: cannot initialise `/d`: it is this member already, with its WAL inside and not in `--wal-dir`\n\
         leave out `--wal-dir`, here and for etcd",
    );
    check_attempt(
        SeenData::Member(member(0xc2, 0xa2, "")),
        Some(SeenWal::Absent),
        "Q0201: cannot initialise `/d`: it is member `a2` of cluster `c2`, and cluster `c1` was wanted",
    );
}
