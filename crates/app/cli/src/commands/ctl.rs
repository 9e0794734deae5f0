//! `quorate ctl`: etcdctl with the right certificates and the endpoints of the members that there are now.
//!
//! **Invariant:** etcdctl's argv is exactly what was typed; certificates, endpoints and passwords go through its environment.
//! What changes something, and what reads more than a key, is in the audit log first.

mod builtin;
mod live;
mod words;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use quorate_agent::cluster_file;
use quorate_agent::declared;
use quorate_agent::turn::Node;
use quorate_etcd::binary::{Binary, Places};
use quorate_etcd::client::Settings;
use quorate_faults::{Code, Exit, Fault};
use quorate_plan::spec::Spec;

use super::audit;
use super::cluster::ask::{file_or_default, peer_managed};
use super::ps::scan::Place;
use super::run::NodeArgs;
use crate::printer::Printer;

/// How long a member may take to say who the others are.
const ASK_LIMIT: Duration = Duration::from_secs(2);

/// Flags of `ctl`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate ctl member list
  quorate ctl --local endpoint status -w table
  quorate ctl --config cluster.yaml get --prefix /registry --keys-only
  quorate ctl --output json endpoint health

Flags of ours come before etcdctl's words. Endpoints are those of the members that the cluster
has now, asked of any that answers, else those of the cluster file. Flags that you give
etcdctl yourself win. Without etcdctl, `member list`, `endpoint status`, `endpoint health` and
`move-leader` are done by quorate itself. etcdctl's exit code is passed on.")]
pub(crate) struct Args {
    /// The cluster file [default: /etc/quorate/cluster.yaml]
    #[arg(long, value_name = "FILE", env = "QUORATE_CONFIG")]
    config: Option<PathBuf>,

    /// This member's name in it [default: the one that is kept here]
    #[arg(long, env = "QUORATE_NAME")]
    name: Option<String>,

    /// Ask this member alone
    #[arg(long)]
    local: bool,

    /// What etcdctl is to do
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true, value_name = "WORDS")]
    words: Vec<String>,
}

/// Runs it.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let node = node(args.config.as_deref(), args.name.as_deref(), printer)?;
    let mut settings = node.client()?;
    settings.timeout = ASK_LIMIT;
    let local = node.member.client_urls.iter().take(1).cloned();
    settings.endpoints = match (args.local, words::gives(&args.words, "endpoints")) {
        // Where others run it, it is where the file says.
        (_, false) if node.spec.external.is_some() => settings.endpoints.clone(),
        (true, _) => local.collect(),
        // etcdctl is told by its own flag.
        (false, true) => Vec::new(),
        (false, false) => live::endpoints(&node, &settings, printer)?,
    };
    let program = find(&node);
    if program.is_none() && !builtin::knows(&args.words) {
        return Err(Fault::new(Code::CtlMissing, "cannot find the program `etcdctl`")
            .hint("install it (Debian and Ubuntu: `apt install etcd-client`), or put it beside etcd"));
    }
    if words::changes(&args.words) || words::reads_many(&args.words) {
        record(&node, &args.words, printer)?;
    }
    match program {
        None => builtin::run(&args.words, &settings, printer),
        Some(program) => {
            let mut command = command(&program, &settings, args, printer.is_json());
            // Only returns if it could not be executed.
            Err(Fault::io(format!("cannot run `{}`", program.display()), command.exec()))
        }
    }
}

fn record(node: &Node, words: &[String], printer: &mut Printer) -> Result<(), Fault> {
    if !node.state_path().is_dir() {
        printer.warning(Code::NotAudited, "no member is kept on this machine, so there is no audit log for this");
        return Ok(());
    }
    audit::note_in(node.state_path(), "ctl", node.name(), None, &audit::hide_secrets(&words::hide_values(words)))
}

/// The member that is meant: of this file or the usual one, that which is kept on this machine or is named.
pub(super) fn node(config: Option<&Path>, name: Option<&str>, printer: &mut Printer) -> Result<Node, Fault> {
    let config = file_or_default(config, name)?;
    let name = match name.map(str::to_owned).or_else(|| peer_managed(&config, None)) {
        Some(name) => Some(name),
        None => kept_here(&config)?,
    };
    NodeArgs::new(config, name).node(printer)
}

/// The one member of the file that is kept on this machine; `None` where the file has only one anyway.
fn kept_here(config: &Path) -> Result<Option<String>, Fault> {
    let (spec, _) = cluster_file::read(config)?;
    if spec.source.is_some() {
        return kept_by_source(config, spec);
    }
    if spec.members.len() < 2 {
        return Ok(None);
    }
    let place = Place { config: Some(config.to_owned()), ..Place::default() };
    let mut here = place.members()?;
    match (here.pop(), here.is_empty()) {
        (Some((name, _)), true) => Ok(Some(name)),
        (found, _) => {
            let how = if found.is_some() { "several of them are" } else { "none of them is" };
            let said = format!("`{}` declares {} members, and {how} kept here", config.display(), spec.members.len());
            Err(Fault::new(Code::NoCluster, said).hint("say as which one to ask: --name NAME"))
        }
    }
}

/// The same where a source names the members: who is kept here has written down what it said.
fn kept_by_source(config: &Path, spec: Spec) -> Result<Option<String>, Fault> {
    let mut here = declared::kept_here(&spec);
    match (here.pop(), here.is_empty()) {
        (Some(name), true) => Ok(Some(name)),
        (found, _) => {
            let (spec, _) = declared::resolve_now(spec, None, declared::ASKED_WITHIN)?;
            if spec.members.len() < 2 {
                return Ok(None);
            }
            let how = if found.is_some() { "several of them are" } else { "none of them is" };
            let said = format!("`{}` has {} members, and {how} kept here", config.display(), spec.members.len());
            Err(Fault::new(Code::NoCluster, said).hint("say as which one to ask: --name NAME"))
        }
    }
}

/// Beside etcd, on the PATH, or in `.tools` of a checkout. Our own helper of that name is not it.
fn find(node: &Node) -> Option<PathBuf> {
    let beside = node.spec.agent.etcd_binary.as_deref().map(|etcd| Path::new(etcd).with_file_name("etcdctl"));
    let path = std::env::var_os("PATH");
    let on_path = path.iter().flat_map(std::env::split_paths).map(|dir| dir.join("etcdctl"));
    let found = beside.into_iter().chain(on_path).find(|file| is_program(file) && !is_helper(file));
    found.or_else(|| {
        let near = std::env::current_dir().ok().into_iter().collect();
        let etcd = Binary::find(&Places { named: None, path: None, near }).ok()?;
        Some(etcd.path.with_file_name("etcdctl")).filter(|file| is_program(file))
    })
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Whether it is the script that leads back to us.
fn is_helper(path: &Path) -> bool {
    use std::io::Read;
    let mut head = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(512).read_to_end(&mut head));
    read.is_ok() && head.starts_with(b"#!") && String::from_utf8_lossy(&head).contains("quorate ctl")
}

fn command(program: &Path, settings: &Settings, args: &Args, json: bool) -> Command {
    let mut command = Command::new(program);
    // Version 3 is what every etcdctl since 3.4 speaks without it, and 3.6 warns on each call where it is set.
    command.args(&args.words).env_remove("ETCDCTL_API");
    let text = |path: &Option<PathBuf>| path.as_ref().map(|path| path.as_os_str().to_owned());
    let user = settings.credentials.as_ref();
    let endpoints = (!settings.endpoints.is_empty()).then(|| settings.endpoints.join(",").into());
    for (flag, value) in [
        ("endpoints", endpoints),
        ("cacert", text(&settings.tls.ca)),
        ("cert", text(&settings.tls.cert)),
        ("key", text(&settings.tls.key)),
        ("user", user.map(|user| user.name.clone().into())),
        ("password", user.map(|user| user.password.clone().into())),
        ("write-out", json.then(|| "json".into())),
    ] {
        let variable = format!("ETCDCTL_{}", flag.to_uppercase().replace('-', "_"));
        // etcdctl refuses to have both.
        let with_user = flag == "password" && words::gives(&args.words, "user");
        if words::gives(&args.words, flag) || with_user {
            command.env_remove(variable);
        } else if let Some(value) = value {
            command.env(variable, value);
        }
    }
    command
}
