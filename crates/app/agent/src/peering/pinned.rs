//! TLS with one who was never met: its authority is known by the hash of its certificate, which the join code brings along.
//!
//! **Invariant:** a connection is used only if the pinned authority is shown, signed the certificate of the very node that
//! invites, and that one holds the key to it. Without a pin, nothing but proofs of a short code is sent (`short_code.rs`).

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate_faults::{Code, Fault};
use quorate_plan::certificates::agent_hostname;
use quorate_plan::peering::JoinCode;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

use super::messages::Turn;

/// How long a connection may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(15);
/// How long nobody may listen there.
const REFUSED_LIMIT: Duration = Duration::from_secs(8);
/// How long an answer may take: signing opens keys, and the store is asked.
const ANSWER_LIMIT: Duration = Duration::from_secs(40);
/// Answers hold a cluster file and a few certificates.
const ANSWER_MAX: u64 = 512 << 10;

/// Fills a secret.
pub(crate) fn fill_random(bytes: &mut [u8]) -> Result<(), Fault> {
    let filled = default_provider().secure_random.fill(bytes);
    filled.map_err(|_| Fault::new(Code::Internal, "there are no random numbers"))
}

/// What the certificates of the other side have to be.
#[derive(Debug, Clone, Copy)]
enum Trust {
    /// Those of the authority with this hash.
    Pinned([u8; 32]),
    /// Any: which they were is part of the proof that follows.
    Unproven,
}

/// The certificates of a connection, by their SHA-256.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ShownChain {
    pub(super) leaf: [u8; 32],
    pub(super) authority: [u8; 32],
}

impl ShownChain {
    /// The first one, and the last one.
    pub(super) fn of(chain: &[&[u8]]) -> Option<ShownChain> {
        let hash = |der: &&[u8]| Sha256::digest(der).into();
        Some(ShownChain { leaf: hash(chain.first()?), authority: hash(chain.last()?) })
    }
}

impl Trust {
    fn verifier(pin: [u8; 32], shown: &[CertificateDer<'_>]) -> Result<Arc<WebPkiServerVerifier>, Error> {
        let pinned = shown.iter().find(|one| Sha256::digest(one.as_ref()).as_slice() == pin);
        let pinned = pinned.ok_or(Error::InvalidCertificate(CertificateError::UnknownIssuer))?;
        let mut roots = RootCertStore::empty();
        roots.add(pinned.clone().into_owned())?;
        let built = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::new(default_provider())).build();
        built.map_err(|error| Error::General(error.to_string()))
    }
}

impl ServerCertVerifier for Trust {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match self {
            Trust::Pinned(pin) => {
                Trust::verifier(*pin, intermediates)?.verify_server_cert(end_entity, intermediates, name, ocsp, now)
            }
            Trust::Unproven => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = default_provider().signature_verification_algorithms;
        tokio_rustls::rustls::crypto::verify_tls12_signature(message, cert, dss, &algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = default_provider().signature_verification_algorithms;
        tokio_rustls::rustls::crypto::verify_tls13_signature(message, cert, dss, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }
}

/// Where the inviter is.
pub(super) async fn resolve(address: &str) -> Result<std::net::SocketAddr, Fault> {
    let found = tokio::net::lookup_host(address).await;
    let found = found.map_err(|error| silent(address, error.into()))?.next();
    found.ok_or_else(|| silent(address, "the name has no address".into()))
}

/// Who is asked.
struct Door<'a> {
    address: &'a str,
    /// The name in its certificate.
    name: String,
    trust: Trust,
}

/// Puts one request to whoever invites. `body` is made when there is a connection: it may tell what time it is.
pub(super) async fn ask<B: Serialize, T: DeserializeOwned>(
    code: &JoinCode,
    path: &str,
    body: impl Fn() -> B + Sync,
) -> Result<T, Fault> {
    let name = agent_hostname(&code.inviter, &code.cluster).to_ascii_lowercase();
    let door = Door { address: &code.address, name, trust: Trust::Pinned(code.pin) };
    put(&door, path, |_| body()).await.map(|(answer, _)| answer)
}

/// The same to whoever is there: `body` is made of the certificates that it showed, and they are returned with its answer.
pub(super) async fn ask_unproven<B: Serialize, T: DeserializeOwned>(
    address: &str,
    path: &str,
    body: impl Fn(&ShownChain) -> B + Sync,
) -> Result<(T, ShownChain), Fault> {
    // A listener with one certificate shows it for any name.
    let door = Door { address, name: "join.invalid".to_owned(), trust: Trust::Unproven };
    put(&door, path, body).await
}

async fn put<B: Serialize, T: DeserializeOwned>(
    door: &Door<'_>,
    path: &str,
    body: impl Fn(&ShownChain) -> B + Sync,
) -> Result<(T, ShownChain), Fault> {
    let body = |shown: &ShownChain| {
        let unwritten = |error| Fault::new(Code::Internal, "cannot write a request").caused_by(error);
        serde_json::to_vec(&body(shown)).map_err(unwritten)
    };
    let (begun, at) = (Instant::now(), door.address);
    let (answer, chain) = loop {
        let exchanged = tokio::time::timeout(ANSWER_LIMIT, exchange(door, path, &body)).await;
        let answer = exchanged.map_err(|_| silent(at, "it does not answer in time".into()))??;
        // An agent that begins anew hangs up before its first byte. Asked twice is asked once.
        if let Some(answer) = answer.filter(|(answer, _)| !answer.is_empty()) {
            break answer;
        }
        if begun.elapsed() >= REFUSED_LIMIT {
            return Err(silent(at, "it hangs up without a word".into()));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let (head, content) = end.and_then(|end| answer.split_at_checked(end + 4)).unwrap_or((&answer, &[]));
    if head.starts_with(b"HTTP/1.1 200 ") {
        let answer = serde_json::from_slice(content).map_err(|error| silent(at, error.into()))?;
        return Ok((answer, chain));
    }
    let Ok(Turn { code: said, why, reasons }) = serde_json::from_slice::<Turn>(content) else {
        let line = String::from_utf8_lossy(head).lines().next().unwrap_or_default().to_owned();
        return Err(silent(at, format!("it said `{}`", shown(&line)).into()));
    };
    let said = Code::parse(&said).unwrap_or(Code::JoinTurnedAway);
    let reasons: Vec<String> = reasons.iter().map(|reason| shown(reason)).collect();
    Err(refusal(said, &shown(&why), &reasons))
}

/// All reasons, one on each line.
pub(super) fn refusal(code: Code, why: &str, reasons: &[String]) -> Fault {
    let list: String = reasons.iter().map(|reason| format!("\n  - {reason}")).collect();
    Fault::new(code, format!("{why}{list}")).hint(format!("nothing was changed; see `quorate explain {code}`"))
}

/// Connects; an agent that begins anew is gone for a moment.
async fn connect(at: std::net::SocketAddr) -> std::io::Result<TcpStream> {
    let begun = Instant::now();
    loop {
        match TcpStream::connect(at).await {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused && begun.elapsed() < REFUSED_LIMIT => {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            connected => return connected,
        }
    }
}

/// One request and its answer, with the certificates that were shown; `None`: the other side hung up at once.
async fn exchange(
    door: &Door<'_>,
    path: &str,
    body: &(dyn Fn(&ShownChain) -> Result<Vec<u8>, Fault> + Sync),
) -> Result<Option<(Vec<u8>, ShownChain)>, Fault> {
    let Door { address, name, trust } = door;
    let broke = |error: std::io::Error| silent(address, error.into());
    let at = resolve(address).await?;
    let connected = tokio::time::timeout(CONNECT_LIMIT, connect(at)).await;
    let stream = connected.map_err(|_| silent(address, "it cannot be reached in time".into()))?.map_err(broke)?;
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()));
    let config = config.with_safe_default_protocol_versions().map_err(|error| silent(address, error.into()))?;
    let config = config.dangerous().with_custom_certificate_verifier(Arc::new(*trust)).with_no_client_auth();
    let server = ServerName::try_from(name.clone()).map_err(|error| silent(address, error.into()))?;
    let secured = TlsConnector::from(Arc::new(config)).connect(server, stream).await;
    let secured = match secured {
        Err(error) if hung_up(&error) => return Ok(None),
        secured => secured,
    };
    let mut wire = secured.map_err(|error| {
        Fault::new(Code::DoorSilent, format!("`{address}` is not the node that the code names"))
            .hint("nothing was sent; ask for another code, and see that nobody stands between the two")
            .caused_by(error)
    })?;
    let shown = wire.get_ref().1.peer_certificates().unwrap_or_default().iter().map(|one| one.as_ref());
    let shown = ShownChain::of(&shown.collect::<Vec<&[u8]>>());
    let shown = shown.ok_or_else(|| silent(address, "it shows no certificate".into()))?;
    let body = body(&shown)?;
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    let mut answer = Vec::new();
    let exchanged = async {
        wire.write_all(head.as_bytes()).await?;
        wire.write_all(&body).await?;
        wire.flush().await?;
        (&mut wire).take(ANSWER_MAX).read_to_end(&mut answer).await
    };
    match exchanged.await {
        Ok(_) => Ok(Some((answer, shown))),
        // Closed without a goodbye; whether the answer is whole is seen by reading it.
        Err(error) if hung_up(&error) => Ok(Some((answer, shown))),
        Err(error) => Err(broke(error)),
    }
}

/// Whether the other side went away. A stranger who shows another certificate does not: that is told as such.
fn hung_up(error: &std::io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}

fn silent(address: &str, cause: Box<dyn std::error::Error + Send + Sync>) -> Fault {
    Fault::new(Code::DoorSilent, format!("no answer from `{}`, which invites", shown(address)))
        .hint("see that its agent runs, that the code has not ended, and that the port can be reached from here")
        .caused_by(cause)
}

/// What others say may be long, and must not break our lines.
fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(300).collect()
}
