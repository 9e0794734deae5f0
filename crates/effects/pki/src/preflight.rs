//! Before a start: which certificate would fail whom, and why.

use std::path::PathBuf;

use jiff::Timestamp;
use quorate_faults::{Code, Finding, Severity};
use quorate_plan::certificates::host_of;
use quorate_plan::etcd_config::Minor;
use quorate_plan::spec::{Member, Security, Spec, Tls, TlsFiles, for_member};

use crate::check::{Pair, Seen, finding, observe_pair, times};
use crate::read::node_of;

/// What is about to be started.
#[derive(Debug, Clone, Copy)]
pub struct PreflightInput<'a> {
    /// The cluster file.
    pub spec: &'a Spec,
    /// The member of this machine.
    pub member: &'a Member,
    /// The version of its etcd, where it is known.
    pub etcd: Option<Minor>,
}

/// Everything that is wrong with the certificates of a member. With an error among them, do not start.
pub fn preflight(input: &PreflightInput<'_>, now: Timestamp) -> Vec<Finding> {
    let Security::Tls(tls) = &input.spec.security else { return Vec::new() };
    let seen: Vec<(Pair, Seen)> = pairs(input.spec, input.member, tls)
        .into_iter()
        .map(|pair| {
            let seen = observe_pair(&pair, now);
            (pair, seen)
        })
        .collect();
    let mut findings = Vec::new();
    let mut authorities: Vec<PathBuf> = Vec::new();
    for (pair, seen) in &seen {
        findings.extend(seen.findings.iter().cloned());
        if !authorities.contains(&pair.ca) {
            authorities.push(pair.ca.clone());
            for authority in &seen.trusted {
                times(&pair.ca, "the authority", authority, now, &mut findings);
            }
        }
    }
    names(input, tls, &seen, &mut findings);
    agents(input, &seen, &mut findings);
    findings
}

/// Who may give agents orders.
fn agents(input: &PreflightInput<'_>, seen: &[(Pair, Seen)], findings: &mut Vec<Finding>) {
    let find = |which: &str| seen.iter().find(|(pair, _)| pair.which == which);
    let (Some((pair, agent)), Some((_, client))) = (find("agent").or_else(|| find("peer")), find("client")) else {
        return;
    };
    let (spec, own) = (input.spec, &input.member.name);
    let named = |seen: &Seen| seen.leaf.as_ref().and_then(|leaf| node_of(leaf, &spec.token));
    if let Some(name) = named(agent).filter(|name| name != own) {
        // Alone, only operators have to get past it.
        let severity = if spec.members.len() > 1 { Severity::Error } else { Severity::Warning };
        let what = format!("the certificate of the agent names `{name}`, so other agents take nothing from `{own}`");
        let remedy = "have it issued with the member's name as its common name";
        findings.push(finding(Code::AgentUnnamed, severity, &pair.cert, what, remedy));
    }
    let shared = agent.trusted.iter().any(|one| client.trusted.iter().any(|other| one.public_key == other.public_key));
    if !shared {
        return;
    }
    let taken = find("admin").and_then(|(admin, seen)| {
        let name = named(seen).filter(|name| spec.member(name).is_some())?;
        (admin.cert != pair.cert).then_some((admin, name))
    });
    let remedy = "give agents an authority of their own, or sign no client's certificate with a member's name";
    findings.push(match taken {
        Some((admin, name)) => {
            let what = format!(
                "agents and clients have one authority, and this client's certificate names `{name}`, so it commands agents"
            );
            finding(Code::CertificateSharedCa, Severity::Error, &admin.cert, what, remedy)
        }
        None => {
            let what = "agents and clients have one authority: names alone keep clients from commanding agents";
            finding(Code::CertificateSharedCa, Severity::Warning, &pair.ca, what.to_owned(), remedy)
        }
    });
}

/// Who may call themselves a peer.
fn names(input: &PreflightInput<'_>, tls: &Tls, seen: &[(Pair, Seen)], findings: &mut Vec<Finding>) {
    let find = |which: &str| seen.iter().find(|(pair, _)| pair.which == which);
    let (Some((peer, peer_seen)), Some((_, client_seen))) = (find("peer"), find("client")) else { return };
    let asks = input.etcd.is_none_or(|minor| minor > Minor::V3_4);
    let shared =
        peer_seen.trusted.iter().any(|one| client_seen.trusted.iter().any(|other| one.public_key == other.public_key));
    if shared && !(asks && tls.peer_allowed_hostname.is_some()) {
        let what = "peers and clients have one authority, so every client's certificate opens the peer port".to_owned();
        let remedy = "give peers an authority of their own, or set `tls.peer-allowed-hostname` (etcd 3.5 and newer)";
        findings.push(finding(Code::CertificateSharedCa, Severity::Warning, &peer.ca, what, remedy));
    }
    let Some(name) = &tls.peer_allowed_hostname else { return };
    if !asks {
        let what =
            format!("etcd 3.4 does not ask peers for the name `{name}`: their authority alone decides who is one");
        let remedy = "sign nothing but peers with that authority";
        findings.push(finding(Code::PeerNameUnchecked, Severity::Warning, &peer.ca, what, remedy));
    } else if let Some(leaf) = &peer_seen.leaf
        && !leaf.covers(name)
    {
        let what = format!("the peer certificate does not carry `{name}`, so other members refuse it");
        let remedy = "have it issued with that name, or change `tls.peer-allowed-hostname` on every node";
        findings.push(finding(Code::CertificateAddress, Severity::Error, &peer.cert, what, remedy));
    }
}

/// The pairs that a member uses, each file once.
pub(crate) fn pairs(spec: &Spec, member: &Member, tls: &Tls) -> Vec<Pair> {
    let path = |text: &str| PathBuf::from(for_member(text, &member.name));
    let hosts = |urls: &[String]| -> Vec<(String, String)> {
        urls.iter().filter_map(|url| Some((host_of(url)?.to_owned(), format!("`{url}`")))).collect()
    };
    let pair = |which, files: &TlsFiles, whom, hosts, server, client| Pair {
        which,
        cert: path(&files.cert_file),
        key: path(&files.key_file),
        ca: path(&files.trusted_ca_file),
        whom,
        hosts,
        server,
        client,
    };
    let error = Some(Severity::Error);
    let mut pairs = vec![
        pair("peer", &tls.peer, "other members", hosts(&member.peer_urls), error, error),
        // Only etcd's HTTP gateway dials with it.
        pair("client", &tls.client, "clients", hosts(&member.client_urls), error, Some(Severity::Warning)),
    ];
    let agent = hosts(&[spec.agent_url_of(member)]);
    match &tls.agent {
        Some(files) => pairs.push(pair("agent", files, "other agents", agent, error, error)),
        // The peers' files serve agents too.
        None => pairs.iter_mut().take(1).for_each(|peer| peer.hosts.extend(agent.iter().cloned())),
    }
    if let Some(files) = &tls.admin {
        pairs.push(pair("admin", files, "etcd", Vec::new(), None, error));
    }
    pairs
}
