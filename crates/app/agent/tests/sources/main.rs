//! Sources of truth against the real thing: files, programs, web servers, dnsmasq, Consul and etcd.

#![expect(clippy::unwrap_used, reason = "what goes wrong in a test's helper fails the test")]

mod consul;
mod dns_srv;
mod etcd;
mod exec;
mod file;
mod gather;
mod http;
mod pki;
mod uri;
mod urls;

use std::error::Error;
use std::future::Future;
use std::time::Duration;

use quorate_agent::sources::{Pace, Source, SourceOptions, gather_at, open};
use quorate_faults::Fault;
use quorate_plan::roster::Roster;

/// Quick enough for tests, slow enough for a busy machine.
const PACE: Pace = Pace { answer_within: Duration::from_secs(10), ask_every: Duration::from_millis(100) };

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(future)
}

/// Asks once, without `--expect`.
fn ask(uri: &str, options: &SourceOptions) -> Result<Roster, Fault> {
    let source = open(uri, options)?;
    block_on(gather_at(source.as_ref(), None, Duration::ZERO, PACE, &mut |_| {}))
}

/// Asks for so many members; returns what the operator read meanwhile, too.
fn expect(source: &dyn Source, count: usize, wait: Duration) -> (Result<Roster, Fault>, Vec<String>) {
    let mut said = Vec::new();
    let result = block_on(gather_at(source, Some(count), wait, PACE, &mut |line| said.push(line.to_owned())));
    (result, said)
}

/// `n1=http://a:1,http://b:1 n2=…`
fn shown(roster: &Roster) -> String {
    let members = roster.members.iter().map(|member| format!("{}={}", member.name, member.peer_urls.join(",")));
    members.collect::<Vec<_>>().join(" ")
}

/// Code, sentence, every cause and the way out, as an operator reads them.
fn words(fault: &Fault) -> String {
    let mut text = format!("{} {fault}", fault.code());
    let mut next = fault.source();
    while let Some(cause) = next {
        text += &format!(" <- {cause}");
        next = cause.source();
    }
    format!("{text} -> {}", fault.hint_text().unwrap_or_default())
}

fn refusal(result: Result<Roster, Fault>) -> String {
    match result {
        Ok(roster) => format!("accepted: {}", shown(&roster)),
        Err(fault) => words(&fault),
    }
}
