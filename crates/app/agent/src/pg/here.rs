//! This node of a group: what the cluster file says of it, where its parts lie, and how the others and the store are reached.
//!
//! **Rule:** passwords are read from their files when they are needed, and stay in this process and the pooler's own file.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::join_all;
use quorate_coordination::{ConsulSettings, Place as StorePlace, Settings, Store};
use quorate_faults::{Code, Fault};
use quorate_host::durable::Owner;
use quorate_host::owners::find_user;
use quorate_plan::postgres::Group;
use quorate_plan::spec::{PgNode, PgSpec, PgStoreKind, PgUserKind, Spec, for_member};
use quorate_postgres::Secret;
use quorate_postgres::group::{Member, UserKind, UserSpec};
use quorate_postgres::proxies::ensure_file;
use quorate_postgres::server::{DataMark, Installation, Places, ServerConfig, TlsFiles};
use quorate_postgres::sql::{Client, Limits, Place};

use super::proxy::{ensure_dir, hash};
use crate::cluster_file;
use crate::turn::client_of;

/// The database of the group.
pub(super) const DATABASE: &str = "rdpg";
/// How long the store may take for one answer: a part of the shortest lease.
const STORE_LIMIT: Duration = Duration::from_secs(2);
/// A password file is a line.
const PASSWORD_BYTES_MAX: u64 = 4096;

/// What server and pooler were given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Given {
    /// The hash of all of them.
    pub(super) print: String,
    /// The serial numbers of revoked certificates, in decimal.
    pub(super) revoked: Vec<String>,
}

/// This node.
#[derive(Debug, Clone)]
pub struct Here {
    /// The whole file.
    pub(super) spec: Spec,
    /// The group.
    pub(super) pg: PgSpec,
    /// This node's part.
    pub(super) node: PgNode,
    /// Where its state is kept.
    pub(super) state: PathBuf,
    /// Our own program.
    pub(super) program: PathBuf,
    /// The programs of PostgreSQL, once they were asked.
    found: Arc<OnceLock<Installation>>,
}

impl Here {
    /// Reads the cluster file. `program`: our own program, for shims and the fence.
    pub fn read(file: &Path, name: Option<&str>, program: PathBuf) -> Result<Here, Fault> {
        let (spec, _) = cluster_file::read(file)?;
        Here::of(spec, name, program)
    }

    /// The node that a file that was read declares.
    pub(crate) fn of(spec: Spec, name: Option<&str>, program: PathBuf) -> Result<Here, Fault> {
        let Some(pg) = spec.postgres.clone() else {
            return Err(Fault::new(Code::PgNotDeclared, "the cluster file has no section `postgres`")
                .hint("`quorate explain Q1300` shows a small one"));
        };
        let unknown = |what: String| {
            let known = pg.nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>().join(", ");
            Fault::new(Code::PgNotDeclared, what).hint(format!("the nodes are {known}: say `--name NODE`"))
        };
        let node = match (name, pg.nodes.as_slice()) {
            (Some(name), _) => pg.node(name).ok_or_else(|| unknown(format!("`{name}` is no node of the group")))?,
            (None, [one]) => one,
            (None, _) => return Err(unknown("it is not said which node this is".to_owned())),
        };
        let node = node.clone();
        let state = PathBuf::from(spec.state_dir_of(&node.name)).join("pg");
        Ok(Here { spec, node, pg, state, program, found: Arc::default() })
    }

    /// The node's name.
    pub fn name(&self) -> &str {
        &self.node.name
    }

    /// The group.
    pub fn group(&self) -> &PgSpec {
        &self.pg
    }

    pub(super) fn data_dir(&self) -> PathBuf {
        PathBuf::from(&self.node.data_dir)
    }

    /// Sockets and the files of pooler and proxy: beside the data, where their user may go.
    pub(super) fn run_dir(&self) -> PathBuf {
        PathBuf::from(format!("{}.run", self.node.data_dir.trim_end_matches('/')))
    }

    /// Whom the programs run as: only root can choose.
    pub(super) fn owner(&self) -> Result<Option<Owner>, Fault> {
        if rustix::process::geteuid().is_root() { find_user(&self.pg.user).map(Some) } else { Ok(None) }
    }

    pub(super) fn mark(&self) -> DataMark {
        DataMark { group: self.pg.group.clone(), node: self.node.name.clone() }
    }

    /// The programs of PostgreSQL; asked once, since each question is a process.
    pub(super) fn installation(&self) -> Result<Installation, Fault> {
        if let Some(found) = self.found.get() {
            return Ok(found.clone());
        }
        let path = std::env::var_os("PATH");
        let named = self.pg.bin_dir.as_deref().map(Path::new);
        let near = self.program.parent().map(Path::to_owned).into_iter().collect();
        let found = Installation::find(&Places { named, path: path.as_deref(), near })?;
        Ok(self.found.get_or_init(|| found).clone())
    }

    /// What this node shows as a server and as a peer.
    pub(super) fn files(&self) -> Result<TlsFiles, Fault> {
        let tls = self.spec.tls_files().ok_or_else(|| {
            Fault::new(Code::PgNotDeclared, "a group of PostgreSQL servers needs `tls`").hint("see `quorate ca --help`")
        })?;
        let path = |text: &str| PathBuf::from(for_member(text, &self.node.name));
        Ok(TlsFiles {
            cert: path(&tls.peer.cert_file),
            key: path(&tls.peer.key_file),
            ca: path(&tls.peer.trusted_ca_file),
        })
    }

    /// The same as server, pooler and links see them: copies of their user's own in a directory with nothing else, so that no box
    /// of theirs has the directory of the authorities' keys.
    pub(super) fn given_files(&self) -> Result<TlsFiles, Fault> {
        let dir = self.run_dir().join("tls");
        Ok(TlsFiles { cert: dir.join("node.crt"), key: dir.join("node.key"), ca: dir.join("ca.crt") })
    }

    /// The list of revoked certificates as the server reads it. Empty: the list does not cover every authority.
    fn revoked_file(&self) -> PathBuf {
        self.run_dir().join("tls").join("revoked.pem")
    }

    /// Gives server and pooler their certificates, and the server the list of revoked ones.
    pub(super) fn ensure_given(&self) -> Result<Given, Fault> {
        let owner = self.owner()?;
        let (from, to) = (self.files()?, self.given_files()?);
        for dir in [self.run_dir(), self.run_dir().join("tls")] {
            ensure_dir(&dir, owner)?;
        }
        let revoked = quorate_pki::read_revoked(&from.ca, jiff::Timestamp::now())?;
        let list = revoked.list.unwrap_or_default();
        if !list.is_empty() || self.revoked_file().exists() {
            ensure_file(&self.revoked_file(), &list, owner)?;
        }
        let mut texts = vec![list];
        for (from, to) in [(from.ca, to.ca), (from.cert, to.cert), (from.key, to.key)] {
            let text = std::fs::read_to_string(&from);
            let text = text.map_err(|error| Fault::io(format!("cannot read `{}`", from.display()), error))?;
            ensure_file(&to, &text, owner)?;
            texts.push(text);
        }
        let print = hash(&texts.iter().map(String::as_str).collect::<Vec<_>>());
        Ok(Given { print, revoked: revoked.serials.into_iter().collect() })
    }

    pub(super) fn server(&self) -> Result<ServerConfig, Fault> {
        let mut config = ServerConfig::new(&self.node.name, self.node.port, &self.run_dir());
        config.listen = vec![self.node.address.clone()];
        config.peer_names = self.pg.nodes.iter().map(|node| node.name.clone()).collect();
        config.members = u16::try_from(self.pg.nodes.len()).unwrap_or(u16::MAX).max(4);
        config.tls = Some(self.given_files()?);
        let has_list = |file: &PathBuf| std::fs::metadata(file).is_ok_and(|meta| meta.len() > 0);
        config.revoked = Some(self.revoked_file()).filter(has_list);
        config.owner = self.owner()?;
        config.database = DATABASE.to_owned();
        config.extra = self.pg.settings.iter().cloned().collect();
        Ok(config)
    }

    /// The same without connections to other nodes.
    pub(super) fn isolated_server(&self) -> Result<ServerConfig, Fault> {
        Ok(ServerConfig { isolated: true, ..self.server()? })
    }

    /// A connection to the own server.
    pub(super) async fn own(&self, database: &str, limits: Limits) -> Result<Client, Fault> {
        Client::connect(&Place::own(&self.server()?, database), limits).await
    }

    /// The same as other nodes come, without a superuser's rights: for all that handles rows and objects of the replicated schemas.
    pub(super) async fn own_mesh(&self, limits: Limits) -> Result<Client, Fault> {
        Client::connect(&Place::own_mesh(&self.server()?, DATABASE), limits).await
    }

    /// Limits of a step's connections.
    pub(super) fn limits(&self) -> Limits {
        Limits::default().statement(self.pg.step_timeout)
    }

    /// A declared node, with its number in the group.
    pub(super) fn member(&self, name: &str, id: u16) -> Option<Member> {
        let node = self.pg.node(name)?;
        Some(Member { id, name: node.name.clone(), host: node.address.clone(), port: node.port })
    }

    /// All of them.
    pub(super) fn members(&self, group: &Group) -> Vec<Member> {
        group.nodes.iter().filter_map(|(name, id)| self.member(name, *id)).collect()
    }

    /// Where a member is reached by this node: by the socket if it is the node itself. Everywhere as the role of the mesh.
    pub(super) fn place(&self, member: &Member) -> Result<Place, Fault> {
        if member.name == self.node.name {
            return Ok(Place::own_mesh(&self.server()?, DATABASE));
        }
        Ok(Place::peer(member, &self.files()?, DATABASE))
    }

    /// The passwords of all users, in clear text.
    pub(super) fn passwords(&self) -> Result<Vec<(String, String)>, Fault> {
        self.pg.users.iter().map(|user| Ok((user.name.clone(), password(Path::new(&user.password_file))?))).collect()
    }

    pub(super) fn users(&self) -> Result<Vec<UserSpec>, Fault> {
        let kind = |kind| match kind {
            PgUserKind::App => UserKind::App,
            PgUserKind::Owner => UserKind::Owner,
            PgUserKind::Health => UserKind::Health,
        };
        let users = self.pg.users.iter();
        users
            .map(|user| {
                let password = Secret::new(password(Path::new(&user.password_file))?);
                Ok(UserSpec { name: user.name.clone(), password, kind: kind(user.kind) })
            })
            .collect()
    }

    /// The shared store, and this group's part of it.
    pub async fn store(&self) -> Result<Store, Fault> {
        let place = match self.pg.store.kind {
            PgStoreKind::Etcd => {
                let urls = self.pg.store.urls.clone();
                let clear = urls.iter().all(|url| url.starts_with("http://"));
                let mut settings = client_of(&self.spec, &self.node.name, urls)?;
                settings.timeout = STORE_LIMIT;
                if clear {
                    settings.tls = Default::default();
                }
                StorePlace::Etcd(settings)
            }
            PgStoreKind::Consul => {
                let url = self.pg.store.urls.first().cloned().unwrap_or_default();
                let mut settings = ConsulSettings::new(url);
                settings.token_file = self.pg.store.token_file.as_ref().map(PathBuf::from);
                StorePlace::Consul(settings)
            }
        };
        let mut settings = Settings::new(place, format!("{}pg/{}/", self.spec.namespace(), self.pg.group));
        settings.limit = STORE_LIMIT;
        Store::open(&settings).await
    }
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

impl Here {
    /// Whether a node says of itself that it is this: `writer` or `reader`.
    pub(super) async fn is(&self, name: &str, what: &str) -> bool {
        let Some(node) = self.pg.node(name) else { return false };
        let url = format!("http://{}:{}/{what}", bracketed(&node.address), node.health_port);
        let asked = tokio::time::timeout(Duration::from_secs(1), reqwest::get(url)).await;
        matches!(asked, Ok(Ok(answer)) if answer.status().is_success())
    }

    /// What a node says of itself. It is told to who shows a certificate of a node, and on the node's own machine.
    pub async fn ask(&self, name: &str) -> Result<super::PgStatus, Fault> {
        let silent =
            |why: String| Fault::new(Code::PeerSilent, format!("the agent of `{name}` does not answer")).caused_by(why);
        let node = self.pg.node(name).ok_or_else(|| silent("it is not declared".to_owned()))?;
        let at = format!("{}:{}", bracketed(&node.address), node.health_port);
        let ask = async {
            // Whoever may not read the files of a node may still ask on its own machine.
            let answer = match self.certified() {
                Ok(client) => client.get(format!("https://{at}/v1/pg")).send().await,
                Err(_) => reqwest::get(format!("http://{at}/v1/pg")).await,
            };
            let answer = answer.map_err(|error| silent(innermost(&error)))?;
            if answer.status() == reqwest::StatusCode::FORBIDDEN {
                return Err(silent("it answers to who shows a certificate of a node".to_owned()));
            }
            let bytes = answer.bytes().await.map_err(|error| silent(innermost(&error)))?;
            serde_json::from_slice(&bytes).map_err(|error| silent(error.to_string()))
        };
        match tokio::time::timeout(Duration::from_secs(3), ask).await {
            Ok(answer) => answer,
            Err(_) => Err(silent("nothing within 3 s".to_owned())),
        }
    }

    /// What every declared node says of itself, asked at once.
    pub async fn ask_all(&self) -> Vec<Result<super::PgStatus, Fault>> {
        join_all(self.pg.nodes.iter().map(|node| self.ask(&node.name))).await
    }

    /// A client that shows the certificate of this node.
    fn certified(&self) -> Result<reqwest::Client, Fault> {
        let TlsFiles { cert, key, ca } = self.files()?;
        let fail = |path: &Path, why: Box<dyn std::error::Error + Send + Sync>| {
            Fault::new(Code::PgAuth, format!("cannot use `{}`", path.display())).caused_by(why)
        };
        let read = |path: &Path| std::fs::read(path).map_err(|error| fail(path, error.into()));
        let roots = reqwest::Certificate::from_pem_bundle(&read(&ca)?).map_err(|error| fail(&ca, error.into()))?;
        let both = [read(&cert)?, b"\n".to_vec(), read(&key)?].concat();
        let identity = reqwest::Identity::from_pem(&both).map_err(|error| fail(&cert, error.into()))?;
        let client = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none());
        let client = client.https_only(true).tls_certs_only(roots).identity(identity);
        client.build().map_err(|error| fail(&cert, error.into()))
    }

    /// What must hold before a node is begun: programs that are new enough, and certificates.
    pub fn preflight(&self) -> Result<(), Fault> {
        self.installation()?;
        self.certified().map(drop).map_err(|fault| {
            Fault::new(Code::PgAuth, "the certificates of this node cannot be used")
                .hint("`quorate ca --help` shows how a node gets them")
                .caused_by(crate::turn::in_words(&fault))
        })
    }
}

/// An address as a URL takes it.
fn bracketed(address: &str) -> String {
    if address.contains(':') { format!("[{address}]") } else { address.to_owned() }
}

/// The innermost cause is the one that says something.
fn innermost(error: &reqwest::Error) -> String {
    let mut inner: &dyn std::error::Error = error;
    while let Some(next) = inner.source() {
        inner = next;
    }
    inner.to_string()
}

impl Here {
    /// As any node whose certificates can be read here: for questions about the whole group.
    pub fn anyone(file: &Path, program: PathBuf) -> Result<Here, Fault> {
        let (spec, _) = cluster_file::read(file)?;
        let nodes = spec.postgres.iter().flat_map(|pg| &pg.nodes).map(|node| node.name.clone());
        let readable = |name: &String| {
            let admin = spec.tls_files().and_then(|tls| tls.admin.as_ref().or(Some(&tls.client)));
            admin.is_some_and(|files| std::fs::File::open(for_member(&files.key_file, name)).is_ok())
        };
        let names: Vec<String> = nodes.collect();
        let name = names.iter().find(|name| readable(name)).or(names.first()).cloned();
        Here::read(file, name.as_deref(), program)
    }
}
