//! `quorate logs`: what a member's etcd wrote, as one stream across rotated files.
//!
//! **Rule:** a line that begins nothing (a stack trace, a usage text) goes with the line before it.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use quorate_agent::cluster_file;
use quorate_faults::{Code, Exit, Fault};
use quorate_host::logs::{LogReader, Reached};
use quorate_plan::server_log::{self, Level, Line};
use quorate_plan::spec::parse_duration;

use super::ps::scan::Place;
use crate::printer::Printer;

/// How often a followed log is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Output is written in pieces of about this size.
const PIECE: usize = 32 << 10;

/// Flags of `logs`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate logs -f etcd --level warn --since 10m
  quorate logs --config cluster.yaml --name n1 --level warn --since 10m
  quorate logs --state-dir /var/lib/quorate/n1 -f
  quorate logs --log-dir /var/log/etcd --output json | jq .msg

Levels and times are read as etcd, PostgreSQL, pgbouncer, haproxy and syslog write them, and
where a line begins with a time; a note tells of lines that have none.
With --output json every line is a JSON object: those of etcd as they are, others with
`msg` (and `level` and `ts` where they can be told). Lines of 3.4's text form are read
in this machine's time zone. Only files are read: no agent and no etcd is asked.")]
pub(crate) struct Args {
    /// The process: `etcd`, or `n1/etcd` [default: etcd]
    #[arg(value_name = "PROCESS", conflicts_with = "log_dir")]
    process: Option<String>,

    /// The cluster file
    #[arg(long, value_name = "FILE", env = "QUORATE_CONFIG")]
    config: Option<PathBuf>,

    /// The member's name in it [default: the only one]
    #[arg(long, env = "QUORATE_NAME")]
    name: Option<String>,

    /// The member's state dir, instead of a file
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,

    /// The dir that holds `etcd.log`, instead of both
    #[arg(long, value_name = "DIR", conflicts_with = "state_dir")]
    log_dir: Option<PathBuf>,

    /// Go on as more is written, until you end it
    #[arg(short, long)]
    follow: bool,

    /// Only lines at least so grave
    #[arg(long, value_name = "LEVEL", value_parser = ["debug", "info", "warn", "error", "fatal"])]
    level: Option<String>,

    /// Only lines from then on: `10m`, `2h30m`, `7d` ago, or a time such as `2026-11-16T02:00:00Z`
    #[arg(long, value_name = "WHEN")]
    since: Option<String>,
}

/// Shows it.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let path = log_file(args)?;
    let fail = |error| {
        Fault::io(format!("cannot read the log `{}`", path.display()), error)
            .hint("etcd has not been started here yet, or its log is elsewhere: give --log-dir")
    };
    let since = args.since.as_deref().map(|text| moment(text, Timestamp::now())).transpose()?;
    let level = args.level.as_deref().and_then(Level::parse).unwrap_or(Level::Debug);
    let mut filter = Filter::new(level, since, TimeZone::system(), printer.is_json());
    let mut reader = LogReader::open(&path, since.map(SystemTime::from)).map_err(fail)?;
    let mut text = String::new();
    loop {
        let reached = reader.read(|line| filter.add(line, &mut text)).map_err(fail)?;
        if reached == Reached::End && !args.follow {
            reader.finish(|line| filter.add(line, &mut text));
        }
        if text.len() >= PIECE || reached != Reached::More {
            printer.text(&text);
            text.clear();
        }
        match reached {
            Reached::More => {}
            Reached::Gap => printer.note("some lines are missing here: their file was rotated away before it was read"),
            Reached::End if args.follow && printer.is_heard() => std::thread::sleep(LOOK_EVERY),
            Reached::End => {
                if let Some(note) = filter.note() {
                    printer.note(&note);
                }
                return Ok(Exit::Done);
            }
        }
        if !printer.is_heard() {
            return Ok(Exit::Done);
        }
    }
}

fn log_file(args: &Args) -> Result<PathBuf, Fault> {
    let in_dir = |dir: PathBuf| dir.join("etcd.log");
    if let Some(dir) = &args.log_dir {
        return Ok(in_dir(dir.clone()));
    }
    match (&args.process, &args.state_dir, &args.config) {
        (None, Some(dir), _) => Ok(in_dir(dir.join("logs"))),
        (None, None, Some(config)) => {
            let (spec, _) = cluster_file::read(config)?;
            let name = &spec.local(args.name.as_deref(), &config.display().to_string())?.name;
            Ok(in_dir(PathBuf::from(spec.state_dir_of(name)).join("logs")))
        }
        (process, ..) => {
            let place =
                Place { config: args.config.clone(), name: args.name.clone(), state_dir: args.state_dir.clone() };
            let process = place.find(process.as_deref().unwrap_or("etcd"))?;
            Ok(process.dir.join("logs").join(format!("{}.log", process.name)))
        }
    }
}

/// A span ago, or a moment by itself.
fn moment(text: &str, now: Timestamp) -> Result<Timestamp, Fault> {
    let ago = parse_duration(text).and_then(|span| now.checked_sub(span).ok());
    ago.or_else(|| text.parse().ok()).ok_or_else(|| {
        Fault::new(Code::Usage, format!("`--since {text}` is neither a time span nor a time"))
            .hint("write `10m`, `2h30m`, `7d`, or `2026-11-16T02:00:00Z`")
    })
}

/// Decides line by line, and puts into the form that was asked for.
struct Filter {
    level: Level,
    since: Option<Timestamp>,
    zone: TimeZone,
    json: bool,
    /// Whether the last line that began something was shown.
    shown: bool,
    /// Whether its time was right; a line without one is as old as the one before.
    in_time: bool,
    /// Lines that were shown because their level, or their time, could not be told.
    without_level: u64,
    without_time: u64,
    /// Whether a line has had a time yet.
    timed: bool,
}

impl Filter {
    fn new(level: Level, since: Option<Timestamp>, zone: TimeZone, json: bool) -> Filter {
        let (shown, in_time, timed) = (true, true, false);
        Filter { level, since, zone, json, shown, in_time, without_level: 0, without_time: 0, timed }
    }

    fn add(&mut self, line: &[u8], text: &mut String) {
        let line = String::from_utf8_lossy(line);
        let line = line.trim_end_matches('\n');
        let parsed = server_log::parse(line);
        let known = match &parsed {
            Some(parsed) => Some((Some(parsed.level), parsed.at)),
            None => server_log::parse_other(line).map(|other| (other.level, other.at)),
        };
        let at = known.and_then(|(_, at)| at).and_then(|at| at.in_zone(&self.zone));
        self.judge(known.map(|(level, _)| level), at);
        if !self.shown {
            return;
        }
        let shown = match (&parsed, self.json) {
            (Some(_), true) if line.starts_with('{') => line.to_owned(),
            (Some(parsed), true) => as_json(Some(parsed.level), at, &parsed.text),
            (Some(parsed), false) => as_text(parsed, at),
            // Lines of others are theirs: only what could be told of them is added.
            (None, true) => as_json(known.and_then(|(level, _)| level), at, line),
            (None, false) => printable(line),
        };
        text.push_str(&shown);
        text.push('\n');
    }

    /// `level`: `None` where the line begins nothing, and belongs to the one before.
    fn judge(&mut self, level: Option<Option<Level>>, at: Option<Timestamp>) {
        let begun = self.timed || self.without_level + self.without_time > 0;
        self.timed |= at.is_some();
        if let (Some(since), Some(at)) = (self.since, at) {
            self.in_time = at >= since;
        }
        match level {
            Some(level) => {
                self.shown = self.in_time && level.is_none_or(|level| level >= self.level);
                self.without_level += u64::from(self.shown && level.is_none());
                self.without_time += u64::from(self.shown && !self.timed);
            }
            // A program that writes nothing that can be told.
            None if self.shown && (!begun || !self.timed) => {
                self.without_level += 1;
                self.without_time += 1;
            }
            None => {}
        }
    }

    /// What has to be said about lines that were shown though nobody knows whether they were asked for.
    fn note(&self) -> Option<String> {
        let said = |count: u64, what: &str| format!("{count} lines have no {what} that can be told, and are shown");
        match (self.level > Level::Debug && self.without_level > 0, self.since.is_some() && self.without_time > 0) {
            (true, true) => Some(said(self.without_level.max(self.without_time), "level or no time")),
            (true, false) => Some(said(self.without_level, "level")),
            (false, true) => Some(said(self.without_time, "time")),
            (false, false) => None,
        }
    }
}

fn as_text(line: &Line, at: Option<Timestamp>) -> String {
    let at = at.map_or_else(|| "-".to_owned(), |at| format!("{at:.3}"));
    let mut text = format!("{at:24} {:5} {}", line.level.word(), printable(&line.text));
    for (name, value) in &line.fields {
        let value =
            if value.contains(' ') && !value.starts_with(['[', '{']) { format!("{value:?}") } else { printable(value) };
        text.push_str(&format!(" {}={value}", printable(name)));
    }
    text
}

fn as_json(level: Option<Level>, at: Option<Timestamp>, text: &str) -> String {
    let mut object = serde_json::Map::new();
    if let Some(level) = level {
        object.insert("level".to_owned(), level.word().into());
    }
    if let Some(at) = at {
        object.insert("ts".to_owned(), at.to_string().into());
    }
    object.insert("msg".to_owned(), text.into());
    serde_json::Value::Object(object).to_string()
}

/// What a log holds may come from clients: nothing in it steers the terminal.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\t' { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(level: Level, since: Option<&str>, json: bool, log: &str) -> String {
        let since = since.map(|at| at.parse().unwrap());
        let mut filter = Filter::new(level, since, TimeZone::UTC, json);
        let mut text = String::new();
        log.split_inclusive('\n').for_each(|line| filter.add(line.as_bytes(), &mut text));
        text
    }

    const LOG: &str = concat!(
        "2026-11-16 02:14:36.088956 I | etcdmain: Go OS/Arch: linux/amd64\n",
        r#"{"level":"info","ts":"2026-11-16T02:14:37.000Z","caller":"x","msg":"started","name":"n 1","n":3}"#,
        "\n",
        r#"{"level":"panic","ts":"2026-11-16T02:14:38.000Z","msg":"failed","error":"no space","stacktrace":"a\nb"}"#,
        "\npanic: failed\n\ngoroutine 1 [running]:\n",
    );

    #[test]
    fn lines_are_filtered_by_level_and_traces_stay_with_theirs() {
        assert_eq!(
            shown(Level::Warn, None, false, LOG),
            "2026-11-16T02:14:38.000Z fatal failed: no space\n-                        fatal panic: failed\n\ngoroutine 1 [running]:\n"
        );
        assert_eq!(
            shown(Level::Debug, None, false, LOG).lines().take(2).collect::<Vec<_>>(),
            [
                "2026-11-16T02:14:36.088Z info  etcdmain: Go OS/Arch: linux/amd64",
                "2026-11-16T02:14:37.000Z info  started n=3 name=\"n 1\""
            ]
        );
    }

    #[test]
    fn lines_are_filtered_by_time() {
        let late = shown(Level::Debug, Some("2026-11-16T02:14:37Z"), false, LOG);
        assert!(late.starts_with("2026-11-16T02:14:37.000Z") && late.ends_with("[running]:\n"), "{late}");
        assert_eq!(shown(Level::Debug, Some("2026-11-17T00:00:00Z"), false, LOG), "");
    }

    #[test]
    fn json_is_handed_on_and_text_becomes_json() {
        let lines = shown(Level::Debug, None, true, LOG);
        let lines: Vec<&str> = lines.lines().collect();
        assert_eq!(
            lines[0],
            r#"{"level":"info","msg":"etcdmain: Go OS/Arch: linux/amd64","ts":"2026-11-16T02:14:36.088956Z"}"#
        );
        assert_eq!(lines[1], LOG.lines().nth(1).unwrap());
        assert_eq!(lines[3], r#"{"level":"fatal","msg":"panic: failed"}"#);
        assert!(lines.iter().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()));
    }

    #[test]
    fn lines_of_other_programs_are_filtered_and_what_cannot_be_is_said() {
        let log = "2026-11-16 02:14:36.000 UTC [4] LOG:  ready\n2026-11-16 02:14:37.000 UTC [4] ERROR:  no table\n\
                   2026-11-16 02:14:37.000 UTC [4] STATEMENT:  select 1\n2026-11-16 02:14:38.000 UTC [4] LOG:  end\n";
        let lines: Vec<&str> = log.lines().collect();
        assert_eq!(shown(Level::Warn, None, false, log), format!("{}\n{}\n", lines[1], lines[2]));
        assert_eq!(shown(Level::Debug, Some("2026-11-16T02:14:38Z"), false, log), format!("{}\n", lines[3]));
        let json = shown(Level::Error, None, true, log);
        assert!(json.starts_with(r#"{"level":"error","msg":"2026-11-16 02:14:37.000 UTC [4] ERROR:  no table","ts":"#));
        let noted = |level: Level, since: Option<&str>, log: &str| {
            let since = since.map(|at| at.parse().unwrap());
            let mut filter = Filter::new(level, since, TimeZone::UTC, false);
            log.lines().for_each(|line| filter.add(line.as_bytes(), &mut String::new()));
            filter.note()
        };
        assert_eq!(noted(Level::Warn, None, log), None);
        assert_eq!(noted(Level::Debug, None, "hello\nworld\n"), None);
        let said = noted(Level::Warn, None, "hello\nworld\n").unwrap();
        assert_eq!(said, "2 lines have no level that can be told, and are shown");
        assert!(noted(Level::Debug, Some("2026-11-16T02:14:38Z"), "hello\n").unwrap().contains("no time"));
    }

    #[test]
    fn times_are_read_and_terminals_are_safe() {
        let now: Timestamp = "2026-11-16T02:00:00Z".parse().unwrap();
        assert_eq!(moment("10m", now).unwrap().to_string(), "2026-11-16T01:50:00Z");
        assert_eq!(moment("2026-11-16T01:00:00+01:00", now).unwrap().to_string(), "2026-11-16T00:00:00Z");
        assert_eq!(moment("soon", now).unwrap_err().code(), Code::Usage);
        assert_eq!(printable("a\u{1b}[2Jb\tc"), "a\u{fffd}[2Jb\tc");
    }
}
