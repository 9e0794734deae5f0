//! Sources of truth: who founds the cluster. One trait, one file each, one kind of answer.
//!
//! **Invariant:** a source that does not answer is a fault ([`Code::SourceUnreachable`]), never an empty list. Every answer
//! comes within [`ANSWER_WITHIN`] and is read up to [`BODY_MAX`] bytes.

mod consul;
mod credentials;
mod dns_srv;
mod etcd;
mod exec;
mod file;
mod gather;
mod http;
mod initial_cluster;
mod uri;
mod web;
mod words;

use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use quorate_faults::{Code, Fault, Result};
use quorate_plan::Warning;
use quorate_plan::roster::{Answer, nearest, quoted};

pub use gather::{Pace, ask, gather, gather_at};

/// A source that has not answered by then is unreachable.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// How long `--expect` waits unless `--wait` says otherwise.
pub const DEFAULT_WAIT: Duration = Duration::from_secs(120);

/// Longest answer that is read: room for thousands of members, and a limit for a server gone mad.
pub const BODY_MAX: usize = 1 << 20;

/// The answer to come.
pub type Asked<'a> = Pin<Box<dyn Future<Output = Result<Answer>> + Send + 'a>>;

/// One place that knows the members.
pub trait Source: Send + Sync {
    /// Where this is, fit to be shown: without secrets.
    fn provenance(&self) -> &str;

    /// Asks once. The caller sees to the time limit; dropping the future stops all that it started.
    fn ask(&self) -> Asked<'_>;

    /// Whether every answer will be the same, so that waiting for another is pointless.
    fn settled(&self) -> bool {
        false
    }

    /// What should be said about how this source is set up.
    fn warnings(&self) -> Vec<Warning> {
        Vec::new()
    }
}

/// What a source may need besides its URI. Secrets come from files or the environment, never from arguments.
#[derive(Debug, Clone, Default)]
pub struct SourceOptions {
    /// `--source-cacert`: who signed the server's certificate.
    pub cacert: Option<PathBuf>,
    /// `--source-cert`: our client certificate.
    pub cert: Option<PathBuf>,
    /// `--source-key`: its key.
    pub key: Option<PathBuf>,
    /// `--source-token-file`: a bearer token, a Consul ACL token, or `user:password` for etcd.
    pub token_file: Option<PathBuf>,
    /// `--source-user-file`: a file with `user:password`, for basic authentication or etcd.
    pub user_file: Option<PathBuf>,
    /// `--name`: the local member's name, where the source needs it.
    pub local_name: Option<String>,
    /// Where environment variables are looked up.
    pub env: Env,
}

/// The environment, or what a test says it is.
#[derive(Debug, Clone, Copy)]
pub struct Env(pub fn(&str) -> Option<String>);

impl Default for Env {
    fn default() -> Env {
        Env(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }
}

/// The schemes, as they are suggested.
const SCHEMES: [&str; 9] =
    ["static:", "file:", "dns-srv:", "http:", "https:", "exec:", "exec+shell:", "consul:", "etcd:"];

/// Makes a source of a `--source` URI. Asks nobody yet.
pub fn open(uri: &str, options: &SourceOptions) -> Result<Box<dyn Source>> {
    let Some((scheme, rest)) = uri.split_once(':') else { return Err(unknown_scheme(uri)) };
    refuse_unused(scheme, options)?;
    Ok(match scheme {
        "static" => Box::new(initial_cluster::Static::open(rest)),
        "file" => Box::new(file::File::open(rest)?),
        "dns-srv" => Box::new(dns_srv::DnsSrv::open(rest, options)?),
        "http" | "https" => Box::new(http::Http::open(uri, options)?),
        "exec" => Box::new(exec::Exec::open(rest)?),
        "exec+shell" => Box::new(exec::Exec::open_shell(rest)?),
        "consul" => Box::new(consul::Consul::open(rest, options)?),
        "etcd" => Box::new(etcd::Etcd::open(rest, options)?),
        _ => return Err(unknown_scheme(uri)),
    })
}

/// A certificate or token that would not be used is a mistake about where the list comes from.
fn refuse_unused(scheme: &str, options: &SourceOptions) -> Result<()> {
    if !matches!(scheme, "static" | "file" | "dns-srv" | "exec" | "exec+shell") {
        return Ok(());
    }
    let given = [
        ("--source-cacert", &options.cacert),
        ("--source-cert", &options.cert),
        ("--source-key", &options.key),
        ("--source-token-file", &options.token_file),
        ("--source-user-file", &options.user_file),
    ];
    match given.iter().find(|(_, path)| path.is_some()) {
        None => Ok(()),
        Some((flag, _)) => Err(Fault::new(Code::Usage, format!("`{flag}` means nothing to a `{scheme}:` source"))
            .hint("it is for `http:`, `https:`, `consul:` and `etcd:`; leave it out here")),
    }
}

fn unknown_scheme(uri: &str) -> Fault {
    let scheme = uri.split_once(':').map_or(uri, |(scheme, _)| scheme);
    let near = nearest(scheme, SCHEMES.map(|scheme| scheme.trim_end_matches(':')));
    let hint = if scheme.contains('=') {
        format!("did you mean {}?", quoted(&format!("static:{uri}")))
    } else if uri.starts_with(['/', '.', '~']) || uri == "-" {
        format!("did you mean {}?", quoted(&format!("file:{uri}")))
    } else if let Some(near) = near {
        format!("did you mean `{near}:`?")
    } else {
        format!("a source begins with one of {}", SCHEMES.map(|scheme| format!("`{scheme}`")).join(", "))
    };
    Fault::new(Code::SourceInvalid, format!("cannot understand source {}", quoted(uri))).hint(hint)
}

/// A URI that cannot be understood.
fn invalid(uri: &str, why: impl std::fmt::Display) -> Fault {
    Fault::new(Code::SourceInvalid, format!("cannot understand source {}: {why}", quoted(uri)))
}

/// No answer: unknown is not empty.
fn silent(provenance: &str, why: impl std::fmt::Display) -> Fault {
    Fault::new(Code::SourceUnreachable, format!("no list from {}: {why}", quoted(provenance)))
}

/// An answer that is too long to be a member list.
fn too_long(provenance: &str) -> Fault {
    let attempt = format!("cannot read the list from {}: it is longer than {} KiB", quoted(provenance), BODY_MAX >> 10);
    Fault::new(Code::SourceNotAList, attempt).hint("give the list alone: a cluster has 3 to 7 members")
}
