//! etcd's own config file: which settings a version of etcd has, and the file that it is started with.
//!
//! **Rule:** etcd passes over keys that it does not know. So nothing is written that the table does not have for that very
//! version: a setting is translated to the name that the version has, or refused.

mod render;
mod table;

use quorate_faults::{Code, Fault};

pub use render::{EtcdConfig, render, render_checked_for, render_for, render_plain_for, revocations};

use crate::roster::{nearest, quoted};
use crate::server_log::Level;
use crate::spec::{Setting, Spec, Value, parse_duration};
use table::{Form, GATES, OURS, RENAMED, ROWS, Row, SOCKET, SPELT};

/// A minor version of etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Minor {
    /// 3.4
    V3_4,
    /// 3.5
    V3_5,
    /// 3.6
    V3_6,
    /// 3.7
    V3_7,
}

impl Minor {
    /// Every version there is a table for.
    pub const ALL: [Minor; 4] = [Minor::V3_4, Minor::V3_5, Minor::V3_6, Minor::V3_7];

    /// Reads `3.5` or `3.5.16`.
    pub fn parse(text: &str) -> Option<Minor> {
        let mut parts = text.trim().trim_start_matches('v').split('.');
        let (major, minor, patch) = (parts.next()?, parts.next()?, parts.next());
        let patch_fits = patch.is_none_or(|patch| patch.starts_with(|c: char| c.is_ascii_digit()));
        if major != "3" || !patch_fits {
            return None;
        }
        match minor {
            "4" => Some(Minor::V3_4),
            "5" => Some(Minor::V3_5),
            "6" => Some(Minor::V3_6),
            "7" => Some(Minor::V3_7),
            _ => None,
        }
    }

    /// Whether an etcd of this version may run on data whose cluster is at that one: its own, or any earlier. A cluster says 3.0
    /// until its first members have heard of each other. What cannot be read is later than all.
    pub fn reads(self, data: &str) -> bool {
        let mut parts = data.trim().split('.').map(str::parse::<u32>);
        let (Some(Ok(major)), Some(Ok(minor))) = (parts.next(), parts.next()) else { return false };
        let own = match self {
            Minor::V3_4 => 4,
            Minor::V3_5 => 5,
            Minor::V3_6 => 6,
            Minor::V3_7 => 7,
        };
        (major, minor) <= (3, own)
    }
}

impl std::fmt::Display for Minor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Minor::V3_4 => "3.4",
            Minor::V3_5 => "3.5",
            Minor::V3_6 => "3.6",
            Minor::V3_7 => "3.7",
        })
    }
}

/// A setting that Quorate chooses where the file says nothing, because etcd's own default is not what a careful operator would take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chosen {
    /// Its name.
    pub key: &'static str,
    /// Its value.
    pub value: &'static str,
    /// The last version that it is chosen for; later ones do it by themselves.
    pub last: Minor,
    /// Why.
    pub about: &'static str,
}

/// All of them. Others stay as etcd has them, for the reasons in decision 0187.
pub const CHOSEN: [Chosen; 3] = [
    Chosen {
        key: COMPACTION_MODE,
        value: "periodic",
        last: Minor::V3_7,
        about: "Old revisions go by age; with etcd's own default they stay until the quota stops all writes",
    },
    Chosen {
        key: COMPACTION_RETENTION,
        value: "8h",
        last: Minor::V3_7,
        about: "How old; a watch or a backup that was away for less goes on where it was",
    },
    Chosen {
        key: "pre-vote",
        value: "true",
        last: Minor::V3_4,
        about: "Who was cut off forces no election when it is back (etcd 3.4; later ones do so by themselves)",
    },
];

/// The comparisons of data that etcd makes itself, which are on where the file says nothing: when it starts (it asks its peers for the
/// hash of their data), and after each compaction. The names are those of 3.4 and 3.5; later ones have gates for them.
pub const CHECKS: [Chosen; 2] = [
    Chosen {
        key: INITIAL_CHECK,
        value: "true",
        last: Minor::V3_7,
        about: "At its start a member compares its data with its peers', and does not serve data that differs (from 3.4.34 and 3.5.15 on)",
    },
    Chosen {
        key: COMPACTION_CHECK,
        value: "true",
        last: Minor::V3_7,
        about: "After compactions the leader compares hashes; a difference raises the alarm CORRUPT (from 3.5.15 on)",
    },
];

const INITIAL_CHECK: &str = "experimental-initial-corrupt-check";
const COMPACTION_CHECK: &str = "experimental-compact-hash-check-enabled";

/// Whether the hashes of a release can be relied on: 3.4 before 3.4.34 and 3.5 before 3.5.15 take some compactions for corruption. A
/// version without its last number may be one of these.
pub fn has_sound_hashes(version: &str) -> bool {
    let mut numbers = version.trim_start_matches('v').split(['.', '-', '+']);
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<u64>().ok());
    match (number(numbers.next()), number(numbers.next()), number(numbers.next())) {
        (Some(3), Some(4), Some(patch)) => patch >= 34,
        (Some(3), Some(5), Some(patch)) => patch >= 15,
        (Some(3), Some(minor), _) => minor >= 6,
        _ => false,
    }
}

const COMPACTION_MODE: &str = "auto-compaction-mode";
const COMPACTION_RETENTION: &str = "auto-compaction-retention";

/// What to do where [`has_allowed_hostname`] says no.
pub const NO_HOSTNAME_HINT: &str =
    "give peers a CA of their own and leave the setting out, or use etcd 3.5.16 or later";

/// Whether etcd of this version takes `allowed-hostname` from its config file. 3.4 and 3.5 up to 3.5.13 pass over it without
/// a word, which leaves the door open; 3.5.14 and 3.5.15 have it in another form. A version without its last number may have it.
pub fn has_allowed_hostname(version: &str) -> bool {
    let mut numbers = version.trim_start_matches('v').split(['.', '-', '+']);
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<u64>().ok());
    let (major, minor, patch) = (number(numbers.next()), number(numbers.next()), number(numbers.next()));
    match (major, minor, patch) {
        (Some(3), Some(5), Some(patch)) => patch >= 16,
        (Some(3), Some(minor), _) => minor >= 5,
        _ => false,
    }
}

/// Refuses what a release would pass over without a word. Ask before [`render`], with the version of the very program.
pub fn check_release(spec: &Spec, version: &str) -> quorate_faults::Result<()> {
    if spec.required_hostname().is_some() && !has_allowed_hostname(version) {
        let attempt = format!("cannot start etcd {version}: its config file has no `peer-allowed-hostname`");
        return Err(Fault::new(Code::EtcdKeyVersion, attempt).hint(NO_HOSTNAME_HINT));
    }
    Ok(())
}

/// The gravest lines that etcd's log is to leave out are below this level; `None`: etcd is told as the file says. etcd itself
/// always gets `info` at least: that it closed its files when it was stopped, it says in a line of that level alone.
pub fn kept_level(spec: &Spec) -> Option<Level> {
    let setting = spec.etcd.iter().find(|setting| setting.key == "log-level")?;
    match &setting.value {
        Value::Text(word) => Level::parse(word).filter(|level| *level > Level::Info),
        Value::Flag(_) | Value::Number(_) | Value::List(_) => None,
    }
}

/// What a setting takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// `true` or `false`.
    Flag,
    /// A whole number.
    Number,
    /// Text.
    Text,
    /// A time span.
    Span,
    /// Text or a list of texts.
    Texts,
}

/// One of etcd's settings that may stand in the cluster file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// Its name.
    pub key: &'static str,
    /// The first version that has it.
    pub first: Minor,
    /// The last one.
    pub last: Minor,
    /// What it takes.
    pub takes: Takes,
}

/// Every setting there is, under every name that it may be given.
pub fn settings() -> impl Iterator<Item = Known> {
    let spelt = SPELT.iter().filter_map(|(flag, key)| {
        let row = ROWS.iter().find(|(name, ..)| name == key)?;
        Some((*flag, row.1, row.2, row.3))
    });
    ROWS.iter().copied().chain(spelt).map(|(key, first, last, form)| {
        let takes = match form {
            Form::Flag => Takes::Flag,
            Form::Number => Takes::Number,
            Form::Text => Takes::Text,
            Form::Span => Takes::Span,
            Form::List | Form::Commas => Takes::Texts,
        };
        Known { key, first, last, takes }
    })
}

/// Why a setting is not passed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Objection {
    /// The page that says more.
    pub code: Code,
    /// Lower case, no full stop.
    pub what: String,
    /// The way out.
    pub hint: Option<String>,
}

/// Whether a setting can be passed on: to etcd of this version, or to any where none is named.
pub fn check(setting: &Setting, version: Option<Minor>) -> Result<(), Objection> {
    match version {
        Some(version) => place(setting, version).map(|_| ()),
        None => {
            let attempts = Minor::ALL.map(|version| place(setting, version));
            if attempts.iter().any(Result::is_ok) {
                return Ok(());
            }
            // The newest one's objection: it knows most names.
            attempts.into_iter().next_back().unwrap_or(Ok(Placed::Gate("", false))).map(|_| ())
        }
    }
}

/// Where a setting goes.
enum Placed {
    /// Under this key, in this form.
    Key(&'static str, Rendered),
    /// Into the list of feature gates.
    Gate(&'static str, bool),
    /// Among the options of sockets.
    Socket(&'static str, bool),
}

/// A value as etcd's file wants it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(untagged)]
enum Rendered {
    Flag(bool),
    Number(i64),
    Text(String),
    List(Vec<String>),
}

fn place(setting: &Setting, version: Minor) -> Result<Placed, Objection> {
    let key = setting.key.as_str();
    if let Some((_, why)) = OURS.iter().find(|(ours, _)| *ours == key) {
        let what = format!("{} is not set under `etcd`", quoted(key));
        return Err(Objection { code: Code::EtcdKeyOurs, what, hint: Some((*why).to_owned()) });
    }
    let key = SPELT.iter().find(|(flag, _)| *flag == key).map_or(key, |(_, spelt)| spelt);
    let Some(row) = ROWS.iter().find(|(name, ..)| *name == key) else { return Err(unknown(key)) };
    if version >= Minor::V3_6
        && let Some((_, gate)) = GATES.iter().find(|(name, _)| *name == key)
    {
        return match form(row, &setting.value)? {
            Rendered::Flag(on) => Ok(Placed::Gate(gate, on)),
            Rendered::Number(_) | Rendered::Text(_) | Rendered::List(_) => Err(wrong_form(row)),
        };
    }
    // From 3.6 on the newer of two names is used, since the older one goes away in 3.7.
    let fits = |row: &Row| row.1 <= version && version <= row.2;
    let other = other_name(key).and_then(|other| ROWS.iter().find(|(name, ..)| *name == other)).filter(|row| fits(row));
    let chosen = match (fits(row), other) {
        (true, Some(other)) if version >= Minor::V3_6 && !other.0.starts_with("experimental-") => other,
        (true, _) => row,
        (false, Some(other)) => other,
        (false, None) => return Err(not_in(row, version)),
    };
    match (SOCKET.iter().find(|(flag, _)| *flag == chosen.0), form(row, &setting.value)?) {
        (Some((_, option)), Rendered::Flag(on)) => Ok(Placed::Socket(option, on)),
        (_, value) => Ok(Placed::Key(chosen.0, value)),
    }
}

/// The other name of a key that has two.
fn other_name(key: &str) -> Option<String> {
    if let Some((older, newer)) = RENAMED.iter().find(|(older, newer)| key == *older || key == *newer) {
        return Some((if key == *older { newer } else { older }).to_string());
    }
    Some(match key.strip_prefix("experimental-") {
        Some(plain) => plain.to_owned(),
        None => format!("experimental-{key}"),
    })
}

fn form(row: &Row, value: &Value) -> Result<Rendered, Objection> {
    match (row.3, value) {
        (Form::Flag, Value::Flag(flag)) => Ok(Rendered::Flag(*flag)),
        (Form::Number, Value::Number(number)) if *number >= 0 => Ok(Rendered::Number(*number)),
        (Form::Text, Value::Text(text)) => Ok(Rendered::Text(text.clone())),
        // `auto-compaction-retention: 1` is what people write.
        (Form::Text, Value::Number(number)) => Ok(Rendered::Text(number.to_string())),
        (Form::Span, Value::Text(text)) => {
            let span = parse_duration(text).ok_or_else(|| wrong_form(row))?;
            i64::try_from(span.as_nanos()).map(Rendered::Number).map_err(|_| wrong_form(row))
        }
        (Form::List, Value::List(list)) => Ok(Rendered::List(list.clone())),
        (Form::List, Value::Text(text)) => {
            Ok(Rendered::List(text.split(',').map(|part| part.trim().to_owned()).collect()))
        }
        (Form::Commas, Value::Text(text)) => Ok(Rendered::Text(text.clone())),
        (Form::Commas, Value::List(list)) => Ok(Rendered::Text(list.join(","))),
        _ => Err(wrong_form(row)),
    }
}

fn wrong_form(row: &Row) -> Objection {
    let wanted = match row.3 {
        Form::Flag => "`true` or `false`",
        Form::Number => "a whole number of 0 or more",
        Form::Text => "text",
        Form::Span => "a time span such as `10s` or `5m`",
        Form::List | Form::Commas => "text or a list of texts",
    };
    Objection { code: Code::EtcdValueInvalid, what: format!("`{}` of etcd takes {wanted}", row.0), hint: None }
}

fn unknown(key: &str) -> Objection {
    let known = ROWS.iter().map(|(name, ..)| *name).chain(OURS.iter().map(|(name, _)| *name));
    let hint = match nearest(key, known) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "`etcd --help` lists them; write them without `--`".to_owned(),
    };
    Objection { code: Code::EtcdKeyUnknown, what: format!("etcd has no setting {}", quoted(key)), hint: Some(hint) }
}

fn not_in(row: &Row, version: Minor) -> Objection {
    let (name, first, last, _) = row;
    let what = format!("etcd {version} has no setting `{name}`");
    let hint = if *first > version { format!("it came with {first}") } else { format!("it went after {last}") };
    Objection { code: Code::EtcdKeyVersion, what, hint: Some(hint) }
}

#[cfg(test)]
mod tests;
