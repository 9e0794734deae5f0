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
use quorate_pki::{Keys, LEAF_DAYS, NodeNames, Policy, ensure_authorities, ensure_installed, ensure_requests};
use quorate_plan::peering::{
    ExternalFile, GLUSTERD_TOKEN, GlusterdPlaces, Imported, LocalState, Mode, Newcomer, Role, StandaloneFile,
    glusterd_text, read_glusterd, standalone_text, with_member,
};
use quorate_plan::spec::{duration_text, for_member};

use super::facts::own_address;
use super::place::{Place, checked, find, hostname};
use super::standalone_flags::{Declared, files_exist, flags_agree, flags_fit, no_other_on};
use super::store::keep_own;
use crate::turn::{now_ms, stamp};
use crate::{certificates, cluster_file};

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
    /// Where the data lies; by default `/var/lib/etcd`.
    pub data_dir: Option<PathBuf>,
    /// The etcd program, if not the one on the PATH.
    pub etcd_binary: Option<PathBuf>,
    /// How long a newcomer may take.
    pub join_timeout: Option<std::time::Duration>,
    /// How etcd is held, if not as usual: `strict`, `basic` or `off`.
    pub box_level: Option<String>,
    /// Where GlusterD 2 kept its files.
    pub glusterd_dir: PathBuf,
    /// Where etcd is, if it is somebody else's.
    pub external: Option<ExternalFile>,
    /// What keys begin with there, where the operator says so.
    pub namespace: Option<String>,
}

/// A node that has a file and a role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stands {
    /// Its folder.
    pub place: Place,
    /// What an operator should know.
    pub notes: Vec<String>,
    /// Whether its data is there, and still to be taken over from GlusterD 2.
    pub adopts: bool,
}

/// Makes a cluster of one, or finds the one that was made.
pub fn ensure_standalone(settings: &StandaloneSettings) -> Result<Stands, Fault> {
    let known = find(&settings.state_dir, settings.name.as_deref())?;
    let (mut notes, mut detached) = (Vec::new(), None);
    if known.is_none() {
        no_other_on(settings)?;
    }
    if let Some((place, state)) = known {
        match state.role {
            Role::Standalone | Role::Server | Role::External => {
                flags_agree(settings, &place)?;
                return found(place, state);
            }
            Role::Detached => detached = Some(place),
            Role::Client if state.cluster == GLUSTERD_TOKEN => {
                flags_agree(settings, &place)?;
                return found(place, state);
            }
            Role::Client => return Err(elsewhere(&place, &state)),
        }
    }
    // Who begins anew, or names another etcd, has said what is to be.
    let imported = match (&settings.external, detached.is_none()) {
        (None, true) => glusterd(&settings.glusterd_dir)?,
        (Some(_), _) | (None, false) => Imported { mode: Mode::Standalone, notes: Vec::new() },
    };
    match imported.mode {
        Mode::Server { name, members } => return take_over(settings, &name, &members, imported.notes),
        Mode::Client { members, in_the_clear: true, .. } => return carry_on(settings, &members, imported.notes),
        Mode::Client { endpoints, .. } => return Err(was_proxy(&settings.glusterd_dir, &endpoints)),
        Mode::Standalone => {}
    }
    let name = match (&settings.name, &detached) {
        (Some(name), _) => checked(name)?.to_owned(),
        (None, Some(place)) => place.name.clone(),
        (None, None) => hostname()?,
    };
    let place = Place { state_dir: settings.state_dir.clone(), name };
    if detached.is_none() && place.dir().join(quorate_etcd::ledger::FILE_NAME).exists() && !place.file().exists() {
        let what = format!("`{}` is the state of a member that a cluster file declares", place.dir().display());
        return Err(
            Fault::new(Code::NodeElsewhere, what).hint("run it with `--config FILE`, or give this node another name")
        );
    }
    // Nothing is written before all of it is valid: a corrected command finds nothing of the wrong one.
    let text = if detached.is_none() && place.file().exists() {
        flags_agree(settings, &place)?;
        None
    } else {
        Some(checked_text(settings, &place)?)
    };
    if let Some(earlier) = detached {
        notes.push(set_aside(&earlier, &data_dir(settings)?)?);
    }
    let state = StateDir::open(&place.dir())?;
    let _lock = state.lock()?;
    if let Some(text) = text.filter(|_| !place.file().exists()) {
        ensure_file(&RealDisk, &place.file(), text.as_bytes())?;
    }
    let (spec, _) = cluster_file::read(&place.file())?;
    let member = spec.local(Some(&place.name), "the cluster file")?;
    ensure_certificates(&place, &spec, member)?;
    let address = spec.agent_url_of(member);
    let address = quorate_plan::certificates::host_of(&address).unwrap_or_default().to_owned();
    let role = if spec.external.is_some() { Role::External } else { Role::Standalone };
    let cluster = spec.token.clone();
    let local =
        LocalState { role, name: place.name.clone(), cluster, address, since_ms: now_ms(), notes: notes.clone() };
    place.ensure_local(&local)?;
    Ok(Stands { place, notes, adopts: false })
}

/// The text of the file, read back: flags that make no valid file are reported before anything is written.
fn checked_text(settings: &StandaloneSettings, place: &Place) -> Result<String, Fault> {
    let text = standalone_text(&file(settings, place)?);
    let (spec, _) = cluster_file::parse(text.as_bytes(), "the flags of `quorate run --standalone`")?;
    NodeNames::of(&spec, spec.local(Some(&place.name), "the cluster file")?)?;
    files_exist(settings)?;
    Ok(text)
}

pub(super) fn data_dir(settings: &StandaloneSettings) -> Result<PathBuf, Fault> {
    settings.data_dir.clone().map_or_else(|| cluster_file::place("/var/lib/etcd"), Ok)
}

/// One that stands already; what was imported is told once.
fn found(place: Place, state: LocalState) -> Result<Stands, Fault> {
    let adopts = adopts(&place, &state)?;
    let notes = if state.cluster == GLUSTERD_TOKEN { Vec::new() } else { state.notes };
    Ok(Stands { place, notes, adopts })
}

/// Whether data of GlusterD 2's etcd lies there that this node does not know as its own.
fn adopts(place: &Place, state: &LocalState) -> Result<bool, Fault> {
    if state.cluster != GLUSTERD_TOKEN || place.dir().join(quorate_etcd::ledger::FILE_NAME).exists() {
        return Ok(false);
    }
    let (spec, _) = cluster_file::read(&place.file())?;
    Ok(spec.member(&place.name).is_some_and(|member| Path::new(&member.data_dir).join("member").exists()))
}

/// Makes the file and the role of a node that GlusterD 2 ran as a server.
fn take_over(
    settings: &StandaloneSettings,
    name: &str,
    members: &[(String, String)],
    mut notes: Vec<String>,
) -> Result<Stands, Fault> {
    let dir = settings.glusterd_dir.display();
    if let Some(other) = settings.name.as_deref().filter(|other| *other != name) {
        let what = format!("the files in `{dir}` name this node `{name}`, and not `{other}`");
        return Err(Fault::new(Code::GlusterdLeft, what).hint("leave `--name` out, or move the files away"));
    }
    let place = Place { state_dir: settings.state_dir.clone(), name: checked(name)?.to_owned() };
    let text = glusterd_text(members, &places(settings)?);
    let (spec, _) = cluster_file::parse(text.as_bytes(), "what GlusterD 2 left")?;
    let member = spec.local(Some(name), "what GlusterD 2 left")?;
    // The files decide where others reach this node: a flag that says otherwise would be ignored.
    flags_fit(settings, &Declared::member(&spec, member))?;
    files_exist(settings)?;
    let address = member.peer_urls.first().and_then(|url| quorate_plan::certificates::host_of(url));
    let address = address.unwrap_or_default().to_owned();
    let state = StateDir::open(&place.dir())?;
    let _lock = state.lock()?;
    ensure_file(&RealDisk, &place.file(), text.as_bytes())?;
    notes.insert(
        0,
        format!(
            "took over from GlusterD 2, by the files in `{dir}`: `{name}`, one of {} servers, in the clear as they were; \
             the files are not looked at again",
            members.len()
        ),
    );
    let local = LocalState {
        role: Role::Server,
        name: name.to_owned(),
        cluster: spec.token.clone(),
        address,
        since_ms: now_ms(),
        notes: notes.clone(),
    };
    place.ensure_local(&local)?;
    let adopts = adopts(&place, &local)?;
    Ok(Stands { place, notes, adopts })
}

/// Makes the file and the role of a node that GlusterD 2 ran as a proxy: in the clear, nobody has to let it in.
fn carry_on(
    settings: &StandaloneSettings,
    members: &[(String, String)],
    mut notes: Vec<String>,
) -> Result<Stands, Fault> {
    let name = match &settings.name {
        Some(name) => checked(name)?.to_owned(),
        None => hostname()?,
    };
    let place = Place { state_dir: settings.state_dir.clone(), name };
    let places = places(settings)?;
    let text = glusterd_text(members, &places);
    let (spec, _) = cluster_file::parse(text.as_bytes(), "what GlusterD 2 left")?;
    let own = Newcomer { name: place.name.clone(), address: address(settings), data_dir: places.data_dir };
    with_member(&text, &own).map_err(|error| {
        let dir = settings.glusterd_dir.display();
        Fault::new(Code::GlusterdProxy, format!("`{}` cannot be the proxy that `{dir}/proxy` speaks of", own.name))
            .hint("give it another `--name` or `--listen`; see `quorate explain Q1238`")
            .caused_by(error.fault())
    })?;
    flags_fit(settings, &Declared::client(&spec, &own)?)?;
    files_exist(settings)?;
    let state = StateDir::open(&place.dir())?;
    let _lock = state.lock()?;
    ensure_file(&RealDisk, &place.file(), text.as_bytes())?;
    keep_own(&place.dir(), &own)?;
    let dir = settings.glusterd_dir.display();
    notes.insert(
        0,
        format!(
            "took over from GlusterD 2, by `{dir}/proxy`: a client of {} servers, in the clear as they were; the file is not \
             looked at again",
            members.len()
        ),
    );
    let local = LocalState {
        role: Role::Client,
        name: place.name.clone(),
        cluster: spec.token,
        address: own.address,
        since_ms: now_ms(),
        notes: notes.clone(),
    };
    place.ensure_local(&local)?;
    Ok(Stands { place, notes, adopts: false })
}

fn places(settings: &StandaloneSettings) -> Result<GlusterdPlaces, Fault> {
    Ok(GlusterdPlaces {
        data_dir: cluster_file::declared_path(&data_dir(settings)?)?,
        state_dir: cluster_file::declared_path(&settings.state_dir)?,
        etcd_binary: settings.etcd_binary.as_deref().map(cluster_file::declared_path).transpose()?,
        box_level: settings.box_level.clone(),
    })
}

/// Where others reach this node.
fn address(settings: &StandaloneSettings) -> String {
    let own = || own_address(None).unwrap_or(IpAddr::from([127, 0, 0, 1])).to_string();
    settings.address.clone().unwrap_or_else(own)
}

fn file(settings: &StandaloneSettings, place: &Place) -> Result<StandaloneFile, Fault> {
    let address = address(settings);
    let mut random = [0_u8; 6];
    super::pinned::fill_random(&mut random)?;
    let data_dir = cluster_file::declared_path(&data_dir(settings)?)?;
    Ok(StandaloneFile {
        token: format!("q-{}", hex(&random)),
        member: Newcomer { name: place.name.clone(), address, data_dir },
        state_dir: cluster_file::declared_path(&settings.state_dir)?,
        etcd_binary: settings.etcd_binary.as_deref().map(cluster_file::declared_path).transpose()?,
        join_timeout: settings.join_timeout.map(duration_text),
        box_level: settings.box_level.clone(),
        external: settings.external.clone(),
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
    let signed = certificates::sign(dir, &requests, &policy)?;
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

/// Over TLS, somebody has to say whom to trust, and the file does not.
fn was_proxy(dir: &Path, endpoints: &[String]) -> Fault {
    let what =
        format!("`{}/proxy` leads to {} over TLS, and does not say whom to trust", dir.display(), endpoints.join(", "));
    Fault::new(Code::GlusterdProxy, what).hint(
        "`quorate peer invite --role client` on a server, then `quorate peer join` here; see `quorate explain Q1238`",
    )
}
