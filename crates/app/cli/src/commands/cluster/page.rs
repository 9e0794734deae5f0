//! `quorate cluster page`: the same as `cluster status`, as a page for a browser.
//!
//! **Invariant:** the page has no login, so only this machine can ask for it, under one of its own names; and it changes
//! nothing.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use askama::Template;
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use jiff::Timestamp;
use quorate_agent::serve::{self, Address};
use quorate_etcd::aside::ensure_file;
use quorate_faults::{Code, Exit, Fault};
use quorate_host::durable::RealDisk;
use quorate_plan::spec::duration_text;
use tokio_util::sync::CancellationToken;

use super::ask::{Cluster, ClusterArgs};
use super::status::{self, Node, Shown, State as Verdict, size};
use crate::printer::Printer;

/// Flags of `cluster page`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate cluster page --config cluster.yaml       then open the address it says
  quorate cluster page --config cluster.yaml --write status.html
  ssh -L 7780:127.0.0.1:7780 node1       and look at it from your own machine

Every agent is asked over mutual TLS each time the page is loaded. The page itself has no
login and can therefore be asked for on this machine only.")]
pub(crate) struct Args {
    #[command(flatten)]
    cluster: ClusterArgs,

    /// Where to serve it: an address of this machine alone
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7780")]
    listen: String,

    /// Write it into this file once, and serve nothing
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
}

/// Serves or writes it.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let cluster = Cluster::open(&args.cluster.file()?, args.cluster.name.as_deref(), printer)?;
    if let Some(file) = &args.write {
        let page = html(&status::look(&cluster), false)?;
        let file = std::path::absolute(file).unwrap_or_else(|_| file.clone());
        ensure_file(&RealDisk, &file, page.as_bytes())?;
        printer.note(&format!("written to `{}`", file.display()));
        return Ok(Exit::Done);
    }
    let address = Address::parse(&format!("http://{}", args.listen), None)?;
    if !address.is_loopback() {
        let attempt = format!("cannot serve the page on `{}`: anyone who reaches it could read it", args.listen);
        return Err(Fault::new(Code::ServeInvalid, attempt)
            .hint("listen on 127.0.0.1, and reach it by `ssh -L 7780:127.0.0.1:7780 HOST`"));
    }
    let cluster = Arc::new(cluster);
    let serving = async {
        let bound = serve::bind(&address).await?;
        let at = bound.local_addr().map_or_else(|| args.listen.clone(), |at| at.to_string());
        printer.note(&format!("the page is at http://{at}/; end this with Ctrl-C"));
        let stop = CancellationToken::new();
        let ended = stop.clone();
        tokio::spawn(async move {
            let _ = tokio::signal::ctrl_c().await;
            ended.cancel();
        });
        bound.serve(Router::new().route("/", get(answer)).with_state(Arc::clone(&cluster)), stop).await
    };
    cluster.block_on(serving)?;
    Ok(Exit::Done)
}

async fn answer(State(cluster): State<Arc<Cluster>>, headers: HeaderMap) -> Response {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    if !is_own_name(host) {
        return (StatusCode::FORBIDDEN, "this page is for this machine alone").into_response();
    }
    let shown = status::shown(&cluster.spec, &cluster.file, &cluster.ask_now("/v1/status").await);
    match html(&shown, true) {
        Ok(page) => ([(header::CACHE_CONTROL, "no-store")], Html(page)).into_response(),
        Err(fault) => (StatusCode::INTERNAL_SERVER_ERROR, fault.to_string()).into_response(),
    }
}

/// A page of someone else's that leads a browser here by another name gets nothing.
fn is_own_name(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn html(shown: &Shown, live: bool) -> Result<String, Fault> {
    let page = View::new(shown, live, Timestamp::now()).render();
    page.map_err(|error| Fault::new(Code::Internal, "cannot write the page").caused_by(error))
}

#[derive(Template)]
#[template(path = "page.html")]
struct View {
    live: bool,
    token: String,
    cluster_id: String,
    headline: String,
    tone: &'static str,
    verdict: String,
    code: String,
    way_out: String,
    command: String,
    rows: Vec<Row>,
    waits: Vec<Line>,
    warnings: Vec<Line>,
    silent: Vec<String>,
    quorum: String,
    backups: String,
    certificates: String,
    asked_at: String,
}

struct Row {
    name: String,
    id: String,
    phase: String,
    tone: &'static str,
    role: String,
    version: String,
    revision: String,
    lag: String,
    database: String,
    used_percent: Option<u64>,
    up: String,
}

struct Line {
    who: String,
    text: String,
    code: String,
    way_out: String,
}

impl View {
    fn new(shown: &Shown, live: bool, now: Timestamp) -> View {
        let serving = shown.nodes.iter().filter(|node| node.phase == "serving").count();
        let verdict = shown.verdict.clone();
        let all = shown.nodes.len();
        let headline = format!("{}, {serving} of {all} serve", verdict.state.words().to_lowercase());
        let line = |node: &Node| Line {
            who: node.name.clone(),
            text: node.cause.clone(),
            code: node.code.clone().unwrap_or_default(),
            way_out: node.status.as_ref().and_then(|status| status.way_out.clone()).unwrap_or_default(),
        };
        let warning = |warned: &status::Warned| Line {
            who: warned.by.join(", "),
            text: warned.notice.text.clone(),
            code: warned.notice.code.clone(),
            way_out: warned.notice.way_out.clone().unwrap_or_default(),
        };
        View {
            live,
            token: shown.token.clone(),
            cluster_id: shown.cluster_ids(),
            headline,
            tone: tone_of(verdict.state),
            verdict: verdict.text,
            code: verdict.code.unwrap_or_default(),
            way_out: verdict.way_out.unwrap_or_default(),
            command: verdict.command.unwrap_or_default(),
            rows: shown.nodes.iter().map(|node| row(shown, node, now)).collect(),
            waits: shown.nodes.iter().filter(|node| node.phase != "serving").map(line).collect(),
            warnings: shown.warnings.iter().map(warning).collect(),
            silent: shown.silent().collect(),
            quorum: shown.quorum().unwrap_or_else(|| "no quorum has confirmed its members yet".to_owned()),
            backups: shown.backups().unwrap_or_else(|| "the cluster file declares none".to_owned()),
            certificates: shown.first_end(now).unwrap_or_else(|| "none: everything is in the clear".to_owned()),
            asked_at: now.strftime("%Y-%m-%d %H:%M:%S UTC").to_string(),
        }
    }
}

fn tone_of(state: Verdict) -> &'static str {
    match state {
        Verdict::Healthy => "good",
        Verdict::Degraded | Verdict::Waiting => "wait",
        Verdict::Refused | Verdict::NoLeader | Verdict::QuorumLost | Verdict::Unreachable => "bad",
    }
}

fn row(shown: &Shown, node: &Node, now: Timestamp) -> Row {
    let none = || "–".to_owned();
    let [_, role, _, version, lag, ..] = shown.row(node);
    let status = node.status.as_ref();
    let etcd = status.and_then(|status| status.etcd.as_ref());
    let listed = shown.listed(node).and_then(|member| member.revision);
    let revision = listed.max(etcd.and_then(|etcd| etcd.revision));
    let bytes = etcd.and_then(|etcd| Some((etcd.db_used_bytes?, etcd.quota_bytes.filter(|quota| *quota > 0)?)));
    let up = |since: u64| {
        let ms = now.as_millisecond().unsigned_abs().saturating_sub(since);
        duration_text(Duration::from_secs(ms / 1000))
    };
    Row {
        name: node.name.clone(),
        id: status.and_then(|status| status.member_id.clone()).unwrap_or_default(),
        phase: node.phase.clone(),
        tone: match node.phase.as_str() {
            "serving" => "good",
            "refused" | "silent" => "bad",
            _ => "wait",
        },
        role,
        version,
        revision: revision.map_or_else(none, |revision| revision.to_string()),
        lag,
        database: bytes.map_or_else(none, |(used, quota)| format!("{} of {}", size(used), size(quota))),
        used_percent: bytes.map(|(used, quota)| (used.saturating_mul(100) / quota).min(100)),
        up: etcd.map_or_else(none, |etcd| up(etcd.started_ms)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_answered() {
        for host in ["localhost", "localhost:7780", "127.0.0.1:7780", "[::1]:7780", "127.0.0.2"] {
            assert!(is_own_name(host), "{host}");
        }
        for host in ["", "evil.example", "evil.example:7780", "10.0.0.1:7780", "127.0.0.1.evil.example", "[::2]"] {
            assert!(!is_own_name(host), "{host}");
        }
    }

    #[test]
    fn what_agents_say_is_text_and_never_markup() {
        let node = Node::silent("n1", Code::PeerSilent, "<script>alert(1)</script>".to_owned());
        let verdict = status::Verdict {
            state: Verdict::Unreachable,
            text: String::new(),
            code: None,
            way_out: None,
            command: None,
        };
        let token = "t".to_owned();
        let shown = Shown { verdict, token, nodes: vec![node], members: Vec::new(), warnings: Vec::new() };
        let page = html(&shown, false).unwrap();
        assert!(page.contains("0 of 1 serve") && page.contains("&#60;script&#62;"), "{page}");
        assert!(!page.contains("<script>"), "{page}");
    }
}
