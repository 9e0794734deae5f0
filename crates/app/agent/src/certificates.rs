//! Keeps the certificates of this node fresh, signs for other nodes where the issuing keys are here, and says before a start what
//! would fail.
//!
//! ```text
//!   observe_node ──► plan_renewal (pure) ──► requests with the keys here ──► signed, here or by a peer ──► installed
//! ```
//!
//! **Invariant:** renewing needs neither quorum nor a restart: etcd and our own listeners take the new files at the next
//! handshake. A node gets certificates for itself alone.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use quorate_faults::{Code, Fault, Finding, Severity};
use quorate_pki::{
    Authorities, Authority, CertStatus, CsrBundle, Keys, LEAF_DAYS, NodeNames, Passphrase, Policy, PreflightInput,
    Role, SignedBundle, ensure_begun, ensure_installed, ensure_requests, ensure_swaps_finished, has_issuing_keys,
    needs_passphrase, observe_list, observe_node, preflight, record_issued, with_trust,
};
use quorate_plan::certificates::{Life, Renewal, plan_renewal};
use quorate_plan::etcd_config::Minor;
use quorate_plan::spec::{Member, Spec, for_member};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::peers::Peers;
use crate::trust::fetch_trust;
use crate::turn::{Node, Notice, in_words};

/// The warnings that are told and taken back here.
pub(crate) const WARNINGS: &[Code] = &[
    Code::CertificateMissing,
    Code::CertificateKeyOther,
    Code::CertificateExpired,
    Code::CertificateUntrusted,
    Code::CertificateAddress,
    Code::CertificateUsage,
    Code::KeyExposed,
    Code::CertificateEnding,
    Code::RenewalFailed,
    Code::RevocationsMissing,
];

/// Files are looked at this often, so that what others bring is shown soon.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// Somebody did not answer who may have newer lists of revoked certificates, or one is missing here.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// A renewal that failed is tried again after this long at the latest: what hindered it may be over.
const RETRY_MAX: Duration = Duration::from_secs(600);
/// Half of the time after the first failure.
const RETRY_FIRST: Duration = Duration::from_secs(1);

/// Where another agent signs.
pub(crate) const PATH: &str = "/v1/certificates";

/// What a node wants signed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CertificatesRequest {
    /// The text of `quorate ca csr`.
    pub requests: String,
    /// For how many days; fewer than the usual are heeded.
    pub days: u32,
}

/// What was signed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CertificatesAnswer {
    /// The text that `quorate ca install` takes.
    pub certificates: String,
}

/// What keeping needs.
pub(crate) struct Keep {
    pub(crate) node: Arc<Node>,
    pub(crate) peers: Arc<Peers>,
    /// Which generation this node is of, for other agents; none: it is no member, and of none.
    pub(crate) generation: Box<dyn Fn() -> Option<u64> + Send + Sync>,
    pub(crate) registry: Arc<RwLock<Registry>>,
    /// Sets the warnings about [`WARNINGS`].
    pub(crate) tell: Box<dyn Fn(Vec<Notice>) + Send + Sync>,
}

/// The folder of `quorate ca` on this node.
pub fn folder(node: &Node) -> Result<PathBuf, Fault> {
    let dir = node.spec.tls_files().and_then(|tls| tls.dir.as_deref());
    dir.map(|dir| PathBuf::from(for_member(dir, node.name()))).ok_or_else(|| {
        Fault::new(Code::NoCertificateDir, format!("`{}` names no folder for certificates", node.file.display()))
            .hint("write `tls: {dir: /etc/quorate/pki}`")
    })
}

/// Whether this node can sign for others without an operator: the issuing keys are here, and what opens them.
pub(crate) fn can_issue(dir: &Path) -> bool {
    let opened = || needs_passphrase(dir).is_ok_and(|needed| !needed || Passphrase::file_in_environment().is_some());
    has_issuing_keys(dir) && opened()
}

/// Looks at the certificates before etcd is started: a fault where it would reach nobody, else what is worth knowing.
pub fn before_start(node: &Node, etcd: Option<Minor>) -> Result<Vec<Finding>, Fault> {
    if let Ok(dir) = folder(node) {
        ensure_swaps_finished(&dir)?;
        use_previous(&dir)?;
        // Without a list that was here, etcd would let in what was called back.
        Authority::ALL
            .into_iter()
            .try_for_each(|authority| observe_list(&dir.join(authority.cert_file())).map(drop))?;
    }
    let input = PreflightInput { spec: &node.spec, member: &node.member, etcd };
    let findings = preflight(&input, Timestamp::now());
    match findings.iter().find(|finding| finding.severity == Severity::Error) {
        None => Ok(findings),
        Some(first) => {
            let errors = findings.iter().filter(|finding| finding.severity == Severity::Error).count();
            let more = if errors > 1 { format!(" (and {} more)", errors - 1) } else { String::new() };
            let attempt = format!("`{}`: {}{more}", first.place, first.what);
            Err(Fault::new(first.code, attempt).hint(first.remedy.clone()))
        }
    }
}

/// Puts the certificates from before back where those that are there do not hold yet. Reads files: not for async code.
fn use_previous(dir: &Path) -> Result<(), Fault> {
    let back = ensure_begun(dir, Timestamp::now())?;
    if !back.is_empty() {
        let words: Vec<&str> = back.iter().map(|role| role.word()).collect();
        warn!(
            "certificates do not hold yet, because they were signed by a clock that was ahead: those from before are used: {}",
            words.join(", ")
        );
    }
    Ok(())
}

/// Signs for another node, whose name comes from its own certificate. Opening the keys takes a while: not for async code.
pub fn answer_request(
    node: &Node,
    asking: Option<&str>,
    request: &CertificatesRequest,
) -> Result<CertificatesAnswer, Fault> {
    answer_request_of(node, &[], asking, request)
}

/// The same, where `clients` belong to the cluster as well, and are in no file.
pub(crate) fn answer_request_of(
    node: &Node,
    clients: &[Member],
    asking: Option<&str>,
    request: &CertificatesRequest,
) -> Result<CertificatesAnswer, Fault> {
    let bundle = read_requests(&request.requests)?;
    let known = |name: &str| node.spec.member(name).or_else(|| clients.iter().find(|client| client.name == name));
    let member = asking.filter(|name| *name == bundle.name).and_then(known);
    let Some(member) = member else {
        let (who, whom) = (asking.unwrap_or("nobody we know"), bundle.name.escape_debug());
        warn!(code = %Code::RenewalForeign, asking = who, "certificates of `{whom}` were asked for by another");
        return Err(Fault::new(Code::RenewalForeign, format!("did not sign for `{whom}`: `{who}` asks"))
            .hint("a node asks for itself alone, and must be in the cluster file here"));
    };
    let allowed = NodeNames::of(&node.spec, member)?;
    let days = request.days.clamp(1, LEAF_DAYS);
    let signed = sign(&folder(node)?, &bundle, &Policy { days, allowed: Some(&allowed) })?;
    info!(node = member.name, days, "signed certificates for another node");
    Ok(CertificatesAnswer { certificates: signed.encode() })
}

/// Signs for a member that is about to join by this file.
pub(crate) fn sign_for(dir: &Path, spec: &Spec, member: &Member, requests: &str) -> Result<SignedBundle, Fault> {
    let (bundle, allowed) = (read_requests(requests)?, NodeNames::of(spec, member)?);
    sign(dir, &bundle, &Policy { days: LEAF_DAYS, allowed: Some(&allowed) })
}

/// Signs with the issuing keys in a folder, and puts on record what was signed.
pub(crate) fn sign(dir: &Path, bundle: &CsrBundle, policy: &Policy<'_>) -> Result<SignedBundle, Fault> {
    if !has_issuing_keys(dir) {
        return Err(Fault::new(Code::CaMissing, format!("there are no issuing keys in `{}`", dir.display()))
            .hint("ask an agent that has them"));
    }
    let passphrase = match needs_passphrase(dir)? {
        false => None,
        true => Passphrase::file_in_environment().map(|file| Passphrase::from_file(&file)).transpose()?,
    };
    let now = Timestamp::now();
    let authorities = Authorities::open(dir, passphrase.as_ref())?;
    let signed = with_trust(dir, &authorities, quorate_pki::issue(&authorities, bundle, policy, now)?)?;
    // What is on record can be revoked by name.
    if let Err(fault) = record_issued(dir, &signed, now) {
        warn!(code = %fault.code(), "what was signed is not on record: {}", in_words(&fault));
    }
    Ok(signed)
}

fn read_requests(text: &str) -> Result<CsrBundle, Fault> {
    CsrBundle::decode(text.as_bytes()).map_err(|error| {
        Fault::new(Code::BundleUnreadable, "cannot read the requests")
            .hint("see `quorate explain Q1004`")
            .caused_by(error)
    })
}

/// Renews, measures and warns until told to stop.
pub(crate) async fn keep(keep: Keep, stop: CancellationToken) {
    if keep.node.spec.is_plaintext() {
        return;
    }
    let measures = Measures::new(&keep.registry);
    let dir = folder(&keep.node).ok();
    if let Some(Err(fault)) = dir.as_deref().map(ensure_swaps_finished) {
        warn!(code = %fault.code(), "a change of keys could not be finished: {}", in_words(&fault));
    }
    let jitter = jitter(keep.node.name());
    let mut failed: Option<Fault> = None;
    let (mut next_try, mut retry) = (Instant::now(), RETRY_FIRST);
    loop {
        let all_asked = match &dir {
            Some(dir) => fetch_trust(&keep.node, &keep.peers, dir).await,
            None => true,
        };
        let now = Timestamp::now();
        let (node, at) = (Arc::clone(&keep.node), dir.clone());
        let looked = tokio::task::spawn_blocking(move || {
            if let Some(Err(fault)) = at.as_deref().map(use_previous) {
                warn!(code = %fault.code(), "cannot use the certificates from before: {}", in_words(&fault));
            }
            observe_node(&node.spec, &node.member, now)
        });
        let looked = looked.await;
        let seen = looked.unwrap_or_default();
        measures.see(&seen);
        let plan = match &dir {
            Some(_) => plan_renewal(&lives(&seen), now, jitter),
            // Whoever made these renews them.
            None => Renewal::Look { again: LOOK_EVERY },
        };
        if matches!(plan, Renewal::Look { .. }) {
            failed = None;
        }
        let mut notices = notices(&seen);
        notices.extend(failed.as_ref().map(not_renewed));
        let lacking = dir.as_deref().and_then(lacking);
        let look_again = if all_asked && lacking.is_none() { LOOK_EVERY } else { ASK_AGAIN };
        notices.extend(lacking);
        (keep.tell)(notices);
        let pause = match (plan, &dir) {
            (Renewal::Renew { again }, Some(dir)) if Instant::now() >= next_try => {
                failed = renew(&keep, dir, &lives(&seen)).await.err();
                measures.renewed(failed.is_none());
                // Soon at first: whoever signs may start a moment later than this node.
                retry = if failed.is_some() { (retry * 2).min(RETRY_MAX) } else { RETRY_FIRST };
                next_try = Instant::now() + if failed.is_some() { again.min(retry) } else { again };
                // What it led to is told at once.
                Duration::from_secs(1)
            }
            (Renewal::Renew { .. }, _) => next_try.saturating_duration_since(Instant::now()),
            (Renewal::Look { again }, _) => again,
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause.min(look_again)) => {}
        }
    }
}

/// A list of revoked certificates that was here, and is not.
fn lacking(dir: &Path) -> Option<Notice> {
    let lists = Authority::ALL.map(|authority| observe_list(&dir.join(authority.cert_file())));
    lists.into_iter().find_map(Result::err).map(|fault| Notice::of(&fault))
}

/// Has new certificates made for the keys that are here, and installs them.
async fn renew(keep: &Keep, dir: &Path, lives: &[Option<Life>]) -> Result<(), Fault> {
    let (node, at) = (Arc::clone(&keep.node), dir.to_owned());
    let days = days_of(lives);
    let asked = blocking(move || {
        let names = NodeNames::of(&node.spec, &node.member)?;
        let bundle = ensure_requests(&at, &names, Keys::Keep)?.bundle;
        if !has_issuing_keys(&at) {
            return Ok((names, Err(bundle)));
        }
        let signed = sign(&at, &bundle, &Policy { days, allowed: Some(&names) })?;
        Ok((names, Ok(signed)))
    });
    let (names, signed) = asked.await?;
    let (signed, by) = match signed {
        Ok(signed) => (signed, keep.node.name().to_owned()),
        Err(bundle) => ask_others(keep, &bundle, days).await?,
    };
    let at = dir.to_owned();
    let installed = blocking(move || ensure_installed(&at, &names, &signed, Timestamp::now())).await?;
    let words: Vec<&str> = installed.replaced.iter().map(|role| role.word()).collect();
    info!(signed_by = by, until = %installed.until, "renewed the certificates: {}", words.join(", "));
    Ok(())
}

/// Asks every other agent until one signs.
async fn ask_others(keep: &Keep, bundle: &CsrBundle, days: u32) -> Result<(SignedBundle, String), Fault> {
    let request = CertificatesRequest { requests: bundle.encode(), days };
    let generation = (keep.generation)();
    let mut last = None;
    for peer in keep.peers.others() {
        let answer: Result<CertificatesAnswer, _> = match generation {
            Some(generation) => keep.peers.tell(&peer, PATH, generation, &request).await,
            None => keep.peers.order(&peer, PATH, &request).await,
        };
        match answer {
            Ok(answer) => match SignedBundle::decode(answer.certificates.as_bytes()) {
                Ok(signed) => return Ok((signed, peer)),
                Err(error) => {
                    last = Some(
                        Fault::new(Code::BundleUnreadable, format!("cannot read what `{peer}` signed"))
                            .caused_by(error),
                    );
                }
            },
            Err(error) => last = Some(error.fault(&peer)),
        }
    }
    Err(last.unwrap_or_else(|| {
        Fault::new(Code::CaMissing, "there are no issuing keys here, and no other agents")
            .hint("copy the issuing keys into the folder, or renew by hand")
    }))
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Fault> + Send + 'static) -> Result<T, Fault> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(Fault::new(Code::Internal, "the work on certificates came to a halt").caused_by(error)),
    }
}

/// As long as before, but no longer than usual.
fn days_of(lives: &[Option<Life>]) -> u32 {
    let days = lives.iter().flatten().map(|life| life.until.duration_since(life.from).as_hours() / 24).min();
    u32::try_from(days.unwrap_or(i64::from(LEAF_DAYS))).unwrap_or(1).clamp(1, LEAF_DAYS)
}

fn lives(seen: &[CertStatus]) -> Vec<Option<Life>> {
    let roles: BTreeSet<&str> = Role::ALL.iter().map(|role| role.word()).collect();
    seen.iter().filter(|status| roles.contains(status.which.as_str())).map(CertStatus::life).collect()
}

fn notices(seen: &[CertStatus]) -> Vec<Notice> {
    let problems = seen.iter().flat_map(|status| &status.problems);
    let told = problems.filter(|finding| WARNINGS.contains(&finding.code));
    told.map(|finding| Notice::new(finding.code, finding.what.clone()).way_out(finding.remedy.clone())).collect()
}

fn not_renewed(fault: &Fault) -> Notice {
    let (text, cause) = (in_words(fault), fault.code());
    let way_out = fault.hint_text().unwrap_or("see `quorate explain Q1019`");
    Notice::new(Code::RenewalFailed, format!("the certificates could not be renewed: {text} [{cause}]"))
        .way_out(way_out)
}

/// A number of its own for each node, and the same one after a restart.
fn jitter(name: &str) -> u32 {
    // FNV-1a: spreads short names well enough.
    name.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Which {
    which: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfResult {
    result: &'static str,
}

/// What Prometheus is told.
struct Measures {
    not_after: Family<Which, Gauge>,
    renewals: Family<OfResult, Counter>,
}

impl Measures {
    fn new(registry: &Arc<RwLock<Registry>>) -> Measures {
        let measures = Measures { not_after: Family::default(), renewals: Family::default() };
        let mut registry = registry.write().unwrap_or_else(PoisonError::into_inner);
        registry.register_with_unit(
            "quorate_certificate_not_after",
            "When a certificate ends, in seconds since 1970",
            Unit::Seconds,
            measures.not_after.clone(),
        );
        let renewals = measures.renewals.clone();
        registry.register("quorate_certificate_renewals", "Renewals that were tried, and how they ended", renewals);
        measures
    }

    fn see(&self, seen: &[CertStatus]) {
        for status in seen {
            if let Some(until) = status.not_after {
                self.not_after.get_or_create(&Which { which: status.which.clone() }).set(until.as_second());
            }
        }
    }

    fn renewed(&self, succeeded: bool) {
        let result = if succeeded { "done" } else { "failed" };
        self.renewals.get_or_create(&OfResult { result }).inc();
    }
}
