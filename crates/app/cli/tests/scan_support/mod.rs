//! What a stranger on the network is told: every port that listens on a host is asked without a certificate, with TLS and in clear
//! text.

#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses its part; one that cannot go on says where")]

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use quorate_testkit::Hosts;

/// A port, how and what it was asked, and what it said.
pub(crate) type Told = (u16, &'static str, &'static str, u16, String);

const PATHS: [&str; 18] = [
    "/",
    "/v1/node",
    "/v1/status",
    "/v1/peers",
    "/v1/file",
    "/v1/join",
    "/v1/join/approval",
    "/v1/join/challenge",
    "/v1/join/prove",
    "/v1/probe",
    "/v1/invite",
    "/v1/issuing-keys",
    "/v3/kv/range",
    "/version",
    "/health",
    "/metrics",
    "/livez",
    "/readyz",
];
/// In clear text, a listener with TLS says the same whatever it is asked.
const CLEAR_PATHS: [&str; 3] = ["/", "/v1/peers", "/readyz"];

/// The ports that listen on a host.
pub(crate) fn ports(hosts: &Hosts, at: usize) -> BTreeSet<u16> {
    hosts[at].within(|| {
        let table = std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
        let six = std::fs::read_to_string("/proc/thread-self/net/tcp6").unwrap_or_default();
        let listening = |line: &str| {
            let parts: Vec<&str> = line.split_whitespace().collect();
            let (place, state) = (parts.get(1)?, parts.get(3)?);
            let port = u16::from_str_radix(place.rsplit(':').next()?, 16).ok()?;
            (*state == "0A").then_some(port)
        };
        table.lines().chain(six.lines()).filter_map(listening).collect()
    })
}

/// Everything that a stranger on host `from` is told by host `at`, but for what is said to everyone: that a token lets nobody in,
/// and the sentence with which Go answers clear text on a port with TLS. `authorities`: files of those who sign there.
pub(crate) fn told(hosts: &Hosts, at: usize, from: usize, authorities: &[PathBuf]) -> Vec<Told> {
    let authorities: Vec<reqwest::Certificate> = authorities
        .iter()
        .map(|path| std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
        .map(|pem| reqwest::Certificate::from_pem(&pem).unwrap())
        .collect();
    let (address, ports) = (hosts[at].address(), ports(hosts, at));
    let told = hosts[from].within(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = reqwest::Client::builder().tls_certs_only(authorities).timeout(Duration::from_secs(20));
            let client = client.build().unwrap();
            let mut told = Vec::new();
            for port in ports {
                for (scheme, paths) in [("https", &PATHS[..]), ("http", &CLEAR_PATHS)] {
                    for path in paths {
                        let url = format!("{scheme}://{address}:{port}{path}");
                        for asked in [client.get(&url), client.post(&url).body("{}")] {
                            let Ok(answer) = asked.send().await else { continue };
                            let status = answer.status().as_u16();
                            let text = answer.text().await.unwrap_or_default();
                            if !text.is_empty() {
                                told.push((port, scheme, *path, status, text));
                            }
                        }
                    }
                }
            }
            told
        })
    });
    told.into_iter().filter(|one| !is_said_to_everyone(one)).collect()
}

fn is_said_to_everyone((port, scheme, path, status, text): &Told) -> bool {
    let turned = if *status == 429 { "too many wrong tokens" } else { "lets nobody in" };
    let tells = path.starts_with("/v1/join") || *path == "/v1/probe";
    let door = *port == 7700 && *scheme == "https" && tells && text.contains(turned);
    door || (*scheme == "http" && *status == 400 && text == "Client sent an HTTP request to an HTTPS server.\n")
}

/// Asserts that a host tells the phase on its health port, and nothing else.
#[track_caller]
pub(crate) fn assert_only_the_phase(told: &[Told], ready: &str) {
    let live = (2383, "https", "/livez", 200, "{\"live\":true}".to_owned());
    let ready = (2383, "https", "/readyz", 200, ready.to_owned());
    assert_eq!(told, [live, ready]);
}
