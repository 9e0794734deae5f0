//! Web servers: in clear text, over TLS, with client certificates and tokens; honest ones and others.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use quorate_agent::sources::{Pace, SourceOptions, gather_at, open};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

use super::pki::Pki;
use super::{ask, block_on, refusal, shown};

const LIST: &str = r#"[{"name":"n1","peer_urls":["https://10.0.0.1:2380"]}]"#;
const TOKEN: &str = "s3cret-token";

/// Answers every request on a thread of its own until the test ends.
fn serve(tls: Option<Arc<ServerConfig>>) -> SocketAddr {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        block_on(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            sender.send(listener.local_addr().unwrap()).unwrap();
            let acceptor = tls.map(TlsAcceptor::from);
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    match acceptor {
                        None => answer(stream).await,
                        // A client that fails the handshake is what some tests are about.
                        Some(acceptor) => {
                            if let Ok(stream) = acceptor.accept(stream).await {
                                answer(stream).await;
                            }
                        }
                    }
                });
            }
        });
    });
    receiver.recv().unwrap()
}

async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let mut chunk = [0; 1024];
        match stream.read(&mut chunk).await {
            Ok(count @ 1..) => request.extend_from_slice(&chunk[..count]),
            _ => return,
        }
    }
    let request = String::from_utf8_lossy(&request).to_lowercase();
    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
    let with_token = request.contains(&format!("authorization: bearer {TOKEN}"));
    let reply = match path.as_str() {
        "/list" => ok(LIST),
        "/list?token=s3cret-token" => status("500 Internal Server Error", ""),
        "/yaml" => ok("n1: https://10.0.0.1:2380\n"),
        "/private" if with_token => ok(LIST),
        "/private" => status("401 Unauthorized", ""),
        "/html" => ok("<html><body>sign in</body></html>"),
        "/empty" => ok("[]"),
        "/moved" => status("302 Found", "location: /list\r\n"),
        "/circle" => status("302 Found", "location: /circle\r\n"),
        away if away.starts_with("/away/") => {
            let port = away.trim_start_matches("/away/");
            status("302 Found", &format!("location: http://127.0.0.1:{port}/private\r\n"))
        }
        "/downgrade" => status("302 Found", "location: http://127.0.0.1:1/list\r\n"),
        "/flood" => ok(&"#".repeat(3 << 20)),
        "/short" => "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n[{".to_owned(),
        "/slow" => {
            tokio::time::sleep(Duration::from_secs(60)).await;
            return;
        }
        "/v1/health/service/hidden" => status("200 OK", "x-consul-results-filtered-by-acls: true\r\n")
            .replace("\r\n\r\n", "\r\n\r\n[]")
            .replace("length: 0", "length: 2"),
        _ => status("404 Not Found", ""),
    };
    // The client may have seen enough and hung up.
    let _ = stream.write_all(reply.as_bytes()).await;
    let _ = stream.shutdown().await;
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn status(status: &str, headers: &str) -> String {
    format!("HTTP/1.1 {status}\r\nconnection: close\r\n{headers}content-length: 0\r\n\r\n")
}

fn plain() -> SourceOptions {
    SourceOptions::default()
}

#[test]
fn lists_are_fetched_and_redirects_are_followed() {
    let server = serve(None);
    for path in ["list", "yaml", "moved"] {
        let roster = ask(&format!("http://{server}/{path}"), &plain()).unwrap();
        assert_eq!(shown(&roster), "n1=https://10.0.0.1:2380", "{path}");
        assert_eq!(roster.provenance, format!("http://{server}/{path}"));
    }
}

#[test]
fn whatever_is_not_a_list_is_told_apart_from_no_answer() {
    let server = serve(None);
    let refused = |path: &str| refusal(ask(&format!("http://{server}/{path}"), &plain()));
    let silent = |path: &str, why: &str| format!("Q0102 no list from `http://{server}/{path}`: {why}");
    assert_eq!(refused("absent"), silent("absent", "it answered `404 Not Found` -> check the path"));
    assert_eq!(
        refused("private"),
        silent(
            "private",
            "it answered `401 Unauthorized` -> give a token with `--source-token-file`, or a certificate with \
             `--source-cert` and `--source-key`"
        )
    );
    // A token in the query is not repeated.
    assert_eq!(
        refused("list?token=s3cret-token"),
        silent("list?…", "it answered `500 Internal Server Error` -> see the server's log, then try again")
    );
    assert!(refused("short").starts_with(&silent("short", "the connection broke <- ")), "{}", refused("short"));
    assert!(
        refused("circle").starts_with(&silent("circle", "it sends us round in circles or from TLS to clear text <- "))
    );
    assert_eq!(
        refused("empty"),
        format!(
            "Q0104 the list from `http://{server}/empty` has no members -> \
             list every founding member, or say `--expect N` to wait for them"
        )
    );
    assert!(
        refused("html").starts_with(&format!("Q0103 cannot read the list from `http://{server}/html`: it is text")),
        "{}",
        refused("html")
    );
    assert_eq!(
        refused("flood"),
        format!(
            "Q0103 cannot read the list from `http://{server}/flood`: it is longer than 1024 KiB -> \
             give the list alone: a cluster has 3 to 7 members"
        )
    );
}

#[test]
fn a_server_that_never_answers_is_unreachable_in_time() {
    let server = serve(None);
    let source = open(&format!("http://{server}/slow"), &plain()).unwrap();
    let pace = Pace { answer_within: Duration::from_millis(300), ask_every: Duration::from_millis(50) };
    let result = block_on(gather_at(source.as_ref(), None, Duration::ZERO, pace, &mut |_| {}));
    assert_eq!(
        refusal(result),
        format!(
            "Q0102 no list from `http://{server}/slow`: it did not answer within 300ms -> \
             see that it is up and that this host may reach it, then try again"
        )
    );
}

#[test]
fn a_token_from_a_file_opens_the_door() {
    let server = serve(None);
    let dir = tempfile::tempdir().unwrap();
    let file = super::consul::token_file(&dir.path().join("token"), &format!("{TOKEN}\n"), "600");
    let options = SourceOptions { token_file: Some(file.clone()), ..plain() };
    assert_eq!(shown(&ask(&format!("http://{server}/private"), &options).unwrap()), "n1=https://10.0.0.1:2380");
    super::consul::token_file(&file, "two\nlines\n", "600");
    assert_eq!(
        refusal(ask(&format!("http://{server}/private"), &options)),
        format!(
            "Q0101 cannot use the token in `{}`: it is not one line of visible characters -> \
             put the token alone into the file",
            file.display()
        )
    );
    let missing = SourceOptions { token_file: Some(dir.path().join("none")), ..plain() };
    assert!(refusal(ask(&format!("http://{server}/private"), &missing)).starts_with("Q0002 cannot read token file "));
}

#[test]
fn a_token_does_not_follow_a_redirect_to_another_host() {
    let (server, other) = (serve(None), serve(None));
    let dir = tempfile::tempdir().unwrap();
    let file = super::consul::token_file(&dir.path().join("token"), TOKEN, "600");
    let options = SourceOptions { token_file: Some(file), ..plain() };
    let refused = refusal(ask(&format!("http://{server}/away/{}", other.port()), &options));
    assert!(refused.contains("it answered `401 Unauthorized`"), "{refused}");
    assert_eq!(ask(&format!("http://{server}/away/{}", server.port()), &options).unwrap().members.len(), 1);
}

#[test]
fn instances_that_consul_hides_from_us_are_not_taken_for_absent() {
    let server = serve(None);
    let refused = refusal(ask(&format!("consul:http://{server}/hidden"), &plain()));
    assert_eq!(
        refused,
        format!(
            "Q0102 no list from `consul:http://{server}/hidden`: Consul hides instances that our token may not see -> \
             give a token with `service:read` and `node:read` with `--source-token-file`"
        )
    );
}

#[test]
fn mutual_tls_proves_both_sides() {
    let pki = Pki::new();
    let server = serve(Some(pki.server()));
    let uri = format!("https://{server}/list");
    assert_eq!(shown(&ask(&uri, &pki.options()).unwrap()), "n1=https://10.0.0.1:2380");

    let stranger = Pki::new();
    let hint = "name who signed the server's certificate with `--source-cacert`, and ours with `--source-cert` and \
                `--source-key`";
    let refused = |options: &SourceOptions| {
        let words = refusal(ask(&uri, options));
        assert!(words.starts_with(&format!("Q0102 no list from `{uri}`: TLS failed <- ")), "{words}");
        assert!(words.ends_with(hint), "{words}");
    };
    refused(&SourceOptions { cacert: Some(stranger.path("ca.pem")), ..pki.options() });
    refused(&SourceOptions { cacert: None, ..pki.options() });
    refused(&SourceOptions { cert: None, key: None, ..pki.options() });
    refused(&SourceOptions {
        cert: Some(stranger.path("client.pem")),
        key: Some(stranger.path("client.key")),
        ..pki.options()
    });
}

#[test]
fn a_redirect_never_leads_from_tls_to_clear_text() {
    let pki = Pki::new();
    let server = serve(Some(pki.server()));
    let refused = refusal(ask(&format!("https://{server}/downgrade"), &pki.options()));
    assert!(refused.starts_with(&format!("Q0102 no list from `https://{server}/downgrade`: ")), "{refused}");
}

#[test]
fn certificate_files_that_do_not_fit_are_refused_before_anyone_is_asked() {
    let pki = Pki::new();
    let refused = |options: &SourceOptions| refusal(ask("https://127.0.0.1:1/list", options));
    assert_eq!(
        refused(&SourceOptions { key: None, ..pki.options() }),
        "Q0003 `--source-cert` needs `--source-key` -> give the certificate and its key, or neither"
    );
    assert_eq!(
        refused(&SourceOptions { cert: None, ..pki.options() }),
        "Q0003 `--source-key` needs `--source-cert` -> give the certificate and its key, or neither"
    );
    pki.write("junk", "junk");
    assert_eq!(
        refused(&SourceOptions { cacert: Some(pki.path("junk")), ..pki.options() }),
        "Q0101 cannot use the file of `--source-cacert` <- it holds no certificate -> give PEM files"
    );
    assert!(
        refused(&SourceOptions { cert: Some(pki.path("junk")), ..pki.options() })
            .starts_with("Q0101 cannot use the file of `--source-cert` <- ")
    );
    assert!(
        refused(&SourceOptions { cacert: Some(Path::new("/nowhere").to_owned()), ..pki.options() })
            .starts_with("Q0002 cannot read CA certificate file `/nowhere` <- ")
    );
    let open_key = SourceOptions { ..pki.options() };
    quorate_testkit::run(std::process::Command::new("chmod").arg("604").arg(pki.path("client.key")));
    let warnings = open("https://127.0.0.1:1/list", &open_key).unwrap().warnings();
    assert!(warnings[0].text.starts_with("client key file "), "{warnings:?}");
}
