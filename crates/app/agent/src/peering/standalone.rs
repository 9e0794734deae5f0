//! Makes a cluster of one: its file, its authorities, its certificates, and the role that says so, which is written last.
//!
//! **Invariant:** what is there is used again; a run that was killed is finished by the next one, and a node that is part of
//! something else is left as it is.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use quorate_etcd::aside::{ensure_file, ensure_set_aside};
use quorate_etcd_formats::hex::hex;
use quorate_faults::{Code, Fault};
use quorate_host::durable::RealDisk;
use quorate_host::state::StateDir;
use quorate_pki::{
    Authorities, Keys, LEAF_DAYS, NodeNames, Policy, ensure_authorities, ensure_installed, ensure_requests, issue,
    record_issued,
};
use quorate_plan::peering::{
    Imported, LocalState, Mode, Newcomer, Role, StandaloneFile, read_glusterd, standalone_text,
};
use quorate_plan::spec::{duration_text, for_member};

use super::facts::own_address;
use super::place::{Place, checked, find, hostname};
use crate::cluster_file;
use crate::turn::{now_ms, stamp};

/// Of the files of GlusterD 2; longer ones are not read.
const GLUSTERD_BYTES_MAX: u64 = 1 << 20;

/// How to make it.
#[derive(Debug, Clone)]
pub struct StandaloneSettings {
    /// Where state is kept.
    pub state_dir: PathBuf,
    /// The node's name; by default the machine's.
    pub name: Option<String>,
    /// Where others reach it: an IP address or a host name; by default the one towards the default route.
    pub address: Option<String>,
    /// Where the data lies.
    pub data_dir: PathBuf,
    /// The etcd program, if not the one on the PATH.
    pub etcd_binary: Option<PathBuf>,
    /// How long a newcomer may take.
    pub join_timeout: Option<std::time::Duration>,
    /// How etcd is held, if not as usual: `strict`, `basic` or `off`.
    pub box_level: Option<String>,
    /// Where GlusterD 2 kept its files.
    pub glusterd_dir: PathBuf,
}

/// Makes a cluster of one, or finds the one that was made. Returns where its file is, and what an operator should know.
pub fn ensure_standalone(settings: &StandaloneSettings) -> Result<(Place, Vec<String>), Fault> {
    let known = find(&settings.state_dir, settings.name.as_deref())?;
    let mut notes = Vec::new();
    if let Some((place, state)) = known {
        match state.role {
            Role::Standalone | Role::Server => return Ok((place, state.notes)),
            Role::Detached => notes.push(set_aside(&place, &settings.data_dir)?),
            Role::Client | Role::External => return Err(elsewhere(&place, &state)),
        }
    }
    let name = match &settings.name {
        Some(name) => checked(name)?.to_owned(),
        None => hostname()?,
    };
    let place = Place { state_dir: settings.state_dir.clone(), name };
    let imported = glusterd(&settings.glusterd_dir)?;
    notes.extend(imported.notes.clone());
    if let Mode::Server { .. } | Mode::Client { .. } = imported.mode {
        return Err(was_elsewhere(&settings.glusterd_dir, &imported.mode));
    }
    let state = StateDir::open(&place.dir())?;
    let _lock = state.lock()?;
    if place.dir().join(quorate_etcd::ledger::FILE_NAME).exists() && !place.file().exists() {
        let what = format!("`{}` is the state of a member that a cluster file declares", place.dir().display());
        return Err(
            Fault::new(Code::NodeElsewhere, what).hint("run it with `--config FILE`, or give this node another name")
        );
    }
    if !place.file().exists() {
        let text = standalone_text(&file(settings, &place)?);
        ensure_file(&RealDisk, &place.file(), text.as_bytes())?;
    }
    let (spec, _) = cluster_file::read(&place.file())?;
    let member = spec.local(Some(&place.name), "the cluster file")?;
    ensure_certificates(&place, &spec, member)?;
    let address = spec.agent_url_of(member);
    let address = quorate_plan::certificates::host_of(&address).unwrap_or_default().to_owned();
    let (role, cluster) = (Role::Standalone, spec.token.clone());
    let local =
        LocalState { role, name: place.name.clone(), cluster, address, since_ms: now_ms(), notes: notes.clone() };
    place.ensure_local(&local)?;
    Ok((place, notes))
}

fn file(settings: &StandaloneSettings, place: &Place) -> Result<StandaloneFile, Fault> {
    let address = match &settings.address {
        Some(address) => address.clone(),
        None => own_address(None).unwrap_or(IpAddr::from([127, 0, 0, 1])).to_string(),
    };
    let mut random = [0_u8; 6];
    super::pinned::fill_random(&mut random)?;
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string();
    Ok(StandaloneFile {
        token: format!("q-{}", hex(&random)),
        member: Newcomer { name: place.name.clone(), address, data_dir: absolute(&settings.data_dir) },
        state_dir: absolute(&settings.state_dir),
        etcd_binary: settings.etcd_binary.as_deref().map(absolute),
        join_timeout: settings.join_timeout.map(duration_text),
        box_level: settings.box_level.clone(),
    })
}

/// The authorities, and the certificates of this node. Their issuing keys are not encrypted: the agent signs for those who are
/// invited, and nobody is there to type a passphrase.
fn ensure_certificates(
    place: &Place,
    spec: &quorate_plan::spec::Spec,
    member: &quorate_plan::spec::Member,
) -> Result<(), Fault> {
    let dir =
        spec.tls_files().and_then(|tls| tls.dir.as_deref()).map(|dir| PathBuf::from(for_member(dir, &place.name)));
    let Some(dir) = dir else { return Ok(()) };
    ensure_signed(&dir, &spec.token, &NodeNames::of(spec, member)?)
}

/// Authorities of its own in a folder, and the certificates of one node by them.
pub(super) fn ensure_signed(dir: &Path, token: &str, names: &NodeNames) -> Result<(), Fault> {
    let now = Timestamp::now();
    let requests = ensure_requests(dir, names, Keys::Keep)?.bundle;
    ensure_authorities(dir, token, None, now)?;
    let policy = Policy { days: LEAF_DAYS, allowed: Some(names) };
    let signed = issue(&Authorities::open(dir, None)?, &requests, &policy, now)?;
    record_issued(dir, &signed, now)?;
    ensure_installed(dir, names, &signed, now).map(|_| ())
}

/// What is left of an earlier life of this node makes room; nothing of it is deleted.
pub(super) fn set_aside(place: &Place, data_dir: &Path) -> Result<String, Fault> {
    let state = StateDir::open(&place.dir())?;
    let lock = state.lock()?;
    let stamp = format!("detached-{}", stamp());
    let mut renamed = Vec::new();
    for path in [data_dir, &place.dir()] {
        if let Some(new) = ensure_set_aside(&RealDisk, path, &stamp)? {
            renamed.push(format!("`{}` is now `{}`", path.display(), new.display()));
        }
    }
    drop(lock);
    Ok(format!("this node was detached, and begins anew: {}", renamed.join(", ")))
}

fn elsewhere(place: &Place, state: &LocalState) -> Fault {
    let what = format!("`{}` is {} of cluster `{}`", place.name, state.role, state.cluster);
    Fault::new(Code::NodeElsewhere, what).hint("a node is in one cluster alone; detach it there first")
}

/// What GlusterD 2 left; neither file is the usual case.
fn glusterd(dir: &Path) -> Result<Imported, Fault> {
    use std::io::Read;
    let read = |name: &str| -> Result<Option<Vec<u8>>, Fault> {
        let path = dir.join(name);
        let fail = |error| Fault::io(format!("cannot read `{}`", path.display()), error);
        let mut bytes = Vec::new();
        match std::fs::File::open(&path) {
            Ok(file) => {
                file.take(GLUSTERD_BYTES_MAX).read_to_end(&mut bytes).map_err(fail)?;
                Ok(Some(bytes))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(fail(error)),
        }
    };
    let (environment, proxy) = (read("etcdenv.conf")?, read("proxy")?);
    read_glusterd(environment.as_deref(), proxy.as_deref()).map_err(|why| {
        Fault::new(
            Code::GlusterdLeft,
            format!("GlusterD 2 left files in `{}` that cannot be understood", dir.display()),
        )
        .hint("move them away, or correct them; see `quorate explain Q1222`")
        .caused_by(why)
    })
}

/// An empty cluster behind the addresses of an old one would be taken for it.
fn was_elsewhere(dir: &Path, mode: &Mode) -> Fault {
    let what = match mode {
        Mode::Server { name, members } => {
            format!("GlusterD 2 ran this node as member `{}` of {}", name.escape_debug(), members.len())
        }
        Mode::Client { endpoints } => format!("GlusterD 2 ran this node as a proxy of {}", endpoints.join(", ")),
        Mode::Standalone => "GlusterD 2 ran this node alone".to_owned(),
    };
    Fault::new(Code::GlusterdLeft, format!("{what}, by the files in `{}`", dir.display()))
        .hint("bring its data with `quorate cluster adopt`, or move the files away to begin anew")
}
