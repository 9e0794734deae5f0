//! Joins a cluster with a code: the newcomer's side.
//!
//! **Invariant:** nothing of an earlier life is touched before the inviter has agreed; keys never leave this node; the role is
//! written last. Cut off at any point and run again with the same code, it goes on.

use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use quorate_etcd::aside::ensure_file;
use quorate_etcd::ledger::observe_ledger;
use quorate_etcd_formats::hex::hex;
use quorate_faults::{Code, Fault};
use quorate_host::durable::RealDisk;
use quorate_host::state::StateDir;
use quorate_pki::{Authority, Keys, NodeNames, SignedBundle, ensure_installed, ensure_requests};
use quorate_plan::ledger::LedgerSeen;
use quorate_plan::peering::{
    ApprovalSecret, JoinCode, LocalState, Newcomer, Role, Side, fingerprint, objections_to, with_member,
};
use quorate_plan::spec::{Spec, for_member};
use sha2::{Digest, Sha256};

use super::door::{APPROVAL, JOIN};
use super::facts::{Guest, Ports, guest, own_address};
use super::messages::{Approval, JoinAsk, JoinTerms};
use super::pinned::{ask, fill_random, refusal, resolve};
use super::place::{Place, checked, find, hostname};
use super::points::point;
use super::record::Records;
use super::standalone::set_aside;
use super::store::keep_own;
use super::veto;
use crate::cluster_file;
use crate::turn::{Asked, client_of, in_words, now_ms};

/// What tells this attempt from that of another who has the same code, in the node's folder.
const CLAIM: &str = "claim";
/// Between two questions whether this node was approved.
const APPROVAL_EVERY: Duration = Duration::from_secs(1);

/// How to join.
#[derive(Debug, Clone)]
pub struct JoinSettings {
    /// What the inviter printed.
    pub code: JoinCode,
    /// The second secret that goes with the code of a server; without it, the join has to be approved.
    pub secret: Option<ApprovalSecret>,
    /// Where state is kept.
    pub state_dir: PathBuf,
    /// The node's name; by default the one in the code, else the machine's.
    pub name: Option<String>,
    /// Where others reach it; by default the address from which the inviter is reached.
    pub address: Option<String>,
    /// Where the data will lie.
    pub data_dir: PathBuf,
    /// The etcd program, if not the one on the PATH.
    pub etcd_binary: Option<PathBuf>,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joined {
    /// The node's folder.
    pub place: Place,
    /// What it is.
    pub local: LocalState,
    /// What was set aside.
    pub notes: Vec<String>,
    /// Whether all of it had been done before.
    pub already: bool,
}

/// What a node that waits for approval shows of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Awaited {
    /// Its name.
    pub name: String,
    /// The node on which it can be approved.
    pub inviter: String,
    /// What the operator compares there.
    pub fingerprint: String,
}

/// Joins. `waits` is asked each time before this node waits for its approval, and ends the attempt with `false`.
pub async fn join(settings: &JoinSettings, mut waits: impl FnMut(&Awaited) -> bool) -> Result<Joined, Fault> {
    let code = &settings.code;
    if now_ms() >= code.expires_ms {
        return Err(Fault::new(Code::JoinTurnedAway, "the time of this join code is over")
            .hint("ask for another one: `quorate peer invite`"));
    }
    let known = find(&settings.state_dir, settings.name.as_deref())?;
    if let Some((place, local)) = &known
        && local.role == code.role
        && local.cluster == code.cluster
        && (matches!(local.role, Role::External | Role::Client) || has_been_member(place))
        && (local.role == Role::Client || is_declared(place))
    {
        let (place, local) = (place.clone(), local.clone());
        return Ok(Joined { place, local, notes: Vec::new(), already: true });
    }
    let name = match (&settings.name, &known) {
        (Some(name), _) => checked(name)?.to_owned(),
        (None, Some((place, _))) => place.name.clone(),
        (None, None) => match &code.name {
            Some(name) => checked(name)?.to_owned(),
            None => hostname()?,
        },
    };
    let place = Place { state_dir: settings.state_dir.clone(), name };
    if place.dir().is_dir() {
        // An agent at work is not joined over.
        drop(StateDir::open(&place.dir())?.lock()?);
    }
    let attempt = Attempt::prepare(settings, place, known.map(|(_, local)| local)).await?;
    let terms = loop {
        let begun = now_ms();
        let terms: JoinTerms = ask(code, JOIN, || attempt.ask(None)).await?;
        attempt.check(code, &terms, begun).await?;
        if !terms.awaits {
            break terms;
        }
        attempt.keep_claim()?;
        attempt.await_approval(code, &mut waits).await?;
    };
    attempt.carry_out(code, &terms).await
}

/// What is sent, and where things lie.
struct Attempt {
    place: Place,
    before: Option<LocalState>,
    claim: String,
    request: JoinAsk,
    /// The etcd that is to run here.
    asked: Option<Asked>,
}

impl Attempt {
    async fn prepare(settings: &JoinSettings, place: Place, before: Option<LocalState>) -> Result<Attempt, Fault> {
        let code = &settings.code;
        let address = match &settings.address {
            Some(address) => address.clone(),
            None => {
                let own = own_address(Some(resolve(&code.address).await?));
                let unknown = || Fault::new(Code::Usage, "it is not known where others reach this node");
                own.ok_or_else(|| unknown().hint("name its address: `--listen 10.0.0.2`"))?.to_string()
            }
        };
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let (state_dir, data_dir) = (absolute(&settings.state_dir), absolute(&settings.data_dir));
        let declared = cluster_file::declared_path(&data_dir)?;
        let newcomer = Newcomer { name: place.name.clone(), address: address.clone(), data_dir: declared };
        let objection = veto(&place.dir(), "join", &place.name).await;
        let belongs = before.as_ref().filter(|local| match local.role {
            Role::Detached => false,
            // A place that was never taken is none.
            Role::Server => has_been_member(&place),
            // Nothing of it lies here, and its own cluster knows whether it is there.
            Role::External => local.cluster != code.cluster,
            Role::Standalone | Role::Client => true,
        });
        let belongs = belongs.map(|local| local.cluster.clone());
        let belongs = belongs.or_else(|| belongs_by_file(&place, before.as_ref(), &data_dir));
        let (binary, is_member) = (settings.etcd_binary.clone(), code.role == Role::Server);
        let carries = code.role == Role::Client;
        let side = tokio::task::spawn_blocking(move || {
            let asked = is_member.then(|| Asked::find(binary.as_deref())).flatten();
            let mut side = guest(Guest {
                address: &address,
                data_dir: &data_dir,
                state_dir: &state_dir,
                etcd: asked.as_ref().map(|asked| asked.version().to_owned()),
                is_member,
                cluster: belongs,
                veto: objection,
            });
            if carries {
                // Where etcd would listen, its proxy does.
                let mut ports = Ports::look(&address, &[2379]);
                ports.and(Ports::look("127.0.0.1", &[2379]));
                side.taken.extend(ports.taken);
                side.unfit.extend(ports.unfit);
            }
            (side, asked)
        });
        let (side, asked) =
            side.await.map_err(|_| Fault::new(Code::Internal, "looking at this node came to a halt"))?;
        let claim = claim(&place)?;
        let token = hex(&code.token);
        let (role, secret) = (code.role, settings.secret.as_ref().map(ApprovalSecret::encode));
        let request = JoinAsk { token, claim: claim.clone(), role, side, newcomer, requests: None, secret };
        Ok(Attempt { place, before, claim, request, asked })
    }

    fn ask(&self, requests: Option<String>) -> JoinAsk {
        let side = Side { now_ms: now_ms(), ..self.request.side.clone() };
        JoinAsk { requests, side, ..self.request.clone() }
    }

    /// Writes the claim down before this node waits: run again, it is the same node, and its approval holds.
    fn keep_claim(&self) -> Result<(), Fault> {
        let state = StateDir::open(&self.place.dir())?;
        let _lock = state.lock()?;
        ensure_file(&RealDisk, &self.place.dir().join(CLAIM), self.claim.as_bytes())
    }

    /// Waits until an operator has approved this node where it was invited.
    async fn await_approval(&self, code: &JoinCode, waits: &mut impl FnMut(&Awaited) -> bool) -> Result<(), Fault> {
        let Newcomer { name, .. } = &self.request.newcomer;
        let awaited = Awaited {
            name: name.clone(),
            inviter: code.inviter.clone(),
            fingerprint: fingerprint(&code.cluster, code.role, &self.claim, &self.request.newcomer),
        };
        loop {
            if !waits(&awaited) {
                let Awaited { inviter, fingerprint, .. } = awaited;
                let why = format!("`{name}` has neither the second secret of its join code nor an approval");
                return Err(Fault::new(Code::JoinAwaitsApproval, why).hint(format!(
                    "on `{inviter}`: `quorate peer approve {name}` (fingerprint {fingerprint}), then join again with the same code; \
                     or give the secret with `--secret-file`"
                )));
            }
            tokio::time::sleep(APPROVAL_EVERY).await;
            match ask::<_, Approval>(code, APPROVAL, || self.ask(None)).await {
                Ok(Approval { awaits: false }) => return Ok(()),
                Ok(Approval { awaits: true }) => {}
                // Its agent begins anew, or is away for a while.
                Err(fault) if fault.code() == Code::DoorSilent && now_ms() < code.expires_ms => {}
                Err(fault) => return Err(fault),
            }
        }
    }

    /// Judges the other side by the same rules, with what it told, and adds what only this side sees. `begun`: when it was asked.
    async fn check(&self, code: &JoinCode, terms: &JoinTerms, begun: u64) -> Result<(), Fault> {
        let (spec, _) = cluster_file::parse(terms.file.as_bytes(), "the cluster file of the inviter")?;
        if spec.token != code.cluster {
            return Err(refusal(Code::JoinTurnedAway, "the inviter is of another cluster than the code", &[]));
        }
        // Whoever goes on with an earlier attempt is declared already.
        if terms.objections.is_empty() && spec.member(&self.place.name).is_some() {
            return Ok(());
        }
        // It looked at its clock at some moment since it was asked.
        let side = Side { now_ms: terms.side.now_ms.clamp(begun, now_ms().max(begun)), ..self.request.side.clone() };
        let own = objections_to(code.role, &terms.side, &spec, &side, &self.request.newcomer);
        let mut found = terms.objections.clone();
        found.extend(own.into_iter().filter(|one| !terms.objections.contains(one)));
        // A file that was written for one root alone does not fit a node with another.
        let own_state = std::path::absolute(&self.place.state_dir).unwrap_or_else(|_| self.place.state_dir.clone());
        if Path::new(&spec.agent.state_dir) != own_state {
            let (own, theirs) = (own_state.display(), &spec.agent.state_dir);
            found.push(format!("the cluster file keeps the agents' state in `{theirs}`, and this node in `{own}`"));
        }
        if spec.external.is_some()
            && let Err(fault) = self.reach(&spec).await
        {
            found.push(format!("the etcd of others cannot be used from here: {}", in_words(&fault)));
        }
        if found.is_empty() { Ok(()) } else { Err(refusal(Code::JoinObjections, "this node cannot join", &found)) }
    }

    /// Whether the etcd that others run answers this node, with the files that lie here.
    async fn reach(&self, spec: &Spec) -> Result<(), Fault> {
        let client = client_of(spec, &self.place.name, Vec::new())?;
        Records::at(spec, &self.place.name, client).await?.is_busy().await.map(|_| ())
    }

    async fn carry_out(self, code: &JoinCode, terms: &JoinTerms) -> Result<Joined, Fault> {
        let mut notes = Vec::new();
        if self.before.as_ref().is_some_and(|local| local.role == Role::Detached) {
            let data_dir = cluster_file::place(&self.request.newcomer.data_dir)?;
            notes.push(set_aside(&self.place, &data_dir)?);
        }
        let state = StateDir::open(&self.place.dir())?;
        let _lock = state.lock()?;
        ensure_file(&RealDisk, &self.place.dir().join(CLAIM), self.claim.as_bytes())?;
        point("join-claimed");
        let text = with_member(&terms.file, &self.request.newcomer).map_err(|error| error.fault())?;
        let (spec, _) = cluster_file::parse(text.as_bytes(), "the cluster file of the inviter")?;
        let (dir, names) = self.certificates(&spec)?;
        let requests = ensure_requests(&dir, &names, Keys::Keep)?.bundle;
        let granted: JoinTerms = ask(code, JOIN, || self.ask(Some(requests.encode()))).await?;
        point("join-granted");
        let (spec, _) = cluster_file::parse(granted.file.as_bytes(), "the cluster file that was granted")?;
        let client = code.role == Role::Client;
        if spec.token != code.cluster || spec.member(&self.place.name).is_none() != client {
            return Err(refusal(Code::JoinTurnedAway, "what was granted is not what was asked for", &[]));
        }
        let signed = granted.certificates.unwrap_or_default();
        let signed = SignedBundle::decode(signed.as_bytes()).map_err(|error| {
            Fault::new(Code::BundleUnreadable, "cannot read what the inviter signed").caused_by(error)
        })?;
        if Sha256::digest(signed.authority(Authority::Agent)).as_slice() != code.pin {
            return Err(refusal(Code::JoinTurnedAway, "the authority is not the one that the code names", &[]));
        }
        ensure_installed(&dir, &names, &signed, Timestamp::now())?;
        point("join-certified");
        ensure_file(&RealDisk, &self.place.file(), granted.file.as_bytes())?;
        point("join-filed");
        if client {
            // No file declares it, and some day it may be a member.
            keep_own(&self.place.dir(), &self.request.newcomer)?;
        }
        let local = LocalState {
            role: code.role,
            name: self.place.name.clone(),
            cluster: spec.token,
            address: self.request.newcomer.address.clone(),
            since_ms: now_ms(),
            notes: notes.clone(),
        };
        self.place.ensure_local(&local)?;
        if let Some(asked) = &self.asked {
            asked.keep(&self.place.dir());
        }
        Ok(Joined { place: self.place, local, notes, already: false })
    }

    fn certificates(&self, spec: &Spec) -> Result<(PathBuf, NodeNames), Fault> {
        let member = spec.local(Some(&self.place.name), "the cluster file")?;
        let dir = spec.tls_files().and_then(|tls| tls.dir.as_deref());
        let dir = dir.map(|dir| PathBuf::from(for_member(dir, &self.place.name))).ok_or_else(|| {
            Fault::new(Code::NoCertificateDir, "the cluster keeps its certificates in no folder")
                .hint("only clusters that `quorate run --standalone` made can be joined")
        })?;
        Ok((dir, NodeNames::of(spec, member)?))
    }
}

/// A member that somebody's file declares, or data of etcd, is part of something.
fn belongs_by_file(place: &Place, before: Option<&LocalState>, data_dir: &Path) -> Option<String> {
    if before.is_some_and(|local| local.role == Role::Detached) {
        return None;
    }
    let ledger = place.dir().join(quorate_etcd::ledger::FILE_NAME);
    match () {
        () if ledger.exists() && !place.file().exists() => Some(format!("of the ledger `{}`", ledger.display())),
        () if data_dir.join("member").exists() => Some(format!("of the data in `{}`", data_dir.display())),
        () => None,
    }
}

/// Whether the node has ever had a part in etcd.
fn has_been_member(place: &Place) -> bool {
    match observe_ledger(&place.dir().join(quorate_etcd::ledger::FILE_NAME)) {
        LedgerSeen::Absent => false,
        LedgerSeen::There(ledger) => ledger.ids().is_some(),
        LedgerSeen::Unreadable(_) => true,
    }
}

/// Whether the file of this node still declares it.
fn is_declared(place: &Place) -> bool {
    cluster_file::read(&place.file()).is_ok_and(|(spec, _)| spec.member(&place.name).is_some())
}

/// The claim of this node: made once.
fn claim(place: &Place) -> Result<String, Fault> {
    let path = place.dir().join(CLAIM);
    match std::fs::read_to_string(&path) {
        Ok(text) if !text.is_empty() => Ok(text),
        _ => {
            let mut random = [0_u8; 16];
            fill_random(&mut random)?;
            Ok(hex(&random))
        }
    }
}
