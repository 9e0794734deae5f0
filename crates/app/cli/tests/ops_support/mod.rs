//! A member below a root of its own, and commands of an operator on it.

#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses its part; one that cannot go on says where")]

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use quorate_testkit::{quorate, wait_until};
use serde_json::Value;

use crate::agent_support::Place;

/// For conditions; a busy machine takes its time.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Runs a command again until it ended well and said something that fits.
#[track_caller]
pub(crate) fn until(place: &Place, args: &[&str], fits: impl Fn(&str) -> bool) -> Output {
    let mut last = None;
    wait_until(&format!("{args:?} to say what it should"), LIMIT, || {
        let output = operate(place, args);
        let done = code(&output) == 0 && fits(&out(&output));
        last = Some(output);
        done
    });
    last.unwrap()
}

/// A member whose file names no dir: everything lies below `QUORATE_ROOT`, and every command finds it without flags.
pub(crate) fn rooted(version: &str) -> Place {
    let mut place = Place::new(version);
    let root = place.root.path().display().to_string();
    place.raw = Some(file(&place, ""));
    place.env.push(("QUORATE_ROOT".to_owned(), root));
    put(&place.path("etc/quorate/cluster.yaml"), place.raw.as_deref().unwrap());
    place
}

/// The cluster file of it; `agent` is added under `agent:`.
pub(crate) fn file(place: &Place, agent: &str) -> String {
    format!(
        "token: t\nbootstrap: {{id: 1}}\nplaintext: true\nmembers:\n  - {{name: n1, peer-urls: [\"{}\"], client-urls: \
         [\"{}\"]}}\nagent:\n  health-listen: http://127.0.0.1:{}\n  api-listen: http://127.0.0.1:{}\n  etcd-binary: {}\n{agent}\
         etcd: {{heartbeat-interval: 10, election-timeout: 100}}\n",
        place.seat.peer_url(),
        place.seat.client_url(),
        place.health,
        place.api,
        place.binary.display(),
    )
}

pub(crate) fn put(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::File::create(path).unwrap().write_all(text.as_bytes()).unwrap();
}

/// A program that prints what it was called with.
pub(crate) fn script(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    put(path, text);
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// The state dir of the member.
pub(crate) fn state(place: &Place) -> PathBuf {
    place.path("var/lib/quorate/n1")
}

/// `quorate` as an operator calls it, with nothing of ours but the root.
pub(crate) fn command(place: &Place, args: &[&str]) -> Command {
    let mut command = Command::new(quorate());
    command.args(args).stdin(Stdio::null()).envs(place.env.iter().map(|(name, value)| (name, value)));
    command
}

pub(crate) fn operate(place: &Place, args: &[&str]) -> Output {
    command(place, args).output().unwrap()
}

/// The same with words on stdin.
pub(crate) fn operate_with(place: &Place, args: &[&str], input: &str) -> Output {
    let mut child =
        command(place, args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// How it ended, as a shell says it.
pub(crate) fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| 128 + output.status.signal().unwrap())
}

pub(crate) fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What it said on stdout, having ended well.
#[track_caller]
pub(crate) fn good(output: &Output) -> String {
    assert_eq!(code(output), 0, "{}{}", out(output), err(output));
    out(output)
}

#[track_caller]
pub(crate) fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}{}", out(output), err(output)))
}

/// It failed with this exit code and page.
#[track_caller]
pub(crate) fn failed(output: &Output, exit: i32, page: &str) -> String {
    let said = err(output);
    assert_eq!(code(output), exit, "{}{said}", out(output));
    assert!(said.contains(&format!("[{page}]")), "{said}");
    said
}

/// The lines of the audit log.
pub(crate) fn audited(state: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(state.join("audit.log")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// What the kernel says of a process: the value behind `name:`.
pub(crate) fn status_of(pid: u32, name: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).trim().to_owned()
}
