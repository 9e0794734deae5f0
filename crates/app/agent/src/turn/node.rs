//! One member on this machine: what the cluster file says of it, and where its things lie.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use quorate_etcd::aside::ensure_file;
use quorate_etcd::client::{Credentials, Settings, Tls};
use quorate_etcd::init::Target;
use quorate_etcd::ledger::FILE_NAME;
use quorate_faults::{Code, Fault};
use quorate_host::durable::RealDisk;
use quorate_host::state::StateDir;
use quorate_plan::Warning;
use quorate_plan::spec::{External, Member, Metrics, Security, Spec, TlsFiles, for_member};

use crate::peers::check_agent_addresses;
use crate::serve::{self, Address};
use crate::{cluster_file, declared, peering};

/// Passwords are far below this.
const PASSWORD_BYTES_MAX: u64 = 4096;

/// The file from before the present one, in the state dir: who left the file still has to know where its things lie, and the
/// others where to ask it.
const BEFORE: &str = "before.yaml";

/// The member, as declared.
#[derive(Debug, Clone)]
pub struct Node {
    /// The cluster file.
    pub file: PathBuf,
    /// What it says.
    pub spec: Spec,
    /// What it says of this member.
    pub member: Member,
    /// Where the data is.
    pub target: Target,
    /// The hash of the file itself, before a source was asked.
    pub written: String,
    /// The text of the file.
    pub text: Arc<str>,
    /// Members that the file from before declared, and this one does not.
    pub leaving: Vec<Member>,
    /// A host of PostgreSQL that is no member and never was.
    alone: bool,
    state: PathBuf,
}

impl Node {
    /// Reads the cluster file and finds the member; changes nothing.
    pub fn read(file: &Path, name: Option<&str>) -> Result<(Node, Vec<Warning>), Fault> {
        Node::of(file, cluster_file::text(file)?.into(), name)
    }

    /// The same node, as another file with this content and all members would declare it; none where that does not declare the node.
    /// Its dirs are the present ones: no path of the other file is used.
    pub(super) fn with_spec(&self, spec: Spec) -> Option<Node> {
        let member = peering::passing_from(&self.state, &spec, spec.member(self.name())?.clone());
        Some(Node { spec, member, ..self.clone() })
    }

    fn of(file: &Path, text: Arc<str>, name: Option<&str>) -> Result<(Node, Vec<Warning>), Fault> {
        let shown = file.display().to_string();
        let (spec, mut warnings) = cluster_file::parse(text.as_bytes(), &shown)?;
        let written = spec.hash();
        let (spec, more) = declared::resolve_now(spec, name, declared::ASKED_WITHIN)?;
        warnings.extend(more);
        let (member, alone) = match spec.local(name, &shown) {
            Ok(member) => (member.clone(), false),
            Err(fault) => {
                let left = name.and_then(|name| before(&spec, name)?.member(name).cloned());
                let own = || name.and_then(|name| peering::own_member(&text, Path::new(&spec.state_dir_of(name))));
                let left = left.or_else(own);
                let alone = left.is_none();
                (left.or_else(|| host(&spec, name)).ok_or(fault)?, alone)
            }
        };
        let member = peering::passing(&spec, member);
        let earlier = before(&spec, &member.name).map(|before| before.members).unwrap_or_default();
        let leaving = earlier.into_iter().filter(|other| spec.member(&other.name).is_none()).collect();
        let target = Target::new(Path::new(&member.data_dir), member.wal_dir.as_deref().map(Path::new))?;
        let state = PathBuf::from(spec.state_dir_of(&member.name));
        let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
        Ok((Node { file, spec, member, target, written, text, leaving, alone, state }, warnings))
    }

    /// Keeps the file that this node has acted on, for the time after it. One that does not declare it is not worth keeping.
    pub(crate) fn ensure_remembered(&self) -> Result<(), Fault> {
        let (path, text) = (self.state.join(BEFORE), self.text.as_bytes());
        let known = std::fs::read(&path).is_ok_and(|known| known == text);
        if self.is_declared() && !known { ensure_file(&RealDisk, &path, text) } else { Ok(()) }
    }

    /// Whether the file declares this node; one that it does not declare leaves.
    pub fn is_declared(&self) -> bool {
        self.spec.member(self.name()).is_some()
    }

    /// Whether etcd runs here; a host of PostgreSQL alone has none.
    pub fn keeps_etcd(&self) -> bool {
        !self.alone
    }

    /// The member's name.
    pub fn name(&self) -> &str {
        &self.member.name
    }

    /// The state dir, which may not be there yet.
    pub fn state_path(&self) -> &Path {
        &self.state
    }

    /// The state dir, made if it is missing.
    pub fn state(&self) -> Result<StateDir, Fault> {
        StateDir::open(&self.state)
    }

    /// What this node remembers.
    pub fn ledger(&self) -> PathBuf {
        self.state.join(FILE_NAME)
    }

    /// The file that etcd is started with.
    pub fn etcd_config(&self) -> PathBuf {
        self.state.join("etcd.yaml")
    }

    /// Where etcd's log goes.
    pub fn log_dir(&self) -> PathBuf {
        self.state.join("logs")
    }

    /// Where writes wait for the store.
    pub fn spool(&self) -> PathBuf {
        self.state.join("spool")
    }

    /// Where large files may lie for a while: on the data's disk, where there is room for them.
    pub fn scratch(&self) -> PathBuf {
        match self.target.data_dir().parent() {
            Some(parent) if parent.is_dir() => parent.to_owned(),
            _ => std::env::temp_dir(),
        }
    }

    /// How to ask this very member: where the etcd that runs was told to answer, else where the file says that it does.
    pub fn client(&self) -> Result<Settings, Fault> {
        if self.spec.external.is_some() {
            return self.client_at(Vec::new());
        }
        let (started, declared) = (self.started_at(), self.member.client_urls.first().cloned());
        let moved = declared.filter(|declared| started.as_ref() != Some(declared));
        self.client_at(started.into_iter().chain(moved).collect())
    }

    /// The client URL that etcd was last started with: a file that came since may name another one.
    fn started_at(&self) -> Option<String> {
        let text = std::fs::read_to_string(self.etcd_config()).ok()?;
        let urls = text_of(&text, "advertise-client-urls")?;
        urls.split(',').next().filter(|url| !url.is_empty()).map(str::to_owned)
    }

    /// Whether peers will find etcd elsewhere than it was last started, once it has these settings. So too where that cannot be told.
    pub(crate) fn moves_with(&self, settings: &str) -> bool {
        let Ok(before) = std::fs::read_to_string(self.etcd_config()) else { return true };
        let same = |key: &str| text_of(&before, key).is_some_and(|urls| text_of(settings, key) == Some(urls));
        !["listen-peer-urls", "initial-advertise-peer-urls"].into_iter().all(same)
    }

    /// Where etcd of this node listens for clients by the file, or would.
    pub(crate) fn listens(&self) -> Vec<String> {
        self.spec.member(self.name()).unwrap_or(&self.member).listen_client_urls.clone()
    }

    /// Whether etcd was last started to answer elsewhere, while this node was still a client.
    pub(crate) fn is_passing(&self) -> bool {
        self.started_at().is_some_and(|url| url.ends_with(&format!(":{}", peering::PASSING_PORT)))
    }

    /// How to ask the other declared members, whichever answers.
    pub fn client_of_others(&self) -> Result<Settings, Fault> {
        let others = self.spec.members.iter().filter(|member| member.name != self.name());
        self.client_at(others.flat_map(|member| member.client_urls.iter().take(1).cloned()).collect())
    }

    /// How to ask members at these URLs, as the administrator that this node is.
    pub fn client_at(&self, urls: Vec<String>) -> Result<Settings, Fault> {
        client_of(&self.spec, self.name(), urls)
    }

    /// Where health and metrics are served: TLS where the file has it. Nobody needs a certificate, so that kubelets and load
    /// balancers can ask; who shows one of the clients' authority may read metrics too.
    pub fn health(&self) -> Result<Address, Fault> {
        let text = &self.spec.health_listen_of(&self.member);
        let tls = match &self.spec.security {
            Security::Tls(tls) if text.starts_with("https://") => {
                let path = |text: &str| PathBuf::from(for_member(text, self.name()));
                let TlsFiles { cert_file, key_file, trusted_ca_file } = &tls.client;
                let client_ca = Some(path(trusted_ca_file));
                Some(serve::TlsFiles { cert: path(cert_file), key: path(key_file), client_ca, operators: None })
            }
            Security::Tls(_) | Security::Plaintext(_) => None,
        };
        Ok(Address::parse(text, tls)?.of_both_kinds().admit_unknown())
    }

    /// Whether anyone who can connect may read metrics.
    pub fn has_open_metrics(&self) -> bool {
        self.spec.agent.metrics == Metrics::Open || self.spec.is_plaintext()
    }

    /// Where agents and operators are answered: only with a certificate, except where the whole cluster is in the clear.
    pub fn api(&self) -> Result<Address, Fault> {
        let tls = self.spec.tls_files().map(|tls| {
            let path = |text: &str| PathBuf::from(for_member(text, self.name()));
            let TlsFiles { cert_file, key_file, trusted_ca_file } = tls.agent.as_ref().unwrap_or(&tls.peer);
            let (cert, key, client_ca) = (path(cert_file), path(key_file), Some(path(trusted_ca_file)));
            let operators = self.spec.operators_file_of(self.name()).map(PathBuf::from);
            serve::TlsFiles { cert, key, client_ca, operators }
        });
        let address = Address::parse(&self.spec.api_listen_of(&self.member), tls)?;
        if address.is_plaintext() && !address.is_loopback() {
            check_agent_addresses(&self.spec)?;
        }
        Ok(address.of_both_kinds().admit_ended())
    }

    /// Whether anyone else is declared.
    pub fn has_peers(&self) -> bool {
        self.spec.members.iter().any(|member| member.name != self.name())
    }
}

/// How to ask members at these URLs, as the administrator that has the files of member `files_of`.
pub(crate) fn client_of(spec: &Spec, files_of: &str, urls: Vec<String>) -> Result<Settings, Fault> {
    let agent = &spec.agent;
    let mut settings = Settings::new(urls);
    settings.timeout = agent.ready_timeout;
    if let Some(external) = &spec.external {
        settings.endpoints.clone_from(&external.endpoints);
        settings.tls = external_tls(external, files_of);
    } else if let Security::Tls(tls) = &spec.security {
        let TlsFiles { cert_file, key_file, trusted_ca_file } = tls.admin.as_ref().unwrap_or(&tls.client);
        let path = |text: &str| Some(PathBuf::from(for_member(text, files_of)));
        settings.tls = Tls { ca: path(trusted_ca_file), cert: path(cert_file), key: path(key_file), server_name: None };
    }
    if let (Some(name), Some(file)) = (&agent.etcd_user, &agent.etcd_password_file) {
        settings.credentials = Some(Credentials { name: name.clone(), password: password(Path::new(file))? });
    }
    Ok(settings)
}

/// What an etcd of others is shown, and who must have signed it.
fn external_tls(external: &External, files_of: &str) -> Tls {
    let Some(files) = &external.tls else { return Tls::default() };
    let path = |text: &String| PathBuf::from(for_member(text, files_of));
    let (cert, key) = (files.cert_file.as_ref().map(path), files.key_file.as_ref().map(path));
    Tls { ca: Some(path(&files.trusted_ca_file)), cert, key, server_name: None }
}

/// A host of PostgreSQL without etcd: the one with this name, or the only node of a file without members.
fn host(spec: &Spec, name: Option<&str>) -> Option<Member> {
    let nodes = &spec.postgres.as_ref()?.nodes;
    let name = match (name, nodes.as_slice()) {
        (Some(name), _) => name,
        (None, [one]) if spec.members.is_empty() => &one.name,
        (None, _) => return None,
    };
    spec.host_without_etcd(name)
}

/// The file from before, where one of this cluster was kept.
fn before(spec: &Spec, name: &str) -> Option<Spec> {
    let bytes = std::fs::read(PathBuf::from(spec.state_dir_of(name)).join(BEFORE)).ok()?;
    let (before, _) = cluster_file::parse(&bytes, BEFORE).ok()?;
    (before.token == spec.token).then_some(before)
}

fn password(path: &Path) -> Result<String, Fault> {
    let fail = |error| Fault::io(format!("cannot read the password file `{}`", path.display()), error);
    if std::fs::metadata(path).map_err(fail)?.len() > PASSWORD_BYTES_MAX {
        return Err(Fault::new(Code::SpecMistake, format!("cannot use the password file `{}`", path.display()))
            .hint("it is far too long to be a password"));
    }
    let text = std::fs::read_to_string(path).map_err(fail)?;
    Ok(text.trim_end_matches(['\n', '\r']).to_owned())
}

/// What the settings of an etcd say of a key whose value is text.
fn text_of(settings: &str, key: &str) -> Option<String> {
    let value = settings.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "))?;
    serde_json::from_str(value).ok()
}
