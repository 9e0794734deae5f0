//! The database: meta pages, structure, small buckets, and in full mode every item.

use quorate_faults::{Code, Place, Severity};

use super::content::{BucketCheck, Context};
use super::{GoOn, Mode, Report, Settings, Unfinished};
use crate::bolt::check::{self, Run, Structure};
use crate::bolt::{BoltError, Bucket, Db, MetaPages, PageProblem};
use crate::database::{BUCKETS, Facts};
use crate::{ReadAt, ReadError};

/// A database that can be read at all.
pub(super) struct Opened<'s> {
    db: Db<'s, dyn ReadAt + 's>,
    buckets: Vec<(Vec<u8>, Bucket)>,
    pub(super) facts: Option<Facts>,
    failure: Option<BoltError>,
}

/// The quick part: meta pages and small buckets.
pub(super) fn open<'s>(source: &'s (dyn ReadAt + 's), report: &mut Report) -> Option<Opened<'s>> {
    let metas = match MetaPages::read(source) {
        Ok(metas) => metas,
        Err(error) => {
            unreadable(&error, report);
            return None;
        }
    };
    check_metas(&metas, report);
    let db = match Db::with_meta(source, metas.chosen()?) {
        Ok(db) => db,
        Err(error) => {
            report.add(Code::BoltTooShort, Severity::Error, report.db_place(), error.to_string());
            return None;
        }
    };
    let found = db.buckets().and_then(|buckets| Facts::read(&db, &buckets).map(|facts| (buckets, facts)));
    let (buckets, facts, failure) = match found {
        Ok((buckets, facts)) => (buckets, Some(facts), None),
        Err(error) => (Vec::new(), None, Some(error)),
    };
    if let Some(facts) = &facts {
        check_buckets(&buckets, facts, report);
    }
    Some(Opened { db, buckets, facts, failure })
}

/// The rest: in full mode every page, for as long as `go_on` says so.
pub(super) fn check(
    opened: Opened<'_>,
    settings: &Settings<'_>,
    go_on: Option<&GoOn<'_>>,
    report: &mut Report,
) -> Option<Facts> {
    if settings.mode == Mode::Full {
        check_everything(&opened, settings, go_on, report);
    }
    // A full check has named the damage page by page.
    if let Some(error) = opened.failure.filter(|_| !report.has_errors()) {
        broken(&error, report);
    }
    opened.facts
}

fn check_metas(metas: &MetaPages, report: &mut Report) {
    let severity = if metas.chosen().is_some() { Severity::Warning } else { Severity::Error };
    for (id, page) in metas.pages.iter().enumerate() {
        if let Err(problem) = page {
            let what = format!("meta page {id} {problem}");
            report.add(Code::BoltMeta, severity, report.db_place().page(id as u64), what);
        }
    }
    if let [Ok(first), Ok(second)] = metas.pages
        && first.txid.abs_diff(second.txid) > 1
    {
        let what = format!("the meta pages are of transactions {} and {}", first.txid, second.txid);
        report.add(Code::BoltMeta, Severity::Warning, report.db_place(), what);
    }
}

fn check_buckets(buckets: &[(Vec<u8>, Bucket)], facts: &Facts, report: &mut Report) {
    for wanted in BUCKETS {
        if !buckets.iter().any(|(name, _)| name == wanted.as_bytes()) {
            // etcd makes missing buckets at start, but not what `meta` must say, and members cannot be guessed.
            let severity = if matches!(wanted, "meta" | "members") { Severity::Error } else { Severity::Info };
            report.add(Code::BucketMissing, severity, report.db_place(), format!("bucket `{wanted}` is missing"));
        }
    }
    let unknown = buckets.iter().filter(|(name, _)| !BUCKETS.iter().any(|known| known.as_bytes() == name));
    for (name, _) in unknown {
        let what = format!("no etcd we know has a bucket `{}`", String::from_utf8_lossy(name).escape_debug());
        report.add(Code::BucketMissing, Severity::Info, report.db_place(), what);
    }
    for (bucket, key) in &facts.unknown {
        let what = format!("no etcd we know writes `{}` into bucket `{bucket}`", key.escape_debug());
        report.add(Code::MetaValue, Severity::Info, report.db_place(), what);
    }
    for wrong in &facts.malformed {
        let code = match wrong.bucket {
            "lease" => Code::LeaseInvalid,
            "members" | "members_removed" => Code::MemberInvalid,
            _ => Code::MetaValue,
        };
        let what = format!("`{}` in bucket `{}` is not {}", wrong.key.escape_debug(), wrong.bucket, wrong.wanted);
        report.add(code, Severity::Error, report.db_place(), what);
    }
    if facts.finished_compact > facts.scheduled_compact {
        let what = "the finished compaction is newer than any that was scheduled";
        report.add(Code::MetaValue, Severity::Error, report.db_place(), what);
    }
    for (member, kind) in &facts.alarms {
        report.add(
            Code::AlarmRaised,
            Severity::Warning,
            report.db_place(),
            format!("member {member} has alarm {kind}"),
        );
    }
    if facts.auth_enabled && !facts.auth_root {
        let what = "auth is on, but user or role `root` does not exist";
        report.add(Code::AuthInconsistent, Severity::Warning, report.db_place(), what);
    }
}

fn check_everything(opened: &Opened<'_>, settings: &Settings<'_>, go_on: Option<&GoOn<'_>>, report: &mut Report) {
    let Opened { db, buckets, facts, .. } = opened;
    let context = Context::read(db, buckets, facts.as_ref().and_then(Facts::compact_revision));
    let run = Run { workers: settings.workers, progress: settings.progress, go_on };
    let (structure, checks) = check::check(db, &run, |name| BucketCheck::new(&context, name));
    let sound = structure.problems.is_empty() && structure.unreadable.is_empty() && !structure.unfinished;
    let page_size = u64::from(db.meta().page_size);
    let unfinished = structure.unfinished.then(|| Unfinished {
        db_bytes_checked: structure.pages_reached.saturating_mul(page_size),
        db_bytes: db.meta().hwm.saturating_mul(page_size),
        wal_whole: true,
    });
    report_structure(structure, page_size, report);
    let mut items = 0;
    let mut hash = 0;
    for (name, mut check) in checks {
        items += check.items;
        let (crc, bytes) = check.crc();
        hash = crc32c::crc32c_combine(crc32c::crc32c_append(hash, &name), crc, bytes);
        if unfinished.is_some() {
            check.forget_suspects();
        }
        if let Some((_, bucket)) = buckets.iter().find(|(found, _)| *found == name) {
            check.report(db, bucket, report);
        }
    }
    if sound {
        report.items = Some(items);
        report.hash = Some(hash);
    }
    report.unfinished = unfinished;
}

fn report_structure(structure: Structure, page_size: u64, report: &mut Report) {
    for (page, problem) in &structure.problems {
        let place = report.db_place().page(*page).at(page.saturating_mul(page_size));
        report.add(code_of(problem), Severity::Error, place, format!("page {page} {problem}"));
    }
    if structure.problems_more > 0 {
        let what = format!("{} more pages are damaged", structure.problems_more);
        report.add(Code::BoltPage, Severity::Error, report.db_place(), what);
    }
    for error in &structure.unreadable {
        unreadable(error, report);
    }
    if let Some(problem) = structure.freelist {
        report.add(Code::BoltFreelist, Severity::Error, report.db_place(), problem.to_string());
    }
}

fn broken(error: &BoltError, report: &mut Report) {
    match error {
        BoltError::Read(error) => unreadable(error, report),
        BoltError::Page { page, problem } => {
            report.add(
                code_of(problem),
                Severity::Error,
                report.db_place().page(*page),
                format!("page {page} {problem}"),
            );
        }
        BoltError::NoMeta => report.add(Code::BoltMeta, Severity::Error, report.db_place(), error.to_string()),
        BoltError::TooShort { .. } => {
            report.add(Code::BoltTooShort, Severity::Error, report.db_place(), error.to_string());
        }
    }
}

fn unreadable(error: &ReadError, report: &mut Report) {
    let why = error.cause.as_ref().map_or_else(|| "the file ends before it".to_owned(), ToString::to_string);
    let place = Place { offset: Some(error.offset), ..report.db_place() };
    report.add(Code::Io, Severity::Error, place, format!("{error}: {why}"));
}

fn code_of(problem: &PageProblem) -> Code {
    match problem {
        PageProblem::ReachedTwice => Code::BoltPageTwice,
        PageProblem::Order { .. } | PageProblem::Bounds => Code::BoltOrder,
        PageProblem::SingleChild => Code::BoltSingleChild,
        PageProblem::TooLarge { .. } => Code::BoltTooLarge,
        PageProblem::OutOfRange { .. }
        | PageProblem::WrongId { .. }
        | PageProblem::NotTree { .. }
        | PageProblem::RunsPastEnd { .. }
        | PageProblem::Overflow { .. }
        | PageProblem::Table { .. }
        | PageProblem::Empty
        | PageProblem::TooDeep { .. }
        | PageProblem::Bucket { .. } => Code::BoltPage,
    }
}
