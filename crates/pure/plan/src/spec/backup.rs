//! Reads `backup` of the cluster file, and checks what can be checked without asking the store.

use quorate_etcd_formats::membership::ClusterId;
use quorate_faults::Code;

use super::read::{Reader, Section, Show};
use super::{At, Backup, Layout};
use crate::roster::quoted;
use crate::schedule::Schedule;

/// A delta in less than this would write more names than data.
const DELTA_PERIOD_MIN_MS: u128 = 100;

pub(super) fn section(reader: &mut Reader<'_>, file: &mut Section) -> Option<Backup> {
    let mut section = file.section(reader, "backup")?;
    let at = section.at;
    let Some((store, store_at)) = section.text(reader, "store") else {
        let hint = "such as `store: s3://bucket/prefix` or `store: file:///backups`".to_owned();
        reader.wrong(at, "backup.store", "`backup` has no `store`", Some(hint));
        return None;
    };
    check_store(reader, &store, store_at);
    let mut backup = Backup::new(store);
    section.word(reader, "layout", &[("quorate", Layout::Quorate), ("gardener", Layout::Gardener)], &mut backup.layout);
    section.span(reader, "delta-period", &mut backup.delta_period);
    section.size(reader, "delta-size", &mut backup.delta_size);
    if let Some((text, at)) = section.text(reader, "full-schedule") {
        match Schedule::parse(&text) {
            Ok(_) => backup.full_schedule = text,
            Err(fault) => {
                let hint = fault.hint_text().map(ToOwned::to_owned);
                reader.wrong(at, "backup.full-schedule", fault.to_string(), hint);
            }
        }
    }
    section.size(reader, "spool-max", &mut backup.spool_max);
    section.span(reader, "max-restore-time", &mut backup.max_restore_time);
    keep(reader, &mut section, &mut backup);
    take_over(reader, &mut section, &mut backup);
    section.close(reader);
    limits(reader, &backup, at);
    Some(backup)
}

fn keep(reader: &mut Reader<'_>, section: &mut Section, backup: &mut Backup) {
    let Some(mut keep) = section.section(reader, "keep") else { return };
    let at = keep.at;
    let mut count = |key: &'static str, into: &mut u32| {
        if let Some(number) = keep.number(reader, key, 100_000) {
            *into = u32::try_from(number).unwrap_or(u32::MAX);
        }
    };
    let rules = &mut backup.keep;
    count("last", &mut rules.last);
    count("hourly", &mut rules.hourly);
    count("daily", &mut rules.daily);
    count("weekly", &mut rules.weekly);
    count("monthly", &mut rules.monthly);
    keep.span(reader, "history", &mut rules.history);
    keep.close(reader);
    if [rules.last, rules.hourly, rules.daily, rules.weekly, rules.monthly] == [0; 5] && rules.history.is_zero() {
        let hint = "leave the section out for the defaults, or keep at least `last: 1`".to_owned();
        reader.wrong(at, "backup.keep", "`keep` keeps nothing", Some(hint));
    }
}

/// The id of the cluster whose backups this one continues, as `backup list` prints it.
fn take_over(reader: &mut Reader<'_>, section: &mut Section, backup: &mut Backup) {
    let Some((text, at)) = section.text(reader, "take-over") else { return };
    match u64::from_str_radix(&text, 16).ok().filter(|id| *id != 0) {
        Some(id) => backup.take_over = Some(ClusterId(id)),
        None => {
            let hint = "write the id of the cluster whose backups are continued, as `quorate backup list` prints it";
            reader.wrong(at, "backup.take-over", "`take-over` is not a cluster id", Some(hint.to_owned()));
        }
    }
}

/// A place and nothing else: no credentials, no options. Of a URL that may hold a secret nothing is repeated.
fn check_store(reader: &mut Reader<'_>, store: &str, at: At) {
    const SHAPE: &str = "write `file:///path`, `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`";
    let (scheme, rest) = store.split_once("://").unwrap_or_default();
    let (host, path) = rest.split_once('/').map_or((rest, ""), |(host, path)| (host, path));
    let what = if host.contains('@') {
        Some(("`store` holds a user name or password", Show::Before))
    } else if store.contains(['?', '#']) {
        Some(("`store` holds options, and a store's URL names a place alone", Show::Before))
    } else if !matches!(scheme, "file" | "s3" | "gs" | "az") {
        Some(("`store` is no store", Show::Before))
    } else if scheme == "file" && (!host.is_empty() || path.is_empty()) {
        Some(("`store` does not hold an absolute path", Show::Line))
    } else if scheme != "file" && (host.is_empty() || host.contains([':', ' '])) {
        Some(("`store` names no bucket", Show::Line))
    } else if path.split('/').any(|part| matches!(part, "." | "..")) {
        Some(("the path of `store` leads elsewhere", Show::Line))
    } else {
        None
    };
    let Some((what, show)) = what else { return };
    let hint = if host.contains('@') || store.contains('?') {
        "give credentials and options in the agent's environment, such as AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL"
    } else {
        SHAPE
    };
    reader.note(Code::SpecMistake, at, "backup.store", what.to_owned(), Some(hint.to_owned()), show);
}

fn limits(reader: &mut Reader<'_>, backup: &Backup, at: At) {
    if backup.delta_period.as_millis() < DELTA_PERIOD_MIN_MS {
        reader.wrong(at, "backup.delta-period", "`delta-period` is shorter than 100ms", None);
    }
    if backup.spool_max < backup.delta_size {
        let what =
            format!("`spool-max` ({}) is smaller than `delta-size`", quoted(&super::size_text(backup.spool_max)));
        reader.wrong(at, "backup.spool-max", what, Some("what is not stored yet waits there".into()));
    }
}
