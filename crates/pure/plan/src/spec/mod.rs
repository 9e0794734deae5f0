//! The cluster file: one strict YAML file that every node of a cluster shares.
//!
//! **Rule:** a key that means nothing here is a mistake, never skipped; every mistake is reported with its line and column, all
//! of them at once. Secrets do not stand in the file, only the paths of the files that hold them.

mod auth;
mod backup;
mod boxes;
mod check;
mod exposed;
mod external;
mod members;
mod mistake;
mod places;
mod postgres;
mod processes;
mod read;
mod root;
mod schema;
mod sections;
mod settings;
mod source;
mod table;
mod tls;
mod tree;
mod tunables;
mod units;

use std::collections::BTreeMap;

use quorate_etcd_formats::delta::quorate::Declared;
use quorate_etcd_formats::hex::hex;
use quorate_etcd_formats::membership::{ClusterId, MemberId, cluster_id, member_id};
use quorate_faults::Result;
use serde::Serialize;
use sha2::{Digest, Sha256};

pub use auth::{ADMIN, Access, AuthSpec, Keys, Permission, ROOT, Role, User};
pub use boxes::{BoxLimits, BoxSection, CallList, Calls};
pub use exposed::{ExposedAgent, is_loopback_url};
pub use external::{External, ExternalTls, NAMESPACE};
pub use mistake::{At, Mistake, Mistakes};
pub use postgres::{PgNode, PgRole, PgSpec, PgStore, PgStoreKind, PgUser, PgUserKind, PgWriters};
pub use processes::{
    Check, HealthSpec, Hooks, ProcessPorts, ProcessSpec, ProcessStop, RestartSpec, RestartWhen, Volume, VolumeAccess,
};
pub use root::{below_root, without_root};
pub use schema::{DefaultValue, default_values, schema};
pub use settings::{Agent, Backup, Defrag, Keep, Layout, Logs, Maintenance, Metrics, Stop, Validation};
pub use source::Source;
pub use tunables::changes_beyond_tunables;
pub use units::{duration_text, parse_duration, parse_size, size_text};

use crate::Warning;
use crate::roster::{RawMember, Roster};

/// A whole cluster, as declared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Spec {
    /// What the cluster is called; etcd's token is made of it.
    pub token: String,
    /// The declaration that founds it, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<Bootstrap>,
    /// Where the addresses of its members come from, where they do not stand in the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// Who belongs to it. With a `source` it is complete once [`Spec::with_roster`] has filled it in.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<Member>,
    /// Certificates, or plaintext by its name.
    #[serde(flatten)]
    pub security: Security,
    /// What is passed on to etcd, under etcd's own names.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "settings::as_map")]
    pub etcd: Vec<Setting>,
    /// Where etcd is, if it is somebody else's. Settings do not stand beside it.
    #[serde(rename = "etcd", skip_serializing_if = "Option::is_none")]
    pub external: Option<External>,
    /// Where backups go, if anywhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup: Option<Backup>,
    /// Users and roles, if they are kept here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth: Option<AuthSpec>,
    /// How data is checked, kept small and stopped.
    pub maintenance: Maintenance,
    /// The agent of each node.
    pub agent: Agent,
    /// How etcd is held.
    #[serde(rename = "box", skip_serializing_if = "BoxSection::is_default")]
    pub box_: BoxSection,
    /// What the agent keeps beside etcd.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "processes::as_map")]
    pub processes: Vec<ProcessSpec>,
    /// A group of PostgreSQL servers, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub postgres: Option<PgSpec>,
    /// The root that its dirs were moved below on this machine, if any; see [`Spec::below`].
    #[serde(skip)]
    pub root: Option<String>,
}

/// `bootstrap: {id: N}`. A number that has been used is inert for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Bootstrap {
    /// The declaration's number.
    pub id: u64,
}

/// One member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Member {
    /// Its name.
    pub name: String,
    /// Where other members reach it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub peer_urls: Vec<String>,
    /// Where clients reach it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub client_urls: Vec<String>,
    /// Where it listens for members; by default its peer URLs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub listen_peer_urls: Vec<String>,
    /// Where it listens for clients; by default its client URLs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub listen_client_urls: Vec<String>,
    /// Its data dir.
    pub data_dir: String,
    /// The dir of its WAL, if that is a separate one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wal_dir: Option<String>,
    /// Where other agents reach its agent; see [`Spec::agent_url_of`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_url: Option<String>,
    /// Where its agent listens for agents and operators; see [`Spec::api_listen_of`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen_agent_url: Option<String>,
    /// Where its agent serves health and metrics; see [`Spec::health_listen_of`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen_health_url: Option<String>,
}

/// Who may read what is sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Security {
    /// Mutual TLS everywhere.
    Tls(Box<Tls>),
    /// Nothing is encrypted and anyone may connect. Asked for by name.
    Plaintext(bool),
}

/// The files of mutual TLS. Paths may hold `{name}`, which stands for the member's name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Tls {
    /// The folder that the files below stand in, where it was given instead of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dir: Option<String>,
    /// Between members.
    pub peer: TlsFiles,
    /// Towards clients.
    pub client: TlsFiles,
    /// Between agents; by default as between members.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<TlsFiles>,
    /// What our agent shows etcd as a client; by default the files of `client`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin: Option<TlsFiles>,
    /// The operators' authority, where the file names it; see [`Spec::operators_file_of`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operators: Option<String>,
    /// The name that a peer's certificate must hold, so that a client's certificate is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_allowed_hostname: Option<String>,
    /// Certificates are renewed by an operator on purpose: no node holds the issuing keys.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub renewed_by_hand: bool,
}

/// A certificate, its key and whom to trust.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct TlsFiles {
    /// The certificate.
    pub cert_file: String,
    /// Its private key.
    pub key_file: String,
    /// The CAs that others' certificates must come from.
    pub trusted_ca_file: String,
}

/// One of etcd's own settings.
#[derive(Debug, Clone)]
pub struct Setting {
    /// etcd's name for it.
    pub key: String,
    /// Its value.
    pub value: Value,
    /// Where it stands in the file.
    pub at: At,
}

impl PartialEq for Setting {
    fn eq(&self, other: &Setting) -> bool {
        // Where it stands does not change what it means.
        self.key == other.key && self.value == other.value
    }
}

impl Eq for Setting {}

/// A value of etcd's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Value {
    /// `true` or `false`.
    Flag(bool),
    /// A whole number.
    Number(i64),
    /// Text, also for durations.
    Text(String),
    /// Several texts.
    List(Vec<String>),
}

impl Spec {
    /// Reads a cluster file. `provenance` is its path, for messages.
    pub fn parse(bytes: &[u8], provenance: &str) -> std::result::Result<(Spec, Vec<Warning>), Mistakes> {
        sections::document(bytes, provenance)
    }

    /// The member with this name, or the only one there is.
    pub fn local(&self, name: Option<&str>, provenance: &str) -> Result<&Member> {
        let found = self.roster(provenance)?.local(name)?.name.clone();
        // The roster was made from these very members.
        self.member(&found).ok_or_else(|| {
            quorate_faults::Fault::new(quorate_faults::Code::Internal, format!("member `{found}` got lost"))
        })
    }

    /// The member with this name.
    pub fn member(&self, name: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.name == name)
    }

    /// The members as a roster.
    pub fn roster(&self, provenance: &str) -> Result<Roster> {
        let raw = self.members.iter().map(|member| RawMember {
            name: member.name.clone(),
            peer_urls: member.peer_urls.clone(),
            client_urls: member.client_urls.clone(),
        });
        Roster::build(provenance, raw.collect())
    }

    /// The token that etcd is founded with: `<token>-b<N>`, so that two declarations never share ids.
    pub fn etcd_token(&self) -> Option<String> {
        self.bootstrap.map(|bootstrap| format!("{}-b{}", self.token, bootstrap.id))
    }

    /// Whose backups are those of the clusters that come of this file.
    pub fn declared(&self) -> Declared {
        Declared { token: self.token.clone(), bootstrap: self.bootstrap.map(|bootstrap| bootstrap.id) }
    }

    /// The ids that follow from the file alone, as earlier releases computed them; none while a source has not been asked.
    pub fn founding_ids(&self) -> Option<FoundingIds> {
        self.founding_ids_of(&BTreeMap::new())
    }

    /// The ids that the declared bootstrap leads to with these nonces, one of each member: `<token>-b<N>-<hash>` is etcd's token, so that
    /// the same file never leads to the same ids twice. None where a member is missing from them; those of the file alone without any.
    pub fn founding_ids_of(&self, nonces: &BTreeMap<String, String>) -> Option<FoundingIds> {
        let token = self.etcd_token().filter(|_| self.is_resolved())?;
        let complete =
            nonces.len() == self.members.len() && self.members.iter().all(|it| nonces.contains_key(&it.name));
        let token = match nonces.is_empty() {
            true => token,
            false if !complete => return None,
            false => {
                let digest = hash(&("quorate nonces 1", nonces));
                format!("{token}-{}", digest.get(..NONCES_HASH).unwrap_or(&digest))
            }
        };
        let members: BTreeMap<String, MemberId> =
            self.members.iter().map(|member| (member.name.clone(), member_id(&member.peer_urls, &token))).collect();
        Some(FoundingIds { cluster: cluster_id(members.values().copied()), members, token })
    }

    /// What is founded: members, token and bootstrap, and nothing else, so that another edit strands no one.
    pub fn declaration_hash(&self) -> String {
        let mut members: Vec<_> = self.members.iter().map(|member| (&member.name, &member.peer_urls)).collect();
        members.sort();
        let bootstrap = self.bootstrap.map(|bootstrap| bootstrap.id);
        hash(&("quorate declaration 1", &self.token, bootstrap, members))
    }

    /// The whole file, whatever its spelling and whatever root a machine has.
    pub fn hash(&self) -> String {
        match &self.root {
            Some(root) => hash(&("quorate cluster file 1", self.clone().moved(&|path| without_root(path, root)))),
            None => hash(&("quorate cluster file 1", self)),
        }
    }

    /// Whether everything is sent in the clear.
    pub fn is_plaintext(&self) -> bool {
        matches!(self.security, Security::Plaintext(_))
    }
}

/// So many hex digits of the hash of all nonces are part of etcd's token: as many as an id has.
const NONCES_HASH: usize = 16;

/// The ids of a declared founding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundingIds {
    /// The cluster's.
    pub cluster: ClusterId,
    /// Each member's, by name.
    pub members: BTreeMap<String, MemberId>,
    /// The token they come from.
    pub token: String,
}

/// A path with `{name}` filled in.
pub fn for_member(path: &str, name: &str) -> String {
    path.replace("{name}", name)
}

fn hash(what: &impl Serialize) -> String {
    // Nothing in a Spec can fail to serialise; if it did, the hash would still be one and the same.
    let text = serde_json::to_vec(what).unwrap_or_default();
    hex(&Sha256::digest(text))
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod more_tests;
