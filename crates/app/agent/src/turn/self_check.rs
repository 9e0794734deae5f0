//! Checks this machine for the first start of a node: what would stop it later, found before anything is changed.
//!
//! **Rule:** every check runs, whatever the others found; nothing is written but a probe file that is removed again.

use std::path::Path;

use jiff::Timestamp;
use quorate_backup::session::Session;
use quorate_faults::{Code, Fault, Severity};
use quorate_host::sandbox::known_machine;
use quorate_host::state::StateDir;
use quorate_pki::{PreflightInput, has_issuing_keys, preflight};
use quorate_plan::boxes::plan_box;
use quorate_plan::certificates::{host_of, operator_files};
use quorate_plan::peering::FSYNC_MAX_MS;
use quorate_plan::spec::{Security, for_member};
use serde::Serialize;

use super::boxed::describe_box;
use super::data::in_words;
use super::etcd::Program;
use super::node::Node;
use crate::certificates::can_issue;
use crate::peering::{Ports, fsync_ms};

/// One thing that was checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SelfCheck {
    /// What.
    pub what: &'static str,
    /// How it is.
    pub state: CheckState,
    /// What was found.
    pub found: String,
    /// The way out, where something is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub way_out: Option<String>,
    /// The page that explains more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
}

/// How it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckState {
    /// Nothing stands against a start.
    Good,
    /// The node starts, and something will go wrong later.
    Warning,
    /// The node would not start, or would not serve.
    Failed,
}

/// Runs every check. Blocks, for as long as a store of backups may take to answer.
pub fn self_check(node: &Node) -> Vec<SelfCheck> {
    let mut checks = vec![etcd(node), state_dir(node), disk(node)];
    checks.extend(ports(node));
    checks.extend(certificates(node));
    checks.extend(renewal(node));
    checks.extend(operators(node));
    checks.push(sandbox(node));
    checks.extend(store(node));
    checks
}

fn good(what: &'static str, found: impl Into<String>) -> SelfCheck {
    SelfCheck { what, state: CheckState::Good, found: found.into(), way_out: None, code: None }
}

fn failed(what: &'static str, fault: &Fault) -> SelfCheck {
    let way_out = fault.hint_text().map(str::to_owned);
    SelfCheck { what, state: CheckState::Failed, found: in_words(fault), way_out, code: Some(fault.code()) }
}

fn etcd(node: &Node) -> SelfCheck {
    match Program::find(node, None) {
        Ok(program) => good("etcd", format!("{} at `{}`", program.binary.version, program.binary.path.display())),
        Err(fault) => failed("etcd", &fault),
    }
}

fn state_dir(node: &Node) -> SelfCheck {
    let dir = node.state_path();
    if !dir.exists() {
        let parent = match nearest(dir) {
            Ok(parent) => parent,
            Err(file) => return no_directory("state dir", dir, file),
        };
        return match fsync_ms(parent) {
            Some(_) => good("state dir", format!("`{}` will be created", dir.display())),
            None => unwritable("state dir", parent),
        };
    }
    match StateDir::open(dir) {
        Ok(_) => good("state dir", format!("`{}`", dir.display())),
        Err(fault) => failed("state dir", &fault),
    }
}

/// The nearest directory that is there; `Err`: what is there is no directory, and nothing can be created below it.
fn nearest(dir: &Path) -> Result<&Path, &Path> {
    let there = dir.ancestors().find(|parent| parent.symlink_metadata().is_ok()).unwrap_or(Path::new("/"));
    if there.is_dir() { Ok(there) } else { Err(there) }
}

fn no_directory(what: &'static str, dir: &Path, file: &Path) -> SelfCheck {
    SelfCheck {
        what,
        state: CheckState::Failed,
        found: format!("`{}` cannot be created: `{}` is no directory", dir.display(), file.display()),
        way_out: Some("declare another path, or move what is there aside".to_owned()),
        code: Some(Code::NoPermission),
    }
}

fn unwritable(what: &'static str, dir: &Path) -> SelfCheck {
    SelfCheck {
        what,
        state: CheckState::Failed,
        found: format!("nothing can be written durably in `{}`", dir.display()),
        way_out: Some("run as a user that may write there, or mount the file system writable".to_owned()),
        code: Some(Code::NoPermission),
    }
}

fn disk(node: &Node) -> SelfCheck {
    let dir = node.target.data_dir();
    if let Err(file) = nearest(dir) {
        return no_directory("disk", dir, file);
    }
    match fsync_ms(dir) {
        None => unwritable("disk", dir),
        Some(took) if took > FSYNC_MAX_MS => SelfCheck {
            what: "disk",
            state: CheckState::Warning,
            found: format!("a synced write takes {took} ms where `{}` is: etcd will lose its leader", dir.display()),
            way_out: Some("use a faster disk, or raise `heartbeat-interval` and `election-timeout`".to_owned()),
            code: None,
        },
        Some(took) => good("disk", format!("a synced write takes {took} ms where `{}` is", dir.display())),
    }
}

/// Every port that this node listens on, unless its agent runs and listens there already.
fn ports(node: &Node) -> Vec<SelfCheck> {
    let running = node.state_path().is_dir() && node.state().is_ok_and(|state| state.lock().is_err());
    if running {
        return vec![good("ports", "the agent of this node runs; its ports were not tried")];
    }
    let (member, spec) = (&node.member, &node.spec);
    let mut urls: Vec<String> = member.peer_urls.iter().chain(&member.client_urls).cloned().collect();
    urls.extend([spec.agent_url_of(member), spec.health_listen_of(member)]);
    let mut found = Ports::default();
    let mut tried = Vec::new();
    for url in &urls {
        let port = url.trim_end_matches('/').rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        let (Some(host), Some(port)) = (host_of(url), port) else { continue };
        found.and(Ports::look(host, &[port]));
        tried.push(format!("{host}:{port}"));
    }
    let bad = |found: String, way_out: &str| SelfCheck {
        what: "ports",
        state: CheckState::Failed,
        found,
        way_out: Some(way_out.to_owned()),
        code: None,
    };
    let taken = found.taken.iter().map(|at| {
        bad(format!("another process listens on `{at}`"), "stop it, or declare another port for this member")
    });
    let unfit = found.unfit.iter().map(|why| bad(why.clone(), "declare an address of this machine for this member"));
    let all: Vec<SelfCheck> = taken.chain(unfit).collect();
    if all.is_empty() { vec![good("ports", format!("{} are free", tried.join(", ")))] } else { all }
}

fn certificates(node: &Node) -> Vec<SelfCheck> {
    if matches!(node.spec.security, Security::Plaintext(_)) {
        return vec![good("certificates", "none: the file says `plaintext: true`")];
    }
    let input = PreflightInput { spec: &node.spec, member: &node.member, etcd: None };
    let findings = preflight(&input, Timestamp::now());
    let checks: Vec<SelfCheck> = findings
        .into_iter()
        .map(|finding| SelfCheck {
            what: "certificates",
            state: if finding.severity == Severity::Error { CheckState::Failed } else { CheckState::Warning },
            found: format!("{} at {}", finding.what, finding.place),
            way_out: Some(finding.remedy),
            code: Some(finding.code),
        })
        .collect();
    if checks.is_empty() { vec![good("certificates", "keys, chains, names and times are right")] } else { checks }
}

/// Whether certificates can be renewed from this node.
fn renewal(node: &Node) -> Option<SelfCheck> {
    let dir = node.spec.tls_files()?.dir.as_deref()?;
    let dir = for_member(dir, node.name());
    if can_issue(Path::new(&dir)) {
        return Some(good("renewal", format!("the issuing keys are in `{dir}`: this node renews certificates")));
    }
    if has_issuing_keys(Path::new(&dir)) {
        return Some(SelfCheck {
            what: "renewal",
            state: CheckState::Warning,
            found: format!("the issuing keys in `{dir}` are encrypted, and no passphrase is given here: this node renews nothing"),
            way_out: Some(
                "give the agent the passphrase: `QUORATE_CA_PASSPHRASE_FILE`, or the systemd credential `quorate-ca-passphrase`"
                    .to_owned(),
            ),
            code: None,
        });
    }
    Some(SelfCheck {
        what: "renewal",
        state: CheckState::Warning,
        found: format!("no issuing keys are in `{dir}`: unless another node has them, certificates end after 90 days"),
        way_out: Some(
            "copy the `*-ca.key` files of `quorate ca init` to at least one node, or renew them yourself".to_owned(),
        ),
        code: None,
    })
}

/// Whether orders of operators can be told from those of nodes.
fn operators(node: &Node) -> Option<SelfCheck> {
    let dir = node.spec.tls_files()?.dir.as_deref().map(|dir| for_member(dir, node.name()));
    if let Some(dir) = dir.as_deref().filter(|dir| Path::new(dir).join(operator_files::KEY).exists()) {
        return Some(SelfCheck {
            what: "operators",
            state: CheckState::Warning,
            found: format!(
                "the key of the operators' authority is in `{dir}`: whoever takes this node can make operators"
            ),
            way_out: Some(format!(
                "keep `{}` away from nodes, with the folder of `quorate ca init`",
                operator_files::KEY
            )),
            code: None,
        });
    }
    let known = node.spec.operators_file_of(node.name());
    Some(match known.filter(|path| Path::new(path).exists()) {
        Some(path) => good("operators", format!("signed cluster files and orders are checked with `{path}`")),
        None => SelfCheck {
            what: "operators",
            state: CheckState::Warning,
            found: "no operators' authority is here: the certificate of any node gives orders, and no cluster file is taken from elsewhere"
                .to_owned(),
            way_out: Some(format!("copy `{}` of `quorate ca init` into the folder of certificates", operator_files::CERTIFICATE)),
            code: Some(Code::OperatorsUnknown),
        },
    })
}

fn sandbox(node: &Node) -> SelfCheck {
    let planned = describe_box(node).and_then(|spec| {
        let level = spec.level;
        plan_box(&spec, &known_machine()).map(|_| level).map_err(|why| super::boxed::refused(&why))
    });
    match planned {
        Ok(level) => good("box", format!("etcd runs in a box of level `{}`", level.name())),
        Err(fault) => failed("box", &fault),
    }
}

fn store(node: &Node) -> Option<SelfCheck> {
    let backup = node.spec.backup.as_ref()?;
    Some(match Session::open(&backup.store, &node.scratch()) {
        Ok(session) => {
            good("backups", format!("the store answers; it holds {} objects", session.catalog.objects.len()))
        }
        Err(fault) => SelfCheck { state: CheckState::Warning, ..failed("backups", &fault) },
    })
}
