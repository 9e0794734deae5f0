//! etcd itself: which program, with which settings, started through the shim.
//!
//! **Invariant:** no setting reaches etcd that its version does not have, and none through the environment.

use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use quorate_etcd::aside::ensure_file;
use quorate_etcd::binary::{Binary, Places};
use quorate_etcd_formats::founding::Form;
use quorate_etcd_formats::hex::hex;
use quorate_etcd_formats::verify::V2Entries;
use quorate_faults::{Code, Fault};
use quorate_host::durable::RealDisk;
use quorate_host::logs::Rotation;
use quorate_host::shim::{self, ETCD_STOPPING, Rung, Running, Send, ShimSpec};
use quorate_host::state::StateDir;
use quorate_plan::change::upgrade::Release;
use quorate_plan::etcd_config::{EtcdConfig, Minor, kept_level, render_checked_for, render_for, render_plain_for};
use quorate_plan::server_log::{self, Level};
use quorate_plan::spec::Stop;
use quorate_plan::start::{classify, hindrance, out_of_range};
use sha2::{Digest, Sha256};
use tokio::task::JoinHandle;

use super::node::Node;
use super::{boxed, data, etcd_tls, remembered, trusting};

/// What of our environment etcd gets: nothing that holds secrets, nothing that etcd reads as a setting.
const ENVIRONMENT: [&str; 9] =
    ["PATH", "HOME", "TZ", "GOMAXPROCS", "GOGC", "GOMEMLIMIT", "GODEBUG", "ETCD_UNSUPPORTED_ARCH", "ETCD_VERIFY"];

/// How much of a log's end is looked at for the reason of a failure.
const TAIL_BYTES: u64 = 64 << 10;
/// And for a reason that no other start can help against: what was said long before the end did not cause it.
const LAST_BYTES: usize = 8 << 10;

/// What etcd said of its version, in the state dir.
const VERSION_FILE: &str = "etcd-version";

/// Characters of a line that are shown.
const WORDS_MAX: usize = 300;

/// The etcd program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Program {
    pub(super) binary: Binary,
    pub(super) minor: Minor,
    stamp: Option<remembered::Stamp>,
}

impl Program {
    /// Finds it; one that was found before and has not changed is not asked again.
    pub(super) fn find(node: &Node, before: Option<&Program>) -> Result<Program, Fault> {
        let unchanged =
            |known: &&Program| known.stamp.is_some() && known.stamp == remembered::Stamp::of(&known.binary.path);
        if let Some(known) = before.filter(unchanged) {
            return Ok(known.clone());
        }
        let agent = &node.spec.agent;
        let binary = remembered::ask(&node.state_path().join(VERSION_FILE), &locate(node)?)?;
        let shown = binary.path.display();
        let other = |why: String| {
            Fault::new(Code::EtcdOtherVersion, format!("cannot use `{shown}`: it is etcd {}{why}", binary.version))
                .hint("install another etcd, or change `etcd-binary` and `etcd-version` in the cluster file")
        };
        if let Some(wanted) = &agent.etcd_version
            && !is_version(&binary.version, wanted)
        {
            return Err(other(format!(", and the cluster file asks for {wanted}")));
        }
        let minor = Minor::parse(&binary.version).ok_or_else(|| other(", which Quorate does not know".to_owned()))?;
        Ok(Program { stamp: remembered::Stamp::of(&binary.path), binary, minor })
    }

    /// Keeps its version for the next agent's start.
    pub(super) fn remember(&self, node: &Node) {
        if let Some(stamp) = &self.stamp {
            remembered::keep(&node.state_path().join(VERSION_FILE), &self.binary, stamp);
        }
    }

    /// The form of data dirs that are made for it.
    pub(super) fn form(&self) -> Form {
        match self.minor {
            Minor::V3_4 => Form::V3_4,
            Minor::V3_5 => Form::V3_5,
            Minor::V3_6 => Form::V3_6,
            Minor::V3_7 => Form::V3_7,
        }
    }

    /// Refuses data of a newer version.
    pub(super) fn check_data(&self, node: &Node) -> Result<(), Fault> {
        let version = data::cluster_version(&node.target);
        self.check_log(node, version.as_deref())?;
        let Some(version) = version else { return Ok(()) };
        if self.minor.reads(&version) {
            return Ok(());
        }
        let attempt = format!(
            "cannot start etcd {} on `{}`: the data is of version {version}",
            self.binary.version,
            node.target.data_dir().display()
        );
        Err(Fault::new(Code::EtcdOlder, attempt).hint("start an etcd of that version or a later one"))
    }

    /// Refuses a log with entries that this release panics on. `cluster`: the version that the members agreed on; once that is
    /// this minor version, all of them have read their logs.
    fn check_log(&self, node: &Node, cluster: Option<&str>) -> Result<(), Fault> {
        let release = |text: &str| Release::parse(text).or_else(|| Release::parse(&format!("{text}.0")));
        // Early releases keep that version elsewhere.
        let from = cluster.and_then(release).unwrap_or(Release { major: 3, minor: 0, patch: 0 });
        let Some(to) = release(&self.binary.version).filter(|to| from.drops_v2(*to)) else { return Ok(()) };
        let attempt = || format!("cannot start etcd {to} on `{}`", node.target.data_dir().display());
        let fault = |why: String| {
            let hint = "name the release that it ran last as `etcd-version` in the cluster file; `quorate cluster upgrade` then \
                        takes a raft snapshot behind them first";
            Err(Fault::new(Code::UpgradeOldEntries, attempt()).caused_by(why).hint(hint))
        };
        match data::v2_entries(&node.target)? {
            V2Entries::Known { count: 0, .. } => Ok(()),
            V2Entries::Known { count, .. } => {
                fault(format!("its WAL holds {count} entries of 3.5 or earlier behind the newest raft snapshot"))
            }
            V2Entries::Unknown(why) => fault(format!("whether it can read the WAL is not known: {why}")),
        }
    }
}

/// Where the program is that a start would use.
pub(super) fn locate(node: &Node) -> Result<PathBuf, Fault> {
    let agent = &node.spec.agent;
    let path = std::env::var_os("PATH");
    let named = agent.etcd_binary.as_deref().map(|binary| for_release(binary, agent.etcd_version.as_deref()));
    Binary::locate(&Places { named: named.as_deref(), path: path.as_deref(), near: Vec::new() })
}

/// A program that is being asked for its version.
pub(super) type Asking = JoinHandle<Result<Program, Fault>>;

/// Finds the program beside whatever else is done.
pub(super) fn ask(node: &Arc<Node>, before: Option<&Program>) -> Asking {
    let (node, before) = (Arc::clone(node), before.cloned());
    tokio::task::spawn_blocking(move || Program::find(&node, before.as_ref()))
}

/// An etcd that was asked for its version before there is an agent here, which then need not ask it again.
#[derive(Debug)]
pub(crate) struct Asked {
    binary: Binary,
    stamp: Option<remembered::Stamp>,
}

impl Asked {
    /// Finds it, and asks it.
    pub(crate) fn find(named: Option<&Path>) -> Option<Asked> {
        let path = std::env::var_os("PATH");
        let places = Places { named, path: path.as_deref(), near: Vec::new() };
        let path = Binary::locate(&places).ok()?;
        // Before it is asked: one that is replaced meanwhile is another one.
        let stamp = remembered::Stamp::of(&path);
        Some(Asked { binary: Binary::at(&path).ok()?, stamp })
    }

    /// What it said.
    pub(crate) fn version(&self) -> &str {
        &self.binary.version
    }

    /// Keeps that for the agent of the node whose folder this is.
    pub(crate) fn keep(&self, dir: &Path) {
        if let Some(stamp) = &self.stamp {
            remembered::keep(&dir.join(VERSION_FILE), &self.binary, stamp);
        }
    }
}

/// Where the program of a release is: releases lie side by side, and `{version}` stands for theirs.
fn for_release(binary: &str, version: Option<&str>) -> PathBuf {
    PathBuf::from(binary.replace("{version}", version.unwrap_or_default().trim_start_matches('v')))
}

/// Of an etcd that was taken over, and has other settings than the file.
pub(super) const TAKEN_WITH_OTHERS: &str =
    "etcd was taken over with other settings than the cluster file has, and waits for a restart to get those";

/// The command that restarts it.
pub(super) const RESTART_PENDING: &str =
    "restart such members one at a time, while the others serve: `quorate cluster restart --pending`";

/// The settings of one start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Config {
    pub(super) text: String,
    pub(super) hash: String,
    /// Of the same without what the file does not say and Quorate chooses.
    plain: String,
}

impl Config {
    /// Whether etcd that runs with settings of this hash is started again for their sake: not for what nobody declared.
    pub(super) fn is_current(&self, running: &str) -> bool {
        running == self.hash || running == self.plain
    }

    /// Whether it was taken over with other settings, and nobody has said a word since: such a one is not started again by itself.
    pub(super) fn awaits_a_word(&self, node: &Node, running: &str) -> bool {
        running == taken_with_others(node, &self.plain)
    }
}

/// The hash of a start that was not ours and differs: no settings have it. Another file is another word.
pub(super) fn taken_with_others(node: &Node, plain: &str) -> String {
    format!("not-{}-{plain}", node.spec.hash())
}

/// Renders the settings.
pub(super) fn config(node: &Node, program: &Program) -> Result<Config, Fault> {
    joining_config(node, program, None)
}

/// The settings that are declared, as etcd of this release takes them, and their hash. What nobody declared is not among them.
pub(super) fn declared_config(node: &Node, release: &str) -> Result<(String, String), Fault> {
    let trust = trusting::observe(node)?;
    let config = EtcdConfig { spec: &node.spec, member: &node.member, join: None };
    let text = render_plain_for(&config, release)?;
    let hash = hash_of(node, &(text.clone() + &trust.lines), &trust.mark);
    Ok((text, hash))
}

fn hash_of(node: &Node, text: &str, mark: &str) -> String {
    // A box that the file does not speak of is not part of its settings.
    let section = &node.spec.box_;
    let boxed = if section.is_default() { Vec::new() } else { serde_json::to_vec(section).unwrap_or_default() };
    hex(&Sha256::digest([text.as_bytes(), boxed.as_slice(), level_mark(node).as_bytes()].concat())) + mark
}

/// The same for a member that joins. Whom it joins matters to its first start alone, and is not part of the hash.
fn joining_config(node: &Node, program: &Program, join: Option<String>) -> Result<Config, Fault> {
    let trust = trusting::observe(node)?;
    let text = |spec, join, lists: &str| {
        let config = EtcdConfig { spec, member: &node.member, join };
        render_for(&config, &program.binary.version).map(|text| text + lists)
    };
    // Which copies of its certificates etcd is given is no setting: no member is restarted for that.
    let hash = hash_of(node, &text(&node.spec, None, &trust.lines)?, &trust.mark);
    let (_, plain) = declared_config(node, &program.binary.version)?;
    Ok(Config { text: text(&etcd_tls::shown(node), join, &trust.shown)?, hash, plain })
}

/// The same text with etcd's own comparisons of data. They are not part of the hash: no member is restarted for them.
fn checked_text(node: &Node, program: &Program, join: Option<String>, at_start: bool) -> Result<String, Fault> {
    let trust = trusting::observe(node)?;
    let config = EtcdConfig { spec: &etcd_tls::shown(node), member: &node.member, join };
    render_checked_for(&config, &program.binary.version, at_start).map(|text| text + &trust.shown)
}

/// What is kept of its log is the shim's affair, and part of the settings all the same.
pub(super) fn level_mark(node: &Node) -> String {
    kept_level(&node.spec).map(|level| format!("log-level: {}\n", level.word())).unwrap_or_default()
}

/// Which comparisons of data etcd makes, where the file does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Checks {
    /// None: other members run another release, whose hashes may differ for the same data.
    None,
    /// After compactions alone: no quorum of other members answers that it could compare itself with at its start.
    Later,
    /// At its start, too.
    AtStart,
}

/// Starts etcd through a shim, in its box. Returns when it has been executed. `join`: whom it joins, where it has no data.
pub(super) fn start(
    node: &Node,
    state: &StateDir,
    program: &Program,
    shim: &Path,
    join: Option<String>,
    checks: Checks,
) -> Result<Running, Fault> {
    let joining = join.is_some();
    let mut config = joining_config(node, program, join.clone())?;
    if checks != Checks::None {
        config.text = checked_text(node, program, join, checks == Checks::AtStart)?;
    }
    trusting::remember(node);
    ensure_file(&RealDisk, &node.etcd_config(), config.text.as_bytes())?;
    let boxed = boxed::ensure_box(node, joining)?;
    let logs = &node.spec.agent.logs;
    let env = ENVIRONMENT.iter().filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?)));
    let spec = ShimSpec {
        name: "etcd".to_owned(),
        program: program.binary.path.clone(),
        args: vec!["--config-file".to_owned(), node.etcd_config().display().to_string()],
        env: env.collect(),
        env_files: Vec::new(),
        dir: state.path().to_owned(),
        log_dir: node.log_dir(),
        rotation: Rotation {
            bytes_max: logs.max_size,
            age_max_s: (logs.max_age / logs.max_files.max(1)).as_secs().max(1),
            // Beside the one that is being written.
            keep: logs.max_files.saturating_sub(1),
        },
        config_hash: config.hash,
        etcd_version: program.binary.version.clone(),
        stopping_words: ETCD_STOPPING.map(str::to_owned).to_vec(),
        kept_level: kept_level(&node.spec),
        ladder: ladder(&node.spec.maintenance.stop),
    };
    shim::spawn_boxed(shim, state, &spec, boxed)
}

/// The steps of a stop.
pub(super) fn ladder(stop: &Stop) -> Vec<Rung> {
    let rung = |send, wait: Duration| Rung { send, wait_ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX) };
    vec![
        rung(Send::Term, stop.term_timeout),
        rung(Send::Quit, stop.dump_timeout),
        rung(Send::Kill, Duration::from_secs(10)),
    ]
}

/// How long etcd's log is now, so that later lines can be told from earlier ones.
pub(super) fn log_length(node: &Node) -> u64 {
    std::fs::metadata(log_file(node)).map_or(0, |meta| meta.len())
}

fn log_file(node: &Node) -> PathBuf {
    node.log_dir().join("etcd.log")
}

/// What etcd said last in this run: the gravest of its last lines, and whether another start could help.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct LastWords {
    pub(super) text: Option<String>,
    /// The very last line, whatever it is: for programs that end before they say anything in etcd's way.
    pub(super) last: Option<String>,
    pub(super) permanent: Option<(Code, &'static str)>,
    /// What may pass by itself.
    pub(super) passing: Option<Code>,
    /// It ended because its log is shorter than the leader knows it to be: how far it was known, and where it ends.
    pub(super) out_of_range: Option<(u64, u64)>,
}

/// Reads the end of the log that was written after it had `before` bytes.
pub(super) fn last_words(node: &Node, before: u64) -> LastWords {
    let Ok(mut file) = std::fs::File::open(log_file(node)) else { return LastWords::default() };
    let length = file.metadata().map_or(0, |meta| meta.len());
    // A shorter file is a new one: the old one was rotated away.
    let from = if length < before { 0 } else { before };
    let from = from.max(length.saturating_sub(TAIL_BYTES));
    let mut bytes = Vec::new();
    if file.seek(SeekFrom::Start(from)).is_err() || file.take(TAIL_BYTES).read_to_end(&mut bytes).is_err() {
        return LastWords::default();
    }
    let last = bytes.get(bytes.len().saturating_sub(LAST_BYTES)..).unwrap_or_default();
    let last = String::from_utf8_lossy(last);
    LastWords {
        text: gravest(&String::from_utf8_lossy(&bytes)),
        last: last.lines().rev().map(in_few_words).find(|line| !line.is_empty()),
        permanent: classify(&last),
        passing: hindrance(&last).map(|(code, _)| code),
        out_of_range: out_of_range(&String::from_utf8_lossy(&bytes)),
    }
}

/// The last of the gravest lines, in few words.
fn gravest(tail: &str) -> Option<String> {
    let lines = tail.lines().filter_map(server_log::parse).filter(|line| line.level >= Level::Error);
    // Of equals the last one.
    lines.max_by_key(|line| line.level).map(|line| in_few_words(&line.text))
}

/// A line that can be shown: not too long, and without what steers a terminal.
fn in_few_words(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(WORDS_MAX).collect::<String>().trim().to_owned()
}

/// Whether `3.5.16` is what `3.5` or `3.5.16` asks for.
pub(super) fn is_version(is: &str, wanted: &str) -> bool {
    let rest = is.strip_prefix(wanted.trim_start_matches('v'));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '-', '+']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_the_one_that_is_asked_for() {
        for wanted in ["3.5", "3.5.16", "v3.5"] {
            assert!(is_version("3.5.16", wanted), "{wanted}");
        }
        for wanted in ["3.5.1", "3.6", "3.5.17"] {
            assert!(!is_version("3.5.16", wanted), "{wanted}");
        }
    }

    #[test]
    fn the_gravest_of_the_last_lines_is_shown() {
        let log = concat!(
            r#"{"level":"error","msg":"e1"}"#,
            "\n",
            r#"{"level":"fatal","msg":"discovery failed","error":"bind: address already in use"}"#,
            "\n",
            r#"{"level":"info","msg":"bye"}"#,
            "\nrest of a stack\n"
        );
        assert_eq!(gravest(log).as_deref(), Some("discovery failed: bind: address already in use"));
        assert_eq!(gravest("nothing\n"), None);
        assert_eq!(in_few_words("\tone\u{1b}[31m two\r"), "one [31m two");
        assert_eq!(in_few_words(&"ä".repeat(400)).chars().count(), WORDS_MAX);
    }
}
