//! Reads `auth` of the cluster file: users, roles, and whether etcd asks who somebody is.
//!
//! **Invariant:** every role that a user is given is declared, or is `root`, which etcd has itself.

use std::collections::BTreeSet;

use serde::Serialize;

use super::read::{Reader, Section};
use super::sections::secret_or_path;
use super::tree::{Kind, Node};
use super::{Agent, At, Security};
use crate::roster::{names, nearest, quoted};

/// The user, and the role, that etcd itself gives every right.
pub const ROOT: &str = "root";

/// The name in the certificate with which agents ask etcd, where `quorate ca` made it.
pub const ADMIN: &str = "quorate-admin";

/// Users and roles, as declared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct AuthSpec {
    /// Whether etcd asks who somebody is.
    pub enabled: bool,
    /// Whether users and roles that are not declared are removed.
    pub prune: bool,
    /// As whom the agent asks etcd. It keeps the role `root`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_user: Option<String>,
    /// What may be done.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<Role>,
    /// Who may do it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<User>,
}

/// A set of permissions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Role {
    /// Its name.
    pub name: String,
    /// What it permits, and nothing else.
    pub permissions: Vec<Permission>,
}

/// Somebody.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct User {
    /// The name: that of a login, or the common name of a certificate.
    pub name: String,
    /// The file with the password. Without one a certificate is the only way in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password_file: Option<String>,
    /// What the user may do, and nothing else.
    pub roles: Vec<String>,
}

/// What may be done with which keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Permission {
    /// The keys.
    #[serde(flatten)]
    pub keys: Keys,
    /// What may be done with them.
    pub access: Access,
}

/// Some keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Keys {
    /// This one.
    Key(String),
    /// All that begin so; the empty prefix: all there are.
    Prefix(String),
    /// All from one on, up to but without another.
    Range {
        /// The first.
        from: String,
        /// The first that is not meant; without it: to the last there is.
        #[serde(skip_serializing_if = "Option::is_none")]
        to: Option<String>,
    },
}

/// What may be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// Read alone.
    Read,
    /// Write alone.
    Write,
    /// Both.
    ReadWrite,
}

impl Access {
    /// As it stands in the file.
    pub const WORDS: [(&'static str, Access); 3] =
        [("read", Access::Read), ("write", Access::Write), ("readwrite", Access::ReadWrite)];
}

impl Keys {
    /// The key and the end of the range, as etcd stores them.
    pub fn range(&self) -> (Vec<u8>, Vec<u8>) {
        match self {
            Keys::Key(key) => (key.clone().into_bytes(), Vec::new()),
            // etcd's way to say "all": from the smallest key on.
            Keys::Prefix(prefix) if prefix.is_empty() => (vec![0], vec![0]),
            Keys::Prefix(prefix) => (prefix.clone().into_bytes(), after_prefix(prefix.as_bytes())),
            Keys::Range { from, to } => {
                let end = to.as_ref().map_or_else(|| vec![0], |to| to.clone().into_bytes());
                (from.clone().into_bytes(), end)
            }
        }
    }
}

/// The first key that does not begin so. Text never consists of bytes 0xff alone, so there is one.
fn after_prefix(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}

pub(super) fn section(
    reader: &mut Reader<'_>,
    file: &mut Section,
    agent: &Agent,
    security: Option<&Security>,
) -> Option<AuthSpec> {
    let mut section = file.section(reader, "auth")?;
    let at = section.at;
    let enabled = section.flag(reader, "enabled").is_none_or(|(flag, _)| flag);
    let prune = section.flag(reader, "prune").is_some_and(|(flag, _)| flag);
    let from_dir = matches!(security, Some(Security::Tls(tls)) if tls.dir.is_some()).then(|| ADMIN.to_owned());
    let named = section.text(reader, "agent-user");
    if let (Some((name, at)), None, true) = (&named, &agent.etcd_user, has_own_admin(security))
        && name != ADMIN
    {
        let what = format!("the agent shows etcd a certificate of `{ADMIN}`, and {} is kept for it", quoted(name));
        let hint =
            "leave `agent-user` out: the certificate comes with `tls.dir`; or give `tls.admin` files of that user";
        reader.wrong(*at, "auth.agent-user", what, Some(hint.into()));
    }
    let agent_user = named.map(|(text, _)| text);
    let agent_user = agent_user.or_else(|| agent.etcd_user.clone()).or(from_dir);
    let roles = list(reader, &mut section, "roles", role);
    let mut users = list(reader, &mut section, "users", user);
    section.close(reader);
    login_of_agent(reader, agent, &mut users, at);
    if enabled && agent_user.is_none() {
        let hint = "give `agent.etcd-user` and `agent.etcd-password-file`, or `auth.agent-user`: the common name in the \
                    certificate of `tls.admin`";
        reader.wrong(at, "auth", "nothing says as whom the agent asks etcd once `auth` is enabled", Some(hint.into()));
    }
    cross_check(reader, &roles, &users);
    let roles = roles.into_iter().map(|(role, _)| role).collect();
    let users = users.into_iter().map(|(user, _)| user).collect();
    Some(AuthSpec { enabled, prune, agent_user, roles, users })
}

/// Whether the agent shows etcd the certificate that `quorate ca` makes.
fn has_own_admin(security: Option<&Security>) -> bool {
    let Some(Security::Tls(tls)) = security else { return false };
    let (Some(dir), Some(admin)) = (&tls.dir, &tls.admin) else { return false };
    admin.cert_file == format!("{dir}/admin.crt")
}

/// The agent asks with a password: the declared one must be the same, or it locks itself out.
fn login_of_agent(reader: &mut Reader<'_>, agent: &Agent, users: &mut Vec<(User, At)>, at: At) {
    let (Some(name), Some(file)) = (&agent.etcd_user, &agent.etcd_password_file) else { return };
    let Some((user, at)) = users.iter_mut().find(|(user, _)| user.name == *name) else {
        let roles = vec![ROOT.to_owned()];
        users.push((User { name: name.clone(), password_file: Some(file.clone()), roles }, at));
        return;
    };
    let declared = user.password_file.get_or_insert_with(|| file.clone());
    if declared != file {
        let what = format!("the agent asks as {}, with another password file", quoted(name));
        let hint = Some("give `agent.etcd-password-file` and this `password-file` the same path".to_owned());
        reader.wrong(*at, "auth.users", what, hint);
    }
}

/// A list of maps.
fn list<T>(
    reader: &mut Reader<'_>,
    section: &mut Section,
    key: &'static str,
    read: fn(&mut Reader<'_>, Section) -> Option<T>,
) -> Vec<(T, At)> {
    let Some(node) = section.take(key) else { return Vec::new() };
    let (what, at, path) = (node.kind(), node.at, section.below(key));
    let Kind::List(items) = node.kind else {
        reader.wrong(at, &path, format!("`{key}` is {what}, not a list"), None);
        return Vec::new();
    };
    let mut found = Vec::new();
    for (index, item) in items.into_iter().enumerate() {
        let at = item.at;
        let Some(section) = Section::open(reader, item, &format!("{path}[{}]", index + 1)) else { continue };
        found.extend(read(reader, section).map(|one| (one, at)));
    }
    found
}

fn name(reader: &mut Reader<'_>, section: &mut Section) -> Option<String> {
    let found = section.text(reader, "name");
    if found.is_none() {
        reader.wrong(section.at, &section.path, format!("`{}` has no `name`", section.path), None);
    }
    found.map(|(text, _)| text)
}

fn role(reader: &mut Reader<'_>, mut section: Section) -> Option<Role> {
    let at = section.at;
    let name = name(reader, &mut section);
    if name.as_deref() == Some(ROOT) {
        let hint = Some("etcd has it, and it permits everything; leave it out".to_owned());
        reader.wrong(at, &section.path, "the role `root` is not declared", hint);
    }
    let permissions = list(reader, &mut section, "permissions", permission);
    let mut seen = BTreeSet::new();
    for (permission, at) in &permissions {
        if !seen.insert(permission.keys.range()) {
            let hint = Some("give each range of keys once, with all that may be done with it".to_owned());
            reader.wrong(*at, &section.path, "these keys are given twice", hint);
        }
    }
    section.close(reader);
    Some(Role { name: name?, permissions: permissions.into_iter().map(|(permission, _)| permission).collect() })
}

fn permission(reader: &mut Reader<'_>, mut section: Section) -> Option<Permission> {
    let at = section.at;
    let key = section.text(reader, "key").map(|(text, _)| Keys::Key(text));
    let prefix = section.any_text(reader, "prefix").map(Keys::Prefix);
    let range = section.section(reader, "range").and_then(|range| key_range(reader, range));
    let mut access = Access::Read;
    section.word(reader, "access", &Access::WORDS, &mut access);
    let path = section.path.clone();
    section.close(reader);
    let mut given = [key, prefix, range].into_iter().flatten();
    match (given.next(), given.next()) {
        (Some(keys), None) => Some(Permission { keys, access }),
        _ => {
            let hint = Some("write `key: /a`, `prefix: /a/` or `range: {from: /a, to: /b}`".to_owned());
            reader.wrong(at, &path, "a permission has one of `key`, `prefix` and `range`", hint);
            None
        }
    }
}

fn key_range(reader: &mut Reader<'_>, mut section: Section) -> Option<Keys> {
    let at = section.at;
    let from = section.text(reader, "from").map(|(text, _)| text);
    let to = section.text(reader, "to").map(|(text, _)| text);
    let path = section.path.clone();
    section.close(reader);
    let Some(from) = from else {
        reader.wrong(at, &path, "a `range` has no `from`", Some("such as `range: {from: /a, to: /b}`".into()));
        return None;
    };
    if to.as_ref().is_some_and(|to| *to <= from) {
        reader.wrong(at, &path, "`to` of a range comes before its `from`", Some("it holds no key".into()));
    }
    Some(Keys::Range { from, to })
}

fn user(reader: &mut Reader<'_>, mut section: Section) -> Option<User> {
    let name = name(reader, &mut section);
    let file = section.text(reader, "password-file");
    if let Some((text, at)) = &file {
        secret_or_path(reader, &section.below("password-file"), text, *at);
    }
    let roles = section.texts(reader, "roles").unwrap_or_default();
    section.close(reader);
    let password_file = file.map(|(text, _)| text);
    Some(User { name: name?, password_file, roles: roles.into_iter().map(|(text, _)| text).collect() })
}

fn cross_check(reader: &mut Reader<'_>, roles: &[(Role, At)], users: &[(User, At)]) {
    let declared: Vec<&str> = roles.iter().map(|(role, _)| role.name.as_str()).chain([ROOT]).collect();
    let twice = |reader: &mut Reader<'_>, what: &str, names: Vec<(&str, At)>| {
        let mut seen = BTreeSet::new();
        for (name, at) in names {
            if !seen.insert(name) {
                let text = format!("two {what} are named {}", quoted(name));
                reader.wrong(at, &format!("auth.{what}"), text, Some("keep one of the two".into()));
            }
        }
    };
    twice(reader, "roles", roles.iter().map(|(role, at)| (role.name.as_str(), *at)).collect());
    twice(reader, "users", users.iter().map(|(user, at)| (user.name.as_str(), *at)).collect());
    for (user, at) in users {
        for role in user.roles.iter().filter(|role| !declared.contains(&role.as_str())) {
            let hint = match nearest(role, declared.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("declared are {}", names(declared.iter().copied())),
            };
            let what = format!("user {} is given role {}, which is not declared", quoted(&user.name), quoted(role));
            reader.wrong(*at, "auth.users", what, Some(hint));
        }
    }
}

/// A text that may be empty.
impl Section {
    fn any_text(&mut self, reader: &mut Reader<'_>, key: &'static str) -> Option<String> {
        match self.take(key)? {
            Node { kind: Kind::Text(text), .. } => Some(text),
            node => {
                reader.wrong(node.at, &self.below(key), format!("`{key}` is {}, not text", node.kind()), None);
                None
            }
        }
    }
}
