//! `quorate cluster upgrade --check --data-dir DIR`: whether a release of etcd can start on the data dir of a stopped member.
//!
//! **Rule:** reads only, and what cannot be read is no consent.

use std::collections::BTreeMap;
use std::path::Path;

use quorate_etcd::datadir::{self, Found};
use quorate_etcd_formats::bolt::Db;
use quorate_etcd_formats::database::Facts;
use quorate_etcd_formats::dir::{DataDir, InUse};
use quorate_etcd_formats::verify::{self, V2Entries};
use quorate_etcd_formats::wal::WalFile;
use quorate_faults::{Code, Exit, Fault};
use quorate_plan::change::upgrade::{Release, allowed};
use serde::Serialize;

use crate::printer::Printer;
use crate::render::{Page, Report};

/// Releases of 3.5 from this one on go to 3.6. The data does not tell which one wrote it.
const PATCH: u64 = 26;

/// Checks a data dir.
pub(super) fn check(dir: &Path, wal_dir: Option<&Path>, to: Release, printer: &mut Printer) -> Result<Exit, Fault> {
    let shown = dir.display().to_string();
    let attempt = || format!("cannot upgrade `{shown}` to etcd {to}");
    let Found::DataDir(open) = datadir::open(dir, wal_dir)? else {
        return Err(datadir::not_etcd(attempt(), "it is a file, and not a data dir"));
    };
    let view = open.view();
    match &view.in_use {
        InUse::No => {}
        InUse::Yes { .. } => {
            return Err(Fault::new(Code::DataInUse, format!("{}: etcd runs on it", attempt())).hint(format!(
                "check the running cluster: `quorate cluster upgrade --check --to {to} --config FILE`"
            )));
        }
        InUse::Unknown(why) => {
            return Err(Fault::new(Code::DataInUse, attempt())
                .caused_by(format!("whether etcd runs on it is unknown: {why}"))
                .hint("run it as the user that etcd runs as"));
        }
    }
    let from = wrote(&view, &attempt())?;
    if let Some(from) = from {
        let members = BTreeMap::from([(shown.clone(), from)]);
        allowed(&members, to)
            .map_err(|no| Fault::new(Code::UpgradeRefused, attempt()).caused_by(no.why).hint(no.way_out))?;
    }
    if (to.major, to.minor) >= verify::WITHOUT_V2 {
        entries(&view, from, to, &attempt())?;
    }
    printer.report(&Fits { data_dir: shown, to: to.to_string(), from: from.map(minor) });
    Ok(Exit::Done)
}

/// The minor version that the members of its cluster agreed on, where the database holds it (3.5 and later).
fn wrote(view: &DataDir<'_>, attempt: &str) -> Result<Option<Release>, Fault> {
    let Some(file) = view.db() else {
        return Err(datadir::not_etcd(attempt.to_owned(), "it has no database"));
    };
    let fail = |error| datadir::not_a_database(attempt.to_owned(), error);
    let db = Db::open(file.source).map_err(fail)?;
    let facts = Facts::read(&db, &db.buckets().map_err(fail)?).map_err(fail)?;
    let release = facts.cluster_version.and_then(|text| Release::parse(&text));
    Ok(release.map(|release| Release { patch: PATCH, ..release }))
}

/// Refuses a log with entries that the release cannot read.
fn entries(view: &DataDir<'_>, from: Option<Release>, to: Release, attempt: &str) -> Result<(), Fault> {
    let named = view.wal_files();
    let files: Vec<_> = named.iter().map(|file| WalFile { name: file.name, source: file.source }).collect();
    let why = match verify::v2_entries(&files) {
        Ok(V2Entries::Known { count: 0, .. }) => return Ok(()),
        Ok(V2Entries::Known { count, .. }) => {
            format!("its log holds {count} entries of 3.5 or earlier behind its newest raft snapshot")
        }
        Ok(V2Entries::Unknown(why)) => format!("whether it can read the log is unknown: {why}"),
        Err(error) => format!("whether it can read the log is unknown: {error}"),
    };
    let runs = from.map_or_else(|| "of the release that it ran last".to_owned(), minor);
    let hint = format!(
        "start etcd {runs} on it by its agent; `quorate cluster upgrade --to {to}` then takes a raft snapshot \
         behind them first"
    );
    Err(Fault::new(Code::UpgradeOldEntries, attempt.to_owned()).caused_by(why).hint(hint))
}

fn minor(release: Release) -> String {
    format!("{}.{}", release.major, release.minor)
}

/// What is printed.
#[derive(Serialize)]
struct Fits {
    data_dir: String,
    from: Option<String>,
    to: String,
}

impl Report for Fits {
    fn render(&self, page: &mut Page) {
        let from = self.from.as_deref().map(|from| format!(", which etcd {from} wrote")).unwrap_or_default();
        page.line(format!("etcd {} can start on `{}`{from}", self.to, self.data_dir));
    }
}
